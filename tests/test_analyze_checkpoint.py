"""Reading checkpoint directories and the rank files of the checkpoint lab; each planted lie must be noticed."""

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from labkit.analyze import checkpoint_cost, checkpoint_faults, checkpoint_oracles, checkpoint_resume, checkpoint_tables
from labkit.analyze.ddp_rank_files import read_ranks
from labkit.analyze.kinds import KINDS, UnreadableInput
from labkit.calc.checkpoint_resume import CONTROLS
from labkit.checkpoints import begin, commit, seal, step_dir, write_file
from labkit.experiments import checkpoint_faults as exp

DATA = Path(__file__).parent / "data" / "checkpoint_ranks"
PREDICTED = exp.predict(exp.Params(world_sizes=(4,), num_faults=15))


@pytest.fixture(scope="module")
def recorded():
    """Rows of four gloo ranks, of the kills and of the drill, as runs left them."""
    return {name: read_ranks(DATA / name) for name in ("w4", "kills", "drill")}


@pytest.fixture
def rows(recorded):
    return copy.deepcopy(recorded)


def oracles_of(rows):
    """Every oracle of a launch, as the slice puts them together."""
    found = {4: checkpoint_resume.resume_results(rows["w4"], world_size=4)}
    kills = checkpoint_faults.kill_results(rows["kills"])
    drill = checkpoint_faults.drill_results(rows["drill"])
    return {o.name: o for o in [
        *checkpoint_oracles.resume_oracles(found, PREDICTED, save_step=3, num_steps=6, batch=32, is_order_known=True),
        *checkpoint_oracles.order_oracle({4: checkpoint_resume.order_results(rows["w4"])}, is_required=True),
        checkpoint_oracles.refusal_oracle(checkpoint_resume.refused(rows["w4"]), world_size=4),
        *checkpoint_oracles.dcp_oracles(checkpoint_faults.dcp_results(rows["w4"]), world_size=4),
        *checkpoint_oracles.kill_oracles(kills), *checkpoint_oracles.drill_oracles(drill, num_faults=15)]}


def failed(rows):
    return {name for name, oracle in oracles_of(rows).items() if not oracle.passed}


def test_the_recorded_run_passes_every_oracle(rows):
    assert len(oracles_of(rows)) >= 18 and failed(rows) == set()


def pick(rows, kind, **wanted):
    return next(row for row in rows if row["kind"] == kind and all(row.get(k) == v for k, v in wanted.items()))


