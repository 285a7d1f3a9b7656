"""The decode lab without an engine: servers that only count, streams with known stamps, from launch to figures."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.engine.find import Engine, EngineMissing
from labkit.experiments import vllm_decode_roofline as exp
from labkit.hardware import load_profile
from labkit.launch.load_client import Answer, Load, LoadClientError
from labkit.launch.supervise import LaunchError
from labkit.machine import Gpu, detect
from labkit.presets import UsageError, available_presets, build_params
from labkit.records import RecordError, check_run
from tests.decode_stand_ins import LOG, page

CPU = exp.Params(servers=("tiny-qwen2 eager", "tiny-deepseek-v2 eager"), batches=(1, 3), context_tokens=32,
                 output_tokens=16, rounds=2, prompt_tokens=(32, 128), prompt_repeats=3)
STEP_S = 0.02


class FakeServer:
    """Counts what is sent, and says what the prediction wants to hear."""

    host, port, model, startup_s = "127.0.0.1", 1, "lab", 12.0

    def __init__(self, settings, folder, run_dir):
        self.settings, self.argv, self.log = settings, ["python", *settings.arguments()], run_dir / "log.txt"
        config = json.loads((folder / "config.json").read_text())
        told = exp.predict(replace(CPU, servers=(f"{self.name_of(config)} eager",)))["servers"]
        self.told = next(iter(told.values()))
        self.counts = {"prompt": 0, "output": 0, "finished": 0}
        self.is_dead, self.scrapes_behind = False, 0
        assert run_dir.parent.joinpath("prediction.json").is_file()

    @staticmethod
    def name_of(config):
        return {"qwen2": "tiny-qwen2", "deepseek_v2": "tiny-deepseek-v2", "qwen3_moe": "tiny-qwen3-moe"}[
            config["model_type"]]

    def scrape(self):
        counts = dict.fromkeys(self.counts, 0) if self.scrapes_behind else self.counts
        self.scrapes_behind = max(0, self.scrapes_behind - 1)
        return page(blocks=self.told["capacity_blocks"], block_size=self.settings.block_size, **counts)

    def log_text(self):
        return LOG.format(gib=0.01, tokens=self.told["capacity_tokens"])

    def raise_if_dead(self):
        if self.is_dead:
            raise LaunchError("vLLM server died: planted", log_path=Path("log.txt"))


def stream_of(request, *, first_s, output):
    """The bytes of one good answer, a token every STEP_S."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    pieces = [(first_s - 1e-4, head)]
    for k in range(output):
        chunk = {"choices": [{"text": "", "token_ids": [k]}]}
        pieces.append((first_s + k * STEP_S, b"data: " + json.dumps(chunk).encode() + b"\n\n"))
    usage = {"choices": [], "usage": {"prompt_tokens": len(request.prompt_ids), "completion_tokens": output}}
    last = pieces[-1][0] + 1e-4
    return [*pieces, (last, b"data: " + json.dumps(usage).encode() + b"\n\ndata: [DONE]\n\n")]


@pytest.fixture
def engine(monkeypatch, tmp_path):
    """A machine whose engine is made up; gives what was started and sent."""
    seen = {"servers": [], "env": [], "prompts": [], "break": lambda server: None}

    @contextlib.contextmanager
    def start(settings, *, engine_python, model, run_dirs, explain, env, **_):
        folders = [Path(one.extra[one.extra.index("--model") + 1]) for one in settings]
        servers = [FakeServer(*each) for each in zip(settings, folders, run_dirs)]
        seen["servers"] += servers
        seen["env"].append(env)
        yield servers

    def send(plan, *, host, port, model, concurrency, timeout_s, max_lag_p99_s):
        server = seen["servers"][-1] if len(seen["servers"]) == 1 else seen["now"]
        answers = []
        for i, request in enumerate(plan):
            seen["prompts"].append(request.prompt_ids)
            answers.append(Answer(index=i, planned_s=None, sent_s=100.0, ended_s=0.0, pieces=stream_of(
                request, first_s=100.1 + i * STEP_S, output=request.output_tokens)))
            server.counts["prompt"] += len(request.prompt_ids)
            server.counts["output"] += request.output_tokens
            server.counts["finished"] += 1
        assert concurrency == len(plan) and max_lag_p99_s == float("inf")  # a CPU: no time is judged
        seen["break"](server)
        return Load(answers=answers, started_s=100.0, ended_s=101.0, loop_lag_s=[0.003], cpu_s=0.0)

    def drive(params, name, server, progress):
        seen["now"] = server
        return real(params, name, server, progress)

    real = exp._drive
    monkeypatch.setattr(exp, "_drive", drive)
    monkeypatch.setattr(exp, "vllm_servers", start)
    monkeypatch.setattr("labkit.launch.server.send_load", send)
    monkeypatch.setattr(exp, "find_engine", lambda device: Engine(
        python=Path("python"), version="0.32.0", torch="2.13.0", device=device))
    monkeypatch.setenv("LABKIT_RUNS_DIR", str(tmp_path))
    return seen


