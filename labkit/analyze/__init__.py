"""Files to facts: readers for traces, logs and tool output. No plotting, no torch, no side effects."""
