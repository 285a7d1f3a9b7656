"""The planted errors stay plantable: the full run is `make mutants`."""

import pytest

from tests.mutants.run import load_mutants, stale

MUTANTS = load_mutants([])


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m['topic']}/{m['name']}")
def test_mutant_can_be_planted(mutant):
    assert stale(mutant) is None
    assert mutant["old"] != mutant["new"] and mutant["tests"]


def test_each_topic_plants_ten():
    topics = {m["topic"] for m in MUTANTS}
    assert topics and all(sum(m["topic"] == t for m in MUTANTS) >= 10 for t in topics)
