"""What must hold for a run of the prefix-cache lab: the engine's counters against the model, arithmetic, the client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labkit.analyze.prefix_cache import Line, counted, of_kind, steps_of
from labkit.calc.prefix_cache import reusable_tokens
from labkit.calc.prefix_phases import PHASES, ROUTINGS
from labkit.records import Oracle


def oracles(
    lines: Sequence[Line], results: Mapping[str, Any], predicted: Mapping[str, Any]
) -> list[Oracle]:
    """The counters are what they should be.

    Args:
        lines: of the run.
        results: of the record.
        predicted: of the slice's `predict`.
    """
    return [
        *_against_the_model(of_kind(lines, "step"), predicted["servers"]),
        *_closed_forms(lines, results, predicted),
        _equal("capacity", "tokens of each cache, as the server's log says", predicted["cap_tokens"],
               results["cap_tokens"]),
        _equal("same_in_every_start", "phases whose hit tokens differ between starts of one setting", [],
               sorted(f"{case} {name}" for case, phases in results["hit_tokens_by_start"].items()
                      for name, values in phases.items() if len(set(values)) > 1)),
        _equal("counters_are_cumulative", "differences of pages add up", True, results["counter_diff"]),
        _equal("nothing_left", "servers whose processes were not all seen, or still run after the end", [],
               [line["server"] for line in of_kind(lines, "end") if line["num_left"] or line["num_processes"] < 2]),
        _equal("every_server_ended", "servers seen to the end", sorted(predicted["servers"]),
               sorted(line["server"] for line in of_kind(lines, "end"))),
    ]  # fmt: skip


def _against_the_model(steps: Sequence[Line], servers: Mapping[str, Any]) -> list[Oracle]:
    """All counters of all steps equal to those of the scheduler model, server by server, step by step."""
    wanted = {(server, name): counts for server, found in servers.items() for name, counts in found.items()}
    seen = {(line["server"], line["name"]): counted(line) for line in steps}
    odd = [f"{server} {name}: {key} {value}, predicted {wanted[server, name][key]}"
           for (server, name), counts in seen.items() if (server, name) in wanted
           for key, value in counts.items() if value != wanted[server, name][key]]
    missing = [" ".join(key) for key in [*(set(wanted) - set(seen)), *(set(seen) - set(wanted))]]
    return [_equal("engine_equals_model", "counters of a step that are not as the scheduler model says", [], odd),
            _equal("every_step_seen", "steps predicted but not run, or run but not predicted", [], sorted(missing))]


def _closed_forms(
    lines: Sequence[Line], results: Mapping[str, Any], predicted: Mapping[str, Any]
) -> list[Oracle]:
    """The same by block arithmetic alone, which shares no code with the model."""
    found = []
    for case, phases in predicted["closed_form"].items():
        want = {name: value for name, value in phases.items() if value is not None}
        seen = {name: results["hit_tokens"].get(case, {}).get(name) for name in want}
        found.append(_equal(f"block_arithmetic_{case.replace(' ', '_')}", "hit tokens by phase", want, seen))
    small, arithmetic = results["hit_tokens"].get("1 GiB", {}), predicted["closed_form"]["1 GiB"]
    if arithmetic["revisit"] == arithmetic["cold"]:
        found.append(_equal("revisit_is_cold", "hit tokens of the small cache's revisit and of an empty cache",
                            small.get("cold"), small.get("revisit")))
    block = predicted["block_size"]
    tails = {}
    for name in results["tail_hits"]:
        kind, length = name.split()
        shared = int(length)
        tails[name] = reusable_tokens(shared_tokens=shared, block_tokens=block,
                                      prompt_tokens=shared if kind == "whole" else None)
    found.append(_equal("partial_tails", "hit tokens by shared length: whole blocks, never a prompt's last token",
                        tails, results["tail_hits"]))
    tenants = results["tenant_hits"]
    found.append(_equal("salts_isolate", "hit tokens of equal prompts under another salt, and under none", [0, 0],
                        [tenants.get("tenant b"), tenants.get("no salt")]))
    found.append(_equal("salt_is_kept", "hit tokens of the same tenant, the same prompts again",
                        predicted["tenant_again"], tenants.get("tenant a again")))
    routed = {name: [counted(line)["hit_tokens"] for line in steps_of(lines, name)] for name in ROUTINGS}
    found.append(_equal("routing_arithmetic", "hit tokens at each replica: requests without the first of each prefix",
                        predicted["routed_hits"], routed))
    return found


def drill_oracle(drill: Mapping[str, Any]) -> Oracle:
    """A stand-in for a server outlives SIGTERM, its child outlives it, and neither outlives SIGKILL of the group."""
    names = ("term_ignored", "child_survived", "left_after_group_kill")
    return _equal("group_kill", "of a stand-in that ignores SIGTERM: " + ", ".join(names), [True, True, 0],
                  [drill.get(name) for name in names])


def trust(params: Mapping[str, Any], lines: Sequence[Line]) -> list[Oracle]:
    """The counters can be believed: one life of each server, pages that agree with themselves and with the client.

    Args:
        params: as recorded.
        lines: of the run.

    Returns: `no_restart` first: where it fails there are no differences to look at.
    """
    steps = of_kind(lines, "step")
    pages, client = _pages(steps), _client(params, [line for line in steps if line["pair"].get("valid")])
    return [*pages, *client]


def _client(params: Mapping[str, Any], steps: Sequence[Line]) -> list[Oracle]:
    """What the client sent is what the server counted, and nothing failed."""
    reasons = sorted({reason for line in steps for reason in line["failures"]})
    prompt = params["prefix_tokens"] + params["suffix_tokens"]
    phases = [line for line in steps if line["name"] in PHASES]
    return [
        _equal("no_failures", "failed requests", 0, sum(line["num_failed"] for line in steps), "; ".join(reasons)),
        _equal("prompt_tokens", "steps whose prompt tokens differ between the client's own count, the answers and the "
               "server's counter", [], [_name(line) for line in steps if not (
                   line["sent_prompt_tokens"] == line["usage_prompt_tokens"] == line["pair"].get("prompt_tokens"))]),
        _equal("query_tokens", "phases whose queries are not requests x prompt", [], [
            _name(line) for line in phases
            if counted(line)["query_tokens"] != params["num_requests"] * prompt]),
        _equal("requests_finished", "steps in which the server finished another number of requests", [], [
            _name(line) for line in steps if line["pair"].get("requests_finished") != line["num_requests"]]),
    ]  # fmt: skip


def _pages(steps: Sequence[Line]) -> list[Oracle]:
    """The metrics pages themselves can be believed."""
    broken = [f"{_name(line)}: {check['name']}" for line in steps for check in line["pair"].get("checks") or []
              if not check["passed"]]
    return [
        _equal("no_restart", "pairs of pages that are not of one life of the server", [],
               [f"{_name(line)}: {line['pair'].get('error')}" for line in steps if not line["pair"].get("valid")]),
        _equal("identities", "identities of the counters that do not hold", [], broken),
        _equal("identities_checked", "steps whose page says too little to check anything", [],
               [_name(line) for line in steps if not line["pair"].get("checks")]),
    ]  # fmt: skip


def _name(line: Line) -> str:
    return f"{line['server']} {line['name']}"


def _equal(name: str, detail: str, expected: Any, seen: Any, more: str = "") -> Oracle:
    return Oracle(name=name, passed=seen == expected, expected=expected, seen=seen,
                  detail=f"{detail}: {more}" if more else detail)
