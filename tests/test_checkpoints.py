"""The checkpoint protocol without torch: what it writes, what it refuses, and what a reader must notice."""

import errno
import json
import os
import random
import resource
import shutil
import signal
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.checkpoints import (
    MANIFEST_NAME,
    CheckpointError,
    FileEntry,
    Manifest,
    ManifestError,
    available_algorithms,
    begin,
    commit,
    hash_bytes,
    hash_file,
    hashing,
    newest_good,
    parse_manifest,
    require_good,
    seal,
    step_dir,
    verify,
    write_file,
)
from labkit.checkpoints.damage import DAMAGE

CONTENT = {"rank00000.bin": b"zero" * 3000, "rank00001.bin": b"one!" * 3000}


def save(root, step, content=CONTENT, *, algorithm="sha256", at=None, ranks=None):
    """A whole save by one process that plays all ranks."""
    directory = step_dir(root, step)
    begin(directory)
    entries = [write_file(directory, name, lambda stream, data=data: stream.write(data + str(step).encode()),
                          rank=rank, algorithm=algorithm, durable=False, at=at)
               for rank, (name, data) in enumerate(content.items()) if ranks is None or rank in ranks]
    commit(directory, entries, step=step, world_size=len(content), algorithm=algorithm, durable=False, at=at)
    return directory


def kinds(report):
    return [problem.kind for problem in report.problems]


@pytest.mark.parametrize("algorithm", available_algorithms())
def test_a_saved_checkpoint_is_good_and_its_manifest_says_what_is_on_the_disk(tmp_path, algorithm):
    directory = save(tmp_path, 3, algorithm=algorithm)
    report = verify(directory, world_size=2)
    assert report.is_good and not report.problems and not report.warnings and report.step == 3
    for entry in report.manifest.files:
        data = (directory / entry.path).read_bytes()
        assert entry.bytes == len(data) and entry.digest == hash_bytes(data, algorithm)
    assert [entry.rank for entry in report.manifest.files] == [0, 1]


def test_sha256_of_the_manifest_is_the_worlds():
    """Known answer: SHA-256 of "abc" (FIPS 180-2, appendix B.1)."""
    assert hash_bytes(b"abc", "sha256") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_manifest_comes_last_and_under_a_temporary_name(tmp_path):
    steps = []
    directory = save(tmp_path, 1, at=lambda what, name: steps.append((what, name, sorted(os.listdir(
        step_dir(tmp_path, 1))))))
    replaced = [name for what, name, _ in steps if what == "replaced"]
    assert replaced == [*CONTENT, MANIFEST_NAME]
    for what, name, listed in steps:
        assert (name in listed) == (what == "replaced")  # until then nobody can see it under its own name
        assert (MANIFEST_NAME in listed) == ((what, name) == ("replaced", MANIFEST_NAME))
    assert sorted(os.listdir(directory)) == sorted([*CONTENT, MANIFEST_NAME])


def test_no_manifest_if_a_rank_did_not_write(tmp_path):
    with pytest.raises(CheckpointError, match="not committed, no file from rank 1 of 2"):
        save(tmp_path, 1, ranks=[0])
    assert verify(step_dir(tmp_path, 1)).status == "incomplete"


@pytest.mark.parametrize("change", [lambda path: path.unlink(), lambda path: os.truncate(path, 5)], ids=["gone", "cut"])
def test_no_manifest_if_a_file_is_not_there_in_full(tmp_path, change):
    begin(tmp_path / "step_1")
    entries = [write_file(tmp_path / "step_1", name, lambda s: s.write(b"0123456789"), rank=rank, algorithm="sha256")
               for rank, name in enumerate(CONTENT)]
    change(tmp_path / "step_1" / "rank00001.bin")
    with pytest.raises(CheckpointError, match=r"not committed, rank00001\.bin of rank 1"):
        commit(tmp_path / "step_1", entries, step=1, world_size=2, algorithm="sha256")
    assert verify(tmp_path / "step_1").status == "incomplete"


def test_a_committed_checkpoint_is_never_written_into_again(tmp_path):
    directory = save(tmp_path, 1)
    with pytest.raises(CheckpointError, match="is committed"):
        save(tmp_path, 1)
    assert verify(directory).is_good


def test_another_world_size_is_refused(tmp_path):
    directory = save(tmp_path, 1)
    report = verify(directory, world_size=4)
    assert report.status == "unfit" and kinds(report) == ["world_size"]
    with pytest.raises(CheckpointError, match="saved by 2 ranks, asked for 4: refused"):
        require_good(directory, world_size=4)
    assert newest_good(tmp_path, world_size=4)[0] is None


