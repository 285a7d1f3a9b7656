"""The shape cache: who tunes, what is kept, and what is never believed; a fake timer counts its calls."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from labkit.workers import rmsnorm_cache as cache

KEY = cache.Key(gpu="NVIDIA H200", dtype="bfloat16", hidden=4096, rows_bucket=15, direction="backward", source="ab12",
                triton="3.6.0")  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """Stands for a kernel's configuration."""

    warps: int

    def __post_init__(self):
        if self.warps not in (1, 2, 4):
            raise ValueError(f"warps={self.warps}")

    def label(self):
        return f"w{self.warps}"

    def to_dict(self):
        return {"warps": self.warps}


class Timer:
    """Gives each setting the samples it was told, and counts."""

    def __init__(self, **ms):
        self.ms, self.calls = ms, 0

    def __call__(self, settings):
        self.calls += 1
        return [self.ms[setting.label()] for setting in settings]


ALL = [Setting(2), Setting(1), Setting(4)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path))
    return tmp_path / "rmsnorm"


def tuned(timer, key=KEY):
    return cache.tuned(key, ALL, timer, from_dict=Setting)


def fast_w4():
    return Timer(w1=[3.0, 3.0], w2=[2.0, 2.1], w4=[1.0, 9.0, 1.0])


def test_the_second_call_does_not_tune():
    timer = fast_w4()
    first = tuned(timer)
    assert (first.config, first.was_tuned, first.num_timings) == (Setting(4), True, 7) and timer.calls == 1
    assert first.ms == {"w2": 2.05, "w1": 3.0, "w4": 1.0}, "medians: one slow sample does not decide"
    second = tuned(timer)
    assert (second.config, second.was_tuned, second.num_timings) == (Setting(4), False, 0) and timer.calls == 1
    assert second.ms == first.ms


def test_a_second_process_finds_what_the_first_left(folder):
    code = ("from tests.test_workers_rmsnorm_cache import *; timer = fast_w4(); found = tuned(timer); "
            "print(timer.calls, found.config.warps)")  # fmt: skip
    env = {**os.environ, "LABKIT_CACHE_DIR": str(folder.parent)}
    told = [subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], env=env, capture_output=True,
                           text=True, check=True, timeout=60).stdout.split() for _ in range(2)]  # fmt: skip
    assert told == [["1", "4"], ["0", "4"]]


@pytest.mark.parametrize(("samples", "wins"), [([1.995], 2), ([1.985], 2), ([1.975], 4)])
def test_a_gain_within_the_noise_does_not_move_the_default(samples, wins):
    """The default takes 2 ms, the other must be under 1.98."""
    assert tuned(Timer(w2=[2.0], w1=[5.0], w4=samples)).config == Setting(wins)


@pytest.mark.parametrize("change", [
    {"gpu": "NVIDIA B200"}, {"dtype": "float16"}, {"hidden": 4095}, {"rows_bucket": 16}, {"direction": "forward"},
    {"source": "ab13"}, {"triton": "3.7.0"},
], ids=lambda change: next(iter(change)))  # fmt: skip
def test_every_part_of_the_key_counts(change):
    timer = fast_w4()
    tuned(timer)
    tuned(timer, replace(KEY, **change))
    assert timer.calls == 2


def test_key_is_hashed_whole():
    """Two keys never share a file: they would overwrite each other."""
    others = [replace(KEY, **{name: 1 if name in ("hidden", "rows_bucket") else "other"}) for name in asdict(KEY)]
    assert len({key.file_name() for key in [KEY, *others]}) == 1 + len(others)


def good():
    return {"key": asdict(KEY), "config": {"warps": 1}, "ms": {"w1": 1.0}}


BAD = {
    "empty": "", "cut off": json.dumps(good())[:-5], "no JSON": "\x00\x01", "a list": "[]",
    "another key under this name": json.dumps({**good(), "key": {**asdict(KEY), "hidden": 1}}),
    "no config": json.dumps({"key": asdict(KEY)}),
    "unknown field": json.dumps({**good(), "config": {"warps": 1, "threads": 3}}),
    "value refused": json.dumps({**good(), "config": {"warps": 3}}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_entry_counts_as_none_and_is_replaced(folder, name):
    folder.mkdir(parents=True)
    (folder / KEY.file_name()).write_text(BAD[name])
    timer = fast_w4()
    assert tuned(timer).was_tuned and tuned(timer).config == Setting(4) and timer.calls == 1


def test_a_good_entry_is_believed_and_no_scratch_is_left(folder):
    folder.mkdir(parents=True)
    (folder / KEY.file_name()).write_text(json.dumps(good()))
    assert tuned(Timer()).config == Setting(1), "the timer was not asked"
    assert cache.write_entry(KEY, config={"warps": 2}, ms={})
    assert [path.name for path in folder.iterdir()] == [KEY.file_name()]
    assert tuned(Timer()).config == Setting(2)


def test_a_folder_that_cannot_be_written_costs_only_the_tuning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABKIT_CACHE_DIR", str(tmp_path / "file"))
    timer = fast_w4()
    assert [tuned(timer).config, tuned(timer).config] == [Setting(4), Setting(4)] and timer.calls == 2


def test_candidates_that_do_not_run_are_left_out():
    assert tuned(Timer(w2=[2.0], w1=[], w4=[])).config == Setting(2)
    with pytest.raises(ValueError, match="the default, 'w2', does not run"):
        tuned(Timer(w2=[], w1=[1.0], w4=[1.0]), replace(KEY, hidden=7))
    with pytest.raises(ValueError, match="candidates"):
        cache.tuned(replace(KEY, hidden=8), [], Timer(), from_dict=Setting)


def test_a_changed_kernel_has_another_hash(tmp_path):
    for name in cache.KERNEL_FILES:
        (tmp_path / name).write_text("a = 1")
    before = cache.source_hash(tmp_path)
    (tmp_path / cache.KERNEL_FILES[1]).write_text("a = 2")
    assert cache.source_hash(tmp_path) != before and cache.source_hash() not in (before, "")


def test_rows_share_a_bucket_up_to_a_power_of_two():
    assert [cache.rows_bucket(rows) for rows in (1, 2, 3, 4, 5, 4096, 4097)] == [0, 1, 2, 2, 3, 12, 13]
    assert cache.rows_bucket(5) == cache.rows_bucket(8)
