"""Pure formulas, one file per topic, standard library only.

Every public function takes keyword-only plain values with units in their names, returns a plain JSON value, raises
ValueError naming the argument, and carries its source. The same functions serve the pages, the command line, the
claim ledger and the tests: one formula, one place.

    python -m labkit calc roofline ridge_flop_per_byte peak_flop_per_s=9.89e14 bytes_per_s=3.35e12
"""