# 25 runs of each of 11 kinds; odds that a wrong XXH3-128 or SHA-256 goes unseen: below 1e-36 each.
@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_and_the_checkpoint_before_is_found(tmp_path, kind, seed):
    rng = random.Random(seed)
    content = {f"rank{rank:05d}.bin": rng.randbytes(rng.choice([1, 17, 5000, 20000]))
               for rank in range(rng.randint(1, 5))}
    algorithm = rng.choice(available_algorithms())
    first, second = (save(tmp_path, step, content, algorithm=algorithm) for step in (1, 2))
    touched = DAMAGE[kind](second, first, rng)
    report = verify(second)
    assert not report.is_good
    if MANIFEST_NAME not in touched:
        assert {problem.path for problem in report.problems} == set(touched)
    best, rejected = newest_good(tmp_path)
    assert best is not None and best.directory == first and [r.directory for r in rejected] == [second]


def test_what_is_harmless_is_no_alarm(tmp_path):
    directory = save(tmp_path, 1)
    os.utime(directory / "rank00000.bin", (0, 0))
    shutil.copytree(directory, tmp_path / "copy_1")
    (directory / ".rank00000.bin.77.tmp").write_bytes(b"half")
    (directory / "rank00007.bin").write_bytes(b"of eight ranks")
    report = verify(directory)
    assert report.is_good and [w.kind for w in report.warnings] == ["leftover", "extra"]
    assert "rank00007.bin" in report.warnings[1].message
    assert verify(tmp_path / "copy_1").is_good


def kill_points(tmp_path):
    """How often a save of two ranks stops at a step of a writer, counted on a save that is not killed."""
    count = 0

    def at(what, name):
        nonlocal count
        count += 1
    save(tmp_path / "count", 2, at=at)
    return count


def test_kill_9_at_every_write_leaves_the_step_before_or_the_new_one(tmp_path):
    total = kill_points(tmp_path)
    assert total == 3 * 5  # create, write, sync, replace, replaced for two files and the manifest
    for k in range(total):
        root = tmp_path / f"kill{k}"
        save(root, 1)
        if (pid := os.fork()) == 0:
            calls = iter(range(total))
            save(root, 2, at=lambda what, name, k=k, calls=calls: next(calls) == k
                 and os.kill(os.getpid(), signal.SIGKILL))
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        best, _ = newest_good(root)
        assert best is not None and best.step == (2 if k == total - 1 else 1), k
        if k < total - 1:  # and the next save is not disturbed by what was left
            assert verify(save(root, 2)).is_good