PLAIN = "single-tensor AdamW"
AFTER_KILLS = "after each kill, full disk and straggler the right step is the newest good one on every rank"
LIES = {
    "a generator that was not restored": (lambda r: pick(r["w4"], "resumed", control=PLAIN, rank=2)["digests"].update(
        data_generator="0"), "state after the load equals the state at the save"),
    "a repeated batch": (lambda r: pick(r["w4"], "step", control=PLAIN, run="resumed", rank=3, step=4).update(
        batch_sha="0"), "no sample was lost or repeated"),
    "a cursor that stood still": (lambda r: pick(r["w4"], "step", control=PLAIN, run="resumed", rank=1, step=5).update(
        cursor=96), "no sample was lost or repeated"),
    "another forward pass": (lambda r: pick(r["w4"], "step", control=PLAIN, run="resumed", rank=0, step=4).update(
        loss=1.0), "the first resumed loss repeats bit by bit"),
    "replicas that parted": (lambda r: pick(r["w4"], "resumed", control=PLAIN, rank=3)["final_model_sha"].update(
        resumed="0"), "replicas are equal on all ranks"),
    "an unnoticed partial save": (lambda r: pick(r["w4"], "partial", control=PLAIN, rank=0).update(has_manifest=True),
                                  "a save that a rank skips is not committed, and every rank is told"),
    "a rank that was not told": (lambda r: pick(r["w4"], "partial", control=PLAIN, rank=2).update(error=None),
                                 "a save that a rank skips is not committed, and every rank is told"),
    "a file without SHA-256": (lambda r: pick(r["w4"], "saved", control=PLAIN, rank=0)["files"][0].update(digest="ab"),
                               "every save is committed, with every file in its manifest"),
    "a rank file without its generator": (
        lambda r: pick(r["w4"], "saved", control=PLAIN, rank=0)["parts"]["rank00001.pt"].remove("cpu_rng"),
        "every save is committed, with every file in its manifest"),
    "a warmed reducer that differs": (
        lambda r: pick(r["w4"], "step", control="reducer warmed 3x", run="resumed", rank=0, step=4).update(
            gradient_sha="0"), "the first gradient that differs is the predicted one"),
    "more differ than were reordered": (
        lambda r: pick(r["w4"], "resumed", control="buckets never rebuilt", rank=0).update(
            gradient_elements_differing=1), "no more elements differ than are summed in another order"),
    "one element in another order": (lambda r: pick(r["w4"], "order", stage="later").update(equal_in_own_order=4197375),
                                     "every reduced gradient element is the sum in the predicted order"),
    "a flipped byte that was loaded": (lambda r: pick(r["w4"], "refused", fault="flipped byte", rank=1).update(
        error=None), "a flipped byte and another world size are refused on every rank"),
    "a DCP that noticed": (lambda r: pick(r["w4"], "dcp", scenario="flipped byte").update(dcp_load="raises X"),
                           "DCP alone, and verification, answer each accident as expected"),
    "a shard that was not named": (lambda r: pick(r["w4"], "dcp", scenario="shards swapped").update(
        named=["__0_0.distcp"]), "verification names the files that are wrong"),
    "an older step after a kill": (lambda r: pick(r["kills"], "try", fault="disk_full").update(newest_good_step=1),
                                   AFTER_KILLS),
    "a last save that was lost": (lambda r: pick(r["kills"], "try", fault="none").update(newest_good_step=2),
                                  AFTER_KILLS),
    "a rank that hung": (lambda r: pick(r["kills"], "try", fault="none")["exitcodes"].__setitem__(1, None),
                         AFTER_KILLS),
    "ranks that loaded two models": (
        lambda r: pick(r["kills"], "try", fault="straggler")["loaded_models"].__setitem__(0, "0"),
        AFTER_KILLS),
    "a file under its name too early": (
        lambda r: pick(r["kills"], "try", fault="kill")["files_left"].update(names=[]),
        AFTER_KILLS),
    "a missed fault": (lambda r: pick(r["drill"], "fault", number=7).update(is_detected=False),
                       "every fault of the drill is noticed"),
    "a false alarm": (lambda r: pick(r["drill"], "fault", number=3).update(false_alarms=1),
                      "no alarm without a fault"),
    "a lost step": (lambda r: pick(r["drill"], "fault", number=0).update(is_recovered=False),
                    "the newest good step is found after every fault"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_fails_its_oracle(rows, lie):
    change, oracle = LIES[lie]
    change(rows)
    assert oracle in failed(rows)


def test_claims_are_answered_from_what_was_seen(rows):
    found = checkpoint_resume.resume_results(rows["w4"], world_size=4)
    results = checkpoint_resume.claim_results(
        found, reported=list(CONTROLS)[:5], save_step=3, num_steps=6, order=checkpoint_resume.order_results(rows["w4"]),
        told=checkpoint_resume.refused(rows["w4"]))
    assert results["first_mismatch"] == dict(zip(CONTROLS, (4, 4, 4, 4, None)))
    assert results["committed"] == 5
    assert results["partial_not_committed"] == {"skipping_rank": 3, "groups": 5, "manifests": 0}
    assert results["step6_warm"]["bit_identical"] == ["step-4 gradient", "model hashes", "losses", "final parameters"]
    assert results["cause"] is results["semantic_vs_bitwise"] is results["proto_load"] is True
    assert "cuda_rng" not in results["restored"] and results["step1_state"] is True
    assert results["step_hashes"] is results["oracle_ckpt"] is True


def test_a_rank_that_did_not_report_is_an_error(rows):
    left = [row for row in rows["w4"] if not (row["kind"] == "saved" and row["rank"] == 2)]
    with pytest.raises(LookupError, match="saved of ranks"):
        checkpoint_resume.resume_results(left, world_size=4)


def cost_row(variant, index, rank, time_s, **more):
    return {"kind": "cost", "rank": rank, "size_mb": 50.0, "variant": variant, "index": index, "time_s": time_s, **more}


def test_a_save_takes_as_long_as_its_slowest_rank_and_cost_is_paired():
    # Bare 0.1 and 0.2 s, the protocol 0.11 and 0.24 s: 10 % and 20 %, not the ratio of the medians.
    rows = [cost_row("bare", 0, 0, 0.1), cost_row("bare", 0, 1, 0.05), cost_row("bare", 1, 0, 0.2),
            cost_row("protocol sha256", 0, 0, 0.02, hash_s=0.01), cost_row("protocol sha256", 0, 1, 0.11, hash_s=0.0),
            cost_row("protocol sha256", 1, 0, 0.24, hash_s=0.03)]
    results, samples = checkpoint_cost.cost_results([rows])
    assert samples["save_ms.50 MB.bare"]["values"] == [[100.0, 200.0]]
    cost = results["fast_cost_pct"]["50 MB"]
    assert (cost["p10"], cost["p90"], cost["n"]) == (pytest.approx(10), pytest.approx(20), 2)
    assert results["is_fast_cost_within_5_pct"] == {"50 MB": False}
    assert results["hash_ms"]["50 MB"]["protocol sha256"]["value"] == pytest.approx(20)
    assert results["fast_extra_ms"]["50 MB"]["value"] == pytest.approx(25)  # of 10 and 40 ms
    assert results["fast_cost_fit"] is None  # a line needs two sizes
    assert checkpoint_cost.cost_results([[]]) == ({}, {})


def test_every_size_stands_beside_the_goal():
    rows = []
    for size_mb, bare, fast in ((100.0, 0.2, 0.206), (50.0, 0.1, 0.106)):
        rows += [{**cost_row("bare", 0, 0, bare), "size_mb": size_mb},
                 {**cost_row("protocol sha256", 0, 0, fast, hash_s=0.01), "size_mb": size_mb}]
    results, _ = checkpoint_cost.cost_results([rows])
    predicted = {"save_cost_pct": {"50 MB": {"sha256": 7.0}}}
    frame = checkpoint_tables.goal_frame(SimpleNamespace(results=results, prediction={"values": predicted}))
    assert list(frame["size"]) == ["50 MB", "100 MB"] and list(frame["is_within_5_pct"]) == [False, True]
    assert frame["extra_ms"].tolist() == pytest.approx([6, 6]) == frame["fitted_ms"].tolist()
    assert frame["cost_pct"].tolist() == pytest.approx([6, 3]) and frame["predicted_pct"][0] == 7
    assert checkpoint_tables.goal_frame(SimpleNamespace(results={}, prediction={})).empty


def test_the_size_from_which_a_save_is_cheap_enough():
    ms = lambda values: {f"{size} MB": {"value": value} for size, value in values.items()}  # noqa: E731
    # Bare 10 ms + 2 ms a MB, added 5 ms + 0.05 ms a MB: 5 + 0.05 x = 0.05 (10 + 2 x) at x = 90 MB.
    fit = checkpoint_cost.cost_fit(ms({10: 30, 50: 110, 100: 210}), ms({10: 5.5, 50: 7.5, 100: 10}))
    assert fit == pytest.approx({"fixed_ms": 5, "per_mb_ms": 0.05, "bare_fixed_ms": 10, "bare_per_mb_ms": 2,
                                 "within_5_pct_from_mb": 90})
    assert checkpoint_cost.cost_fit(ms({1: 10, 2: 20}), ms({1: 1, 2: 2}))["within_5_pct_from_mb"] is None
    assert checkpoint_cost.cost_fit(ms({1: 20, 2: 30}), ms({1: 0.5, 2: 0.5}))["within_5_pct_from_mb"] == 0


def log_rows(*, last=2, missing=(3,)):
    """Four ranks of which some never began collective 3."""
    rows = []
    for rank in range(4):
        for sequence in range(1, last + 1):
            about = {"rank": rank, "sequence": sequence, "op": "ALLREDUCE", "num_elements": 8, "time_s": sequence}
            rows += [{"kind": "begin", **about}, {"kind": "end", **about}]
        if rank not in missing:
            rows.append({"kind": "begin", "rank": rank, "sequence": last + 1, "op": "ALLREDUCE", "num_elements": 8,
                         "time_s": 3.0})
    return rows


def test_aligned_logs_name_the_rank_that_never_came():
    seen = checkpoint_faults.aligned(log_rows(), world_size=4)
    assert seen == {"last_completed": {str(r): 2 for r in range(4)}, "missing": [3], "sequence": 3,
                    "waiting": {str(r): [3, "ALLREDUCE", 8] for r in range(3)}}
    assert checkpoint_faults.aligned(log_rows(last=0, missing=(0, 1)), world_size=4)["missing"] == [0, 1]
    assert checkpoint_faults.aligned([], world_size=2)["sequence"] is None


def test_job_facts_need_an_error_after_the_timeout():
    about = {"world_size": 4, "wall_s": 12.0, "timeout_s": 6.0, "rank": 0, "exitcode": 1}
    seen = checkpoint_faults.job_facts(log_rows(), "x ChildFailedError: y", **about)
    assert seen["after_timeout"] and not seen["before_timeout"] and seen["error"] == "ChildFailedError"
    (good,) = checkpoint_oracles.straggler_oracles(seen, rank=3)
    (other,) = checkpoint_oracles.straggler_oracles(seen, rank=2)
    (early,) = checkpoint_oracles.straggler_oracles({**seen, "after_timeout": False}, rank=3)
    assert good.passed and not other.passed and not early.passed


def save(root, step, ranks=4):
    directory = step_dir(root, step)
    begin(directory)
    entries = [write_file(directory, f"rank{r:05d}.pt", lambda s, r=r: s.write(bytes([r]) * 100 * step), rank=r,
                          algorithm="sha256", durable=False) for r in range(ranks)]
    commit(directory, entries, step=step, world_size=ranks, algorithm="sha256", durable=False)
    return directory


def answer(path):
    return json.loads(json.dumps(KINDS["checkpoint_dir"]([Path(path)]), allow_nan=False))


def test_a_job_folder_names_its_newest_good_step(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    (step_dir(tmp_path, 3) / "rank00002.pt").unlink()
    begin(step_dir(tmp_path, 4))
    seen = answer(tmp_path)
    assert [(c["step"], c["status"]) for c in seen["checkpoints"]] == [
        (4, "incomplete"), (3, "damaged"), (2, "good"), (1, "good")]
    assert seen["newest_good"] == {"name": "step_00000002", "step": 2} and (seen["good"], seen["bad"]) == (2, 2)
    problem = seen["checkpoints"][1]["problems"][0]
    assert (problem["kind"], problem["path"], problem["rank"]) == ("missing", "rank00002.pt", 2)


def test_a_single_checkpoint_looks_at_its_neighbours(tmp_path):
    for step in (1, 2):
        save(tmp_path, step)
    (step_dir(tmp_path, 2) / "manifest.json").write_text("{")
    seen = answer(step_dir(tmp_path, 2))
    assert [c["status"] for c in seen["checkpoints"]] == ["damaged"]
    assert seen["checkpoints"][0]["problems"][0]["kind"] == "manifest"
    assert seen["newest_good"] == {"name": "step_00000001", "step": 1}


def test_a_dcp_directory_without_a_manifest_is_not_called_good(tmp_path):
    directory = tmp_path / "checkpoint-500"
    directory.mkdir()
    for name in ("__0_0.distcp", "__1_0.distcp", ".metadata"):
        (directory / name).write_bytes(b"12345")
    seen = answer(directory)["checkpoints"][0]
    assert (seen["status"], seen["step"]) == ("incomplete", 500) and "vouches" in seen["problems"][0]["message"]
    seal(directory, step=500, world_size=2, algorithm="sha256", durable=False)
    assert answer(directory)["checkpoints"][0]["status"] == "good"
    shutil.copyfile(directory / "__0_0.distcp", directory / "__5_0.distcp")
    assert answer(directory)["checkpoints"][0]["warnings"][0]["path"] == "__5_0.distcp"


@pytest.mark.parametrize("make", [
    lambda path: path / "nothing", lambda path: path, lambda path: (path / "file").write_text("x") and path / "file"],
    ids=["missing", "empty", "file"])
def test_what_is_no_checkpoint_is_said_in_one_line(tmp_path, make):
    with pytest.raises(UnreadableInput) as caught:
        KINDS["checkpoint_dir"]([make(tmp_path)])
    assert "\n" not in str(caught.value)
