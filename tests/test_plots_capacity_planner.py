"""The planner's form: it follows its fields, and says in one line what it cannot plan."""

import pytest

from labkit.plots.capacity_planner import plan_for, plan_table, planner


def field(box, text):
    return next(child for child in box.children if getattr(child, "description", "") == text)


def answer(box):
    return box.children[-1].value


def test_the_report_s_card_and_caches():
    plan = plan_for("qwen2.5-7b", "v100_pcie_32gb", cache_gib=1, max_num_seqs=32)
    assert (plan["tokens"], round(plan["printed_concurrency"], 2), plan["quiet_concurrency"]) == (18720, 9.14, 12)
    left = plan_for("qwen2.5-7b", "v100_pcie_32gb", exact=False)
    assert left["cache_bytes"] == int(0.9 * 32 * 2**30) - left["weight_bytes"] - (2 << 30)
    assert left["weight_bytes"] == 2 * 7615616512 and left["quiet_concurrency"] is None


def test_simulation_finds_more_than_is_safe():
    exact = plan_for("qwen2.5-7b", "v100_pcie_32gb", cache_gib=5, max_num_seqs=96)
    assert exact["quiet_concurrency"] > exact["safe_concurrency"] == 60
    assert plan_for("qwen2.5-7b", "v100_pcie_32gb", cache_gib=5, max_num_seqs=96, exact=False)[
        "safe_concurrency"] == 60


def test_weights_that_are_given():
    plan = plan_for("llama-3.1-8b", "h200", weight_gib=15.0, exact=False)
    assert plan["weight_bytes"] == 15 * 2**30 and plan["kv_bytes_per_token"] == 131072


@pytest.mark.parametrize(("model", "gpu", "message"), [
    ("gemma-2-9b", "h200", "full attention"), ("llama-3.1-8b", "h200", "weight_gib"), ("no-such", "h200", "no-such"),
    ("qwen2.5-7b", "h201", "h201"), ("qwen2.5-7b", "generic_cpu", "memory"),
])
def test_what_cannot_be_planned(model, gpu, message):
    with pytest.raises(ValueError, match=message):
        plan_for(model, gpu)


def test_the_form_follows_its_fields():
    box = planner()
    first = answer(box)
    assert "110.18 GiB" in first and "max_num_seqs" in first
    field(box, "GPU").value = "v100_pcie_32gb"
    assert "12.61 GiB" in answer(box) and "found by simulation" in answer(box)
    field(box, "max_num_seqs").value = 64
    assert "found by simulation" not in answer(box)
    field(box, "output tokens").value = 4096
    assert answer(box).startswith("<p>not defined: max_model_len")
    field(box, "model").value = "llama-3.1-8b"
    assert "weight_gib" in answer(box)


def test_a_table_for_the_static_page():
    (row,) = plan_table([("qwen2.5-7b", "v100_pcie_32gb")], exact=False)
    assert row["kib_a_token"] == 56 and row["limited_by"] == "cache"
    assert row["cache_gib"] == pytest.approx(12.61, abs=0.01)