def test_a_run_from_launch_to_figures(engine, tmp_path):
    record = exp.run(CPU, preset="smoke")
    assert record.status == "ok", record.failure or [o for o in record.oracles if not o.passed]
    assert check_run(tmp_path / exp.SLUG / record.run_id) == [] and exp.check(record)["passed"].all()
    assert record.results["engine"]["vllm"] == "0.32.0"
    assert record.results["server"]["tiny-qwen2 eager"]["client_lag_ms"] == 3.0
    assert record.results["itl_ms"]["tiny-qwen2 eager"]["3"]["value"] == pytest.approx(1e3 * STEP_S)
    assert record.results["itl_ms"]["tiny-qwen2 eager"]["3"]["n"] == 2 * 3 * (15 - 2)
    assert record.results["ttft_ms"]["tiny-deepseek-v2 eager"]["128"]["n"] == 3
    assert record.results["ttft_ms"]["tiny-deepseek-v2 eager"]["128"]["value"] == pytest.approx(100)
    frame = exp.table(record)
    assert len(frame) == 2 * (2 + 2) and frame["p50_ms"].notna().all()
    assert frame["model"].tolist() == ["tiny-qwen2"] * 4 + ["tiny-deepseek-v2"] * 4
    assert frame["size"].tolist() == [1, 3, 32, 128] * 2
    figures = exp.figures(record)
    assert set(figures) == {"step_time", "against_bytes", "where_it_goes", "prompt_time"}
    assert all(fig.data and fig.layout.meta["caption"] for fig in figures.values())
    side = exp.compare([record]).set_index("quantity")
    assert side.loc["tiny-qwen2 eager: ITL at batch 3 (ms)", f"{record.hardware_tag} smoke"] == pytest.approx(20)
    assert side.loc["tiny-qwen2 eager: KV capacity (tokens)", f"{record.hardware_tag} smoke"] == 2**30 // 512
    assert exp.load(record.run_id, expect=CPU).run_id == record.run_id
    with pytest.raises(RecordError, match="rounds"):
        exp.load(record.run_id, expect=replace(CPU, rounds=3))


def test_prompts_of_a_server_are_all_different_and_those_of_two_alike(engine):
    exp.run(CPU)
    half = (1 + 3) * (1 + 2) + 2 * (1 + 3)
    assert len(set(engine["prompts"][:half])) == half and engine["prompts"][:half] == engine["prompts"][half:]


def test_servers_get_what_was_predicted_for_them(engine):
    exp.run(replace(CPU, at_once=2))
    first, second = (server.settings for server in engine["servers"])
    assert (first.block_size, second.block_size) == (32, 16)  # the latent's kernel takes 16 only
    assert first.enforce_eager and not first.enable_prefix_caching and first.kv_cache_memory_bytes == 2**30
    assert first.max_num_seqs == 3 and first.max_model_len == 192
    assert engine["env"] == [{"VLLM_CPU_KVCACHE_SPACE": "1"}]


def test_graphs_are_of_the_batches_that_are_sent():
    params = build_params(exp.Params, exp.SLUG, "gpu1")
    graph = exp._settings(params, "qwen2.5-7b graph", Path("m"))
    assert not graph.enforce_eager and graph.extra[:2] == ("--model", "m")
    config = json.loads(graph.extra[graph.extra.index("--compilation-config") + 1])
    assert config == {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 8, 32]}
    eager = exp._settings(params, "qwen2.5-7b eager", Path("m"))
    assert eager.enforce_eager and "--compilation-config" not in eager.extra
    assert exp._environment(params) == exp.UNIFORM_ROUTING


