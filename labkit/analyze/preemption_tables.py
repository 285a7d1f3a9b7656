"""Tables of preemption records: one row a point, predictions and what is left of them, records side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from labkit.analyze.preemption_costs import COSTS, METRICS, calibrate, times_with, used_points
from labkit.analyze.preemption_plan import config_of, point_labels
from labkit.calc.preemption_prediction import equal_jobs
from labkit.calc.scheduler import Scheduler
from labkit.calc.scheduler_runs import simulate
from labkit.records import RunRecord

COUNTS = {"count": "preemptions", "recomputed_tokens": "recomputed_tokens", "num_steps": "num_steps",
          "peak_kv": "peak_kv_pct"}
SHOWN = {"kv_tokens": "tokens of the cache", "count": "preemptions", "recomputed_tokens": "tokens computed again",
         "num_steps": "steps", "peak_kv": "peak of the cache's use (%)",
         "peak_running_waiting": "peak running, waiting",
         "throughput": "tokens/s", "ttft": "mean TTFT (ms)", "tpot": "mean TPOT (ms)", "e2el": "mean E2EL (s)"}


def points_table(record: RunRecord) -> pd.DataFrame:
    """One row a point: counts predicted and seen, then times.

    Columns: point, predicted_preemptions, preemptions, predicted_again, again (tokens computed more than once),
    predicted_steps, steps (median of the rounds), predicted_peak_pct, peak_pct (sampled), peak_step_pct (after a step,
    by the log), running and waiting (sampled peaks), tokens_per_s, ttft_ms, tpot_ms, e2el_s, each with _p10 and _p90
    over rounds, rounds.
    """
    results, predicted = record.results, record.prediction["values"]["points"]
    rows = []
    for label in point_labels(record.params):
        if label not in results["count"]:
            continue
        told, steps = predicted[label], results["num_steps"][label]
        running, waiting = results["peak_running_waiting"][label]
        row = {
            "point": label, "predicted_preemptions": told["preemptions"], "preemptions": results["count"][label],
            "predicted_again": told["recomputed_tokens"], "again": results["recomputed_tokens"][label],
            "predicted_steps": told["num_steps"], "steps": sorted(steps)[len(steps) // 2],
            "predicted_peak_pct": told["peak_kv_pct"], "peak_pct": results["peak_kv"][label],
            "peak_step_pct": results["peak_kv_step"][label], "running": running, "waiting": waiting}
        for name, column in (("throughput", "tokens_per_s"), ("ttft", "ttft_ms"), ("tpot", "tpot_ms"),
                             ("e2el", "e2el_s")):
            seen = results[name][label]
            row |= {column: seen["value"], f"{column}_p10": seen["p10"], f"{column}_p90": seen["p90"],
                    "rounds": seen["n"]}
        rows.append(row)
    return pd.DataFrame(rows)


def victims_table(params: dict[str, Any], num_blocks: int) -> pd.DataFrame:
    """Every preemption of the model when all requests are released together, one row each.

    Args:
        params: of a run, as JSON.
        num_blocks: of the cache.

    Columns: step (the one that found no block), victim (request in order of arrival, from 1 on), running (before it),
        blocks_each (full ones of each that runs), blocks_wanted (one more for each), blocks_usable, tokens_again.
    """
    engine = Scheduler(config_of(params, num_blocks))
    simulate(equal_jobs(num_requests=params["num_requests"], prompt_tokens=params["prompt_tokens"],
                        output_tokens=params["output_tokens"]), engine.config, scheduler=engine)
    rows, size = [], params["block_size"]
    for step, number, lost in engine.preempted:
        running, each = engine.trace[step - 2].running, -(-lost // size)
        rows.append({"step": step, "victim": number + 1, "running": running, "blocks_each": each,
                     "blocks_wanted": running * (each + 1), "blocks_usable": engine.pool.num_usable,
                     "tokens_again": lost})
    return pd.DataFrame(rows)


def requests_table(record: RunRecord) -> pd.DataFrame:
    """Spread over requests: point, metric, n, mean, p10, p50, p90, p99 (the largest, under 100 requests), seconds."""
    return pd.DataFrame([
        {"point": label, "metric": name.removesuffix("_s"), **seen}
        for label, by_name in record.results["requests"].items() for name, seen in by_name.items()])


def residuals_table(record: RunRecord) -> pd.DataFrame:
    """Times predicted and measured, with unit costs assumed before the run and with costs from its quiet rounds.

    Columns: point, metric, assumed, calibrated (costs of `labkit.analyze.preemption_costs.calibrate`), measured,
    assumed_off_pct and calibrated_off_pct (measured over predicted, minus one), used (the calibration is made from this
    number, so that it fits by itself).
    """
    params, told, rows = record.params, record.prediction["values"], []
    costs, used = calibrate(params, told, record.results), used_points(params)
    before = {name: params[name] for name in COSTS}
    for label in point_labels(params):
        if label not in record.results["ttft"]:
            continue
        assumed = times_with(params, told, label, before)
        fitted = times_with(params, told, label, costs) if costs else {}
        for name in METRICS:
            seen = record.results[name][label]["value"]
            rows.append({
                "point": label, "metric": SHOWN[name], "assumed": assumed[name], "calibrated": fitted.get(name),
                "measured": seen, "assumed_off_pct": 100 * (seen / assumed[name] - 1),
                "calibrated_off_pct": 100 * (seen / fitted[name] - 1) if fitted else None,
                "used": (name, label) in used})
    return pd.DataFrame(rows)


def costs_table(record: RunRecord) -> pd.DataFrame:
    """Unit costs of a step: whose (assumed before the run, or from its quiet rounds), step_ms, request_us, token_us."""
    rows: list[dict[str, Any]] = [{"whose": "assumed before the run", **{name: record.params[name] for name in COSTS}}]
    if costs := calibrate(record.params, record.prediction["values"], record.results):
        rows.append({"whose": "from its quiet rounds", **costs})
    return pd.DataFrame(rows)


def stagger_table(record: RunRecord) -> pd.DataFrame:
    """Rounds that nobody held: gap_ms, preemptions, model (on the arrivals that the log shows), first and last_step in
    which a request was served for the first time.
    """
    return pd.DataFrame([
        {"gap_ms": seen["gap_ms"], "preemptions": seen["preemptions"], "model": seen["model"],
         "first_step": seen["arrivals"][0] if seen["arrivals"] else None,
         "last_step": seen["arrivals"][-1] if seen["arrivals"] else None}
        for seen in record.results["stagger"]], columns=["gap_ms", "preemptions", "model", "first_step", "last_step"])


def comparison(records: Sequence[RunRecord], *, reported: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Predicted, measured and quoted, one row a quantity and point.

    Args:
        records: runs; a column `<hardware tag> <preset>` each, and one with ` predicted` behind it.
        reported: result name -> point -> figure of the 8x V100 report.

    Columns: quantity, point, those of the records, 8x V100 report.
    """
    rows = []
    labels = list(dict.fromkeys(label for record in records for label in point_labels(record.params)))
    for name, shown in SHOWN.items():
        for label in labels:
            row: dict[str, Any] = {"quantity": shown, "point": label}
            for record in records:
                column = f"{record.hardware_tag} {record.preset}"
                row[f"{column} predicted"] = _plain(_predicted(record, name, label))
                row[column] = _plain(record.results[name].get(label))
            row["8x V100 report"] = _plain(reported.get(name, {}).get(label))
            rows.append(row)
    return pd.DataFrame(rows)


