"""Start other programs and stop them again: a guard process per launch, torchrun on top of it.

Layer: launch may import units, paths and records of labkit, never torch; torch is only in the processes it starts.
"""
