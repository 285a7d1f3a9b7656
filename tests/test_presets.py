"""Presets merge over defaults, and nothing unknown passes."""

from dataclasses import dataclass

import pytest

from labkit import presets
from labkit.presets import UsageError, available_presets, build_params, choose_preset


@dataclass(frozen=True, kw_only=True, slots=True)
class Params:
    sizes: tuple[int, ...] = (1,)
    steps: int = 3

    def __post_init__(self):
        if self.steps < 1:
            raise ValueError(f"steps={self.steps}: expected at least 1")


@pytest.fixture(autouse=True)
def preset_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(presets, "PRESET_DIR", tmp_path)
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "smoke.yaml").write_text("sizes: [1, 2]\n")
    (tmp_path / "lab" / "cpu.yaml").write_text("")
    (tmp_path / "lab" / "gpu2.yaml").write_text("steps: 20\n")
    (tmp_path / "lab" / "notes.yaml").write_text("steps: 1\n")


def test_defaults_then_preset_then_overrides():
    assert build_params(Params, "lab", "cpu") == Params()
    assert build_params(Params, "lab", "smoke", {"steps": 7}) == Params(sizes=(1, 2), steps=7)


def test_none_means_not_overridden():
    assert build_params(Params, "lab", "gpu2", {"steps": None}).steps == 20


def test_unknown_names_are_refused_with_the_close_one():
    with pytest.raises(UsageError, match="did you mean 'steps'"):
        build_params(Params, "lab", "smoke", {"step": 1})
    with pytest.raises(UsageError, match="did you mean 'gpu2'"):
        build_params(Params, "lab", "gpu3")


def test_a_bad_value_names_the_argument():
    with pytest.raises(UsageError, match="steps=0: expected at least 1"):
        build_params(Params, "lab", "smoke", {"steps": 0})


def test_only_known_preset_names_count():
    assert available_presets("lab") == ["smoke", "cpu", "gpu2"]


@pytest.mark.parametrize(("num_gpus", "preset"), [(0, "cpu"), (1, "cpu"), (2, "gpu2"), (3, "gpu2"), (8, "gpu2")])
def test_the_largest_preset_the_machine_can_run(num_gpus, preset):
    assert choose_preset("lab", num_gpus=num_gpus) == preset