def ratios_table(records: Sequence[RunRecord], *, reported: Mapping[str, float]) -> pd.DataFrame:
    """The small cache against the large one: quantity, predicted and measured by record, 8x V100 report, in percent."""
    shown = {"throughput_pct": "throughput of the large cache's", "tpot_slower_pct": "TPOT slower",
             "ttft_lower_pct": "TTFT lower"}
    rows = []
    for name, text in shown.items():
        row: dict[str, Any] = {"quantity": text}
        for record in records:
            column = f"{record.hardware_tag} {record.preset}"
            row[f"{column} predicted"] = record.prediction["values"]["ratios"][name]
            row[column] = record.results["ratios"].get(name)
        row["8x V100 report"] = reported.get(name)
        rows.append(row)
    return pd.DataFrame(rows)


def _predicted(record: RunRecord, name: str, label: str) -> Any:
    values = record.prediction["values"]
    told = values["points"].get(label)
    if told is None:
        return None
    if name == "kv_tokens":
        return values["tokens"][point_labels(record.params)[label][0]]
    if name in COUNTS:
        return told[COUNTS[name]]
    if name == "peak_running_waiting":
        return f"{told['peak_running']}"
    ours, factor = METRICS[name]
    return factor * told[ours]


def _plain(value: Any) -> Any:
    """One cell: a quantity's median, a list as text, at most two decimals."""
    if isinstance(value, dict):
        value = value["value"]
    if isinstance(value, float):
        return round(value, 2)
    if isinstance(value, list):
        return ", ".join(dict.fromkeys(map(str, value)))
    return value