def test_a_full_disk_leaves_no_checkpoint_and_no_temporary_file(tmp_path):
    save(tmp_path, 1)
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            save(tmp_path, 2)
        except OSError as error:
            os._exit(0 if error.errno == errno.EFBIG else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert os.listdir(step_dir(tmp_path, 2)) == []
    assert newest_good(tmp_path)[0].step == 1


def dcp_directory(directory, *, marks=(".metadata",), shards=4):
    directory.mkdir(parents=True)
    for rank in range(shards):
        (directory / f"__{rank}_0.distcp").write_bytes(bytes([rank]) * 500)
    for mark in marks:
        (directory / mark).write_bytes(b"pickled")
    return directory


def test_a_directory_of_dcp_is_sealed_with_rank_and_commit_mark(tmp_path):
    directory = dcp_directory(tmp_path / "step_1")
    assert verify(directory).status == "incomplete"
    manifest = seal(directory, step=1, world_size=4, algorithm="sha256", durable=False)
    assert verify(directory, world_size=4).is_good
    assert [(f.path, f.rank, f.role) for f in manifest.files] == [
        (".metadata", None, "commit_mark"), *((f"__{rank}_0.distcp", rank, "data") for rank in range(4))]
    (directory / "__2_0.distcp").unlink()
    report = verify(directory)
    assert report.status == "damaged" and (report.problems[0].path, report.problems[0].rank) == ("__2_0.distcp", 2)
    (directory / ".metadata").unlink()
    assert verify(directory).status == "incomplete"


def test_an_unfinished_save_of_dcp_is_not_sealed_and_is_called_incomplete(tmp_path):
    seal(dcp_directory(tmp_path / "step_1"), step=1, world_size=4, algorithm="sha256", durable=False)
    unfinished = dcp_directory(tmp_path / "step_2", marks=(".metadata.tmp",))
    with pytest.raises(CheckpointError, match=r"no \.metadata"):
        seal(unfinished, step=2, world_size=4, algorithm="sha256")
    best, rejected = newest_good(tmp_path)
    assert best.step == 1 and rejected[0].status == "incomplete" and ".metadata.tmp" in rejected[0].problems[0].message


MANIFEST = Manifest(step=1, world_size=1, algorithm="sha256", meta={},
                    files=(FileEntry(path="a", bytes=1, digest="00", rank=0),))


@pytest.mark.parametrize(("old", "new", "message"), [
    ('"path": "a"', '"path": "../a"', r"files\[0\]\.path"),
    ('"path": "a"', '"path": "manifest.json"', r"files\[0\]\.path"),
    ('"bytes": 1', '"bytes": -1', r"files\[0\]\.bytes=-1"),
    ('"bytes": 1', '"bytes": true', r"files\[0\]\.bytes=True"),
    ('"rank": 0', '"rank": 1', r"files\[0\]\.rank=1"),
    ('"step": 1', '"step": 2', "manifest_sha256 differs"),
    ('"step": 1', '"step": NaN', "not a manifest"),
    ('"version": 1', '"version": 2', "version 2, expected 1"),
    ('"meta": {}', '"meta": {}, "more": 1', "more: missing or unknown"),
    ("labkit-checkpoint", "labkit-chekpoint", "not a manifest"),
])
def test_a_manifest_that_was_changed_is_refused(old, new, message):
    text = MANIFEST.to_json()
    assert parse_manifest(text.encode()) == MANIFEST and text.count(old) == 1
    with pytest.raises(ManifestError, match=message):
        parse_manifest(text.replace(old, new).encode())


@given(data=st.binary(max_size=200), where=st.integers(0, 500))
@settings(max_examples=200, deadline=None)
def test_no_bytes_make_the_reader_fall_over(data, where):
    text = MANIFEST.to_json().encode()
    for raw in (data, text[:where] + data, text[:where] + data + text[where:]):
        try:
            assert parse_manifest(raw) == MANIFEST
        except ManifestError as error:
            assert "\n" not in str(error)


def test_deep_and_huge_json_is_refused_in_one_line():
    for raw in (b"[" * 100_000, json.dumps({"format": "labkit-checkpoint", "version": 1, "step": 10**400}).encode()):
        with pytest.raises(ManifestError):
            parse_manifest(raw)


def test_a_hash_that_nobody_here_knows_is_not_called_good(tmp_path):
    directory = save(tmp_path, 1)
    manifest = parse_manifest((directory / MANIFEST_NAME).read_bytes())
    (directory / MANIFEST_NAME).write_text(Manifest(
        step=1, world_size=2, algorithm="crc31", files=manifest.files, meta={}).to_json())
    report = verify(directory)
    assert report.status == "unverified" and "crc31" in report.problems[0].message


def test_a_manifest_moved_to_another_step_is_noticed(tmp_path):
    save(tmp_path, 1)
    shutil.copytree(step_dir(tmp_path, 1), step_dir(tmp_path, 2))
    assert kinds(verify(step_dir(tmp_path, 2))) == ["step"]


class SlowHash:
    """SHA-256 that is still at work when a write has long returned."""

    def __init__(self, algorithm):
        self.state = hashing.hashlib.sha256()

    def update(self, view):
        time.sleep(0.05)
        self.state.update(view)

    def hexdigest(self):
        return self.state.hexdigest()


def test_memory_may_be_used_again_after_a_write(tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "new_hash", SlowHash)
    data = bytearray(b"a" * hashing.OVERLAP_BYTES)

    def write(stream):
        stream.write(data)
        data[:] = bytes(len(data))
    entry = write_file(tmp_path, "file", write, rank=0, algorithm="sha256", durable=False)
    assert entry.digest == hash_bytes(b"a" * len(data), "sha256") == hash_file(tmp_path / "file", "sha256")[0]


def test_a_hash_that_fails_beside_the_write_fails_the_save(tmp_path, monkeypatch):
    def fail(self, view):
        raise MemoryError("no more")
    monkeypatch.setattr(SlowHash, "update", fail)
    monkeypatch.setattr(hashing, "new_hash", SlowHash)
    with pytest.raises(MemoryError, match="no more"):
        write_file(tmp_path, "file", lambda s: s.write(bytes(hashing.OVERLAP_BYTES)), rank=0, algorithm="sha256")
    assert os.listdir(tmp_path) == []
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoint-hash"]


@pytest.mark.parametrize("algorithm", available_algorithms())
def test_sums_of_long_files_are_those_of_the_whole(tmp_path, algorithm):
    """Longer than a chunk of the reader, and in pieces on both sides of the writer's overlap and buffer."""
    data = random.Random(0).randbytes(5 * 2**20 + 3)
    cuts = [0, 10, 2**20 + 7, 4 * 2**20, len(data)]
    entry = write_file(tmp_path, "long.bin", lambda s: [s.write(data[a:b]) for a, b in pairwise(cuts)], rank=0,
                       algorithm=algorithm, durable=False)
    assert (tmp_path / "long.bin").read_bytes() == data
    assert entry.digest == hash_bytes(data, algorithm) == hash_file(tmp_path / "long.bin", algorithm)[0]
