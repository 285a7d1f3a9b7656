"""Miniature ledgers and records, made by hand: what the ledger's tests are run on."""

import yaml

from labkit import claims
from labkit.records import Oracle, RunRecord, open_run_dir, publish


def a_claim(**changes):
    """A claim that needs nothing but itself; `check` and the rest may be replaced."""
    plain = {
        "id": "toy-sum", "section": "1", "statement": "Two and two.", "kind": "structural", "role": "result",
        "value": 4, "unit": "apples", "check": {"by": "formula", "expr": "2 + 2"},
    }
    return plain | changes


def from_record(**changes):
    return {"by": "record", "experiment": "toy", "result": "count"} | changes


def write_ledger(folder, *plain_claims, errata=(), **top):
    folder.mkdir(exist_ok=True)
    (folder / "toy.yaml").write_text(yaml.safe_dump({"claims": list(plain_claims), **top}))
    (folder / "errata.yaml").write_text(yaml.safe_dump({"errata": list(errata)}))
    return folder


def an_erratum(**changes):
    plain = {"id": "E1", "seed": "toy", "section": "1", "cls": "cell", "claims": [], "printed": 5, "corrected": 4,
             "comment": "A slip."}
    return plain | changes


class Place:
    """A ledger folder, a root of local runs and a root of committed ones; this machine is a `cpu-2c`."""

    def __init__(self, folder):
        self.ledger, self.local, self.committed = folder / "claims", folder / "runs", folder / "data"
        self.local.mkdir()
        self.committed.mkdir()

    def run(self, day, results, *, root=None, tag="cpu-2c", status="ok", passed=True, params=None,
            evidence="measured", experiment="toy"):
        """Publish one record; `day` orders the run ids. Local unless `root` says otherwise."""
        run_id = f"202601{day:02d}T000000Z_{tag}_abc"
        params = params or {}
        run_dir = open_run_dir(experiment, run_id, params=params, root=root or self.local)
        publish(
            RunRecord(
                experiment=experiment, run_id=run_id, preset="cpu", status=status, created_utc="2026-01-01T00:00:00Z",
                finished_utc="2026-01-01T00:00:01Z", params=params, results=results, evidence=evidence,
                environment={"hardware": {"tag": tag, "gpus": [] if tag.startswith("cpu") else [{"name": "H200"}]}},
                oracles=[Oracle(name="o", passed=passed, expected=1, seen=1 if passed else 2)],
                failure={"error": "rank 1 died"} if status == "failed" and passed else None,
            ), run_dir)
        return run_id

    def row(self, *plain_claims, **ledger):
        """The row of the first claim."""
        write_ledger(self.ledger, *plain_claims, **ledger)
        return claims.verify(roots=(self.local, self.committed), tag="cpu-2c", folder=self.ledger)[0]


def slip(corrected=4, **changes):
    check = {"by": "formula", "expr": "2 + 2", "corrected": corrected}
    return a_claim(value=5, errata=["E1"], check=check, **changes)
