"""Evidence kinds: what stands behind a number on a page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evidence:
    """One kind of evidence: the word on the badge and what it means."""

    key: str
    label: str
    meaning: str


HERE = Evidence("here", "here", "measured on the machine that built this book")
ELSEWHERE = Evidence("elsewhere", "elsewhere", "measured by us on another machine; the record is in the repository")
DERIVED = Evidence("derived", "derived", "calculated by a function of labkit.calc from stated inputs")
SIMULATED = Evidence("simulated", "simulated", "produced by a simulation, not by hardware")
QUOTED = Evidence("quoted", "quoted", "printed by a source; not reproduced by us")
KINDS = (HERE, ELSEWHERE, DERIVED, SIMULATED, QUOTED)