def test_a_page_that_lags_behind_is_waited_for(engine, monkeypatch):
    monkeypatch.setattr(exp.time, "sleep", lambda _: None)
    engine["break"] = lambda server: setattr(server, "scrapes_behind", 2)
    server = FakeServer.__new__(FakeServer)
    server.counts, server.scrapes_behind = {"prompt": 4, "output": 2, "finished": 2}, 2
    server.settings, server.told = exp._settings(CPU, "tiny-qwen2 eager", Path("m")), {"capacity_blocks": 1}
    assert exp._settled(server, page(), 2) == page(blocks=1, block_size=32, prompt=4, output=2, finished=2)


def test_a_server_that_dies_fails_the_run_and_keeps_what_there_is(engine):
    def die(server):
        server.is_dead = len(engine["servers"]) == 2

    engine["break"] = die
    record = exp.run(CPU)
    assert record.status == "failed" and "planted" in record.failure["message"]
    assert record.samples["tiny-qwen2 eager decode 1"]["values"]
    with pytest.raises(RecordError, match="planted"):
        exp.check(record)


def test_a_client_that_lags_fails_the_run_in_one_line(engine):
    def lag(server):
        raise LoadClientError("the client's own loop woke 58 ms late")

    engine["break"] = lag
    record = exp.run(CPU)
    assert record.status == "failed"
    assert record.failure["message"] == "load on server tiny-qwen2-eager: the client's own loop woke 58 ms late"


def test_wrong_counts_fail_an_oracle(engine):
    engine["break"] = lambda server: server.counts.update(output=server.counts["output"] + 1)
    record = exp.run(CPU)
    assert record.status == "failed"
    assert [oracle.name for oracle in record.oracles if not oracle.passed] == ["server_counts_alike"]


def test_no_engine_is_a_usage_error_of_one_line(monkeypatch):
    def none(device):
        raise EngineMissing("vLLM is not installed: do this")

    monkeypatch.setattr(exp, "find_engine", none)
    with pytest.raises(UsageError, match="not installed"):
        exp.run(CPU)


def test_no_gpu_is_a_usage_error(engine, monkeypatch):
    monkeypatch.setattr("labkit.conduct.machine.detect", lambda: replace(detect(), gpus=()))
    with pytest.raises(UsageError, match="no GPU"):
        exp.run(exp.Params(device="cuda", servers=("qwen2.5-7b graph",)))


def test_prediction_takes_the_profile_of_the_gpu_that_is_there(monkeypatch):
    here = replace(detect(), gpus=(Gpu(index=0, name="NVIDIA H200"),))
    monkeypatch.setattr("labkit.conduct.machine.detect", lambda: here)
    params = build_params(exp.Params, exp.SLUG, "gpu1")
    assert exp.predict(params) == exp.predict(params, hardware=load_profile("h200"))
    unknown = exp.predict(params, hardware=load_profile("generic_cpu"))
    assert unknown["rates"]["source"] == "assumed" and unknown["rates"]["datasheet_bytes_per_s"] is None


@pytest.mark.parametrize("preset", available_presets(exp.SLUG))
def test_batches_of_every_preset_fit_into_the_cache(preset):
    """Else requests would be preempted, and a batch never be whole."""
    params = build_params(exp.Params, exp.SLUG, preset)
    for told in exp.predict(params)["servers"].values():
        assert params.batches[-1] * (params.context_tokens + params.output_tokens) < told["capacity_tokens"]


@pytest.mark.parametrize(("wrong", "name"), [
    ({"device": "tpu"}, "device"), ({"servers": ()}, "servers"), ({"servers": ("tiny-qwen2",)}, "servers"),
    ({"servers": ("tiny-qwen2 graph",)}, "servers"), ({"servers": ("a eager", "a eager")}, "servers"),
    ({"batches": (8, 1)}, "batches"), ({"batches": ()}, "batches"), ({"output_tokens": 7}, "output_tokens"),
    ({"prompt_tokens": (1, 9000)}, "max_num_batched_tokens"), ({"rounds": 0}, "rounds"), ({"at_once": 0}, "at_once"),
    ({"cache_mib": 100}, "cache_mib"), ({"memory_share": 1.0}, "memory_share"), ({"launch_us": 0}, "launch_us"),
])
def test_bad_parameters_name_the_argument(wrong, name):
    with pytest.raises(ValueError, match=name):
        exp.Params(**wrong)
