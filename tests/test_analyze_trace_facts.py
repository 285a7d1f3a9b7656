"""What counts as what in a trace: classes, collectives, steps, ranks, warnings; answers worked out by hand."""

from __future__ import annotations

import json

import pytest

from labkit.analyze.trace import analyze_trace, trace_events

GEMM = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def kernel(name, ts, dur, *, stream=7, device=0, correlation=None, cat="kernel", **args):
    args = {"device": device, "stream": stream, "correlation": correlation} | args
    return {"ph": "X", "cat": cat, "name": name, "pid": device, "tid": stream, "ts": ts, "dur": dur, "args": args}


def launch(correlation, ts, *, cat="cuda_runtime", name="cudaLaunchKernel", pid=100):
    args = {"correlation": correlation}
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": 1, "args": args}


def step(number, ts, dur, *, pid=100, cat="user_annotation"):
    return {"ph": "X", "cat": cat, "name": f"ProfilerStep#{number}", "pid": pid, "tid": pid, "ts": ts, "dur": dur}


def cpu(name, ts, dur, *, tid=1, pid=100, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


@pytest.fixture
def analyze(tmp_path):
    def run(events, *, name="trace.json", **header):
        path = tmp_path / name
        path.write_text(json.dumps(header | {"traceEvents": events}))
        answer = analyze_trace(path)
        assert answer == analyze_trace(path, use_msgspec=False)
        assert json.loads(json.dumps(answer, allow_nan=False)) == answer  # text keys, no NaN
        return answer

    return run


COMM_NAMES = [
    NCCL,
    "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)",
    "ncclSymkDevKernel_AllGather_LL(ncclSymkDevWorkArgs const*)",
    "ncclkernel_allreduce",
    "void ncclFunction<int>(int)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)",
    "mscclKernel_Sum_half_Simple(ncclDevComm*)",
    "void deep_ep::intranode::dispatch<8, 1024>(int4*)",
    "nvshmemi_transfer_rma_nbi<0>(void*)",
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 2>(vllm::RankData*)",
    "two_shot_all_reduce_kernel<c10::BFloat16>(c10::BFloat16**)",
    "(anonymous namespace)::multimem_all_reduce_kernel<float>(float*)",
    "oneShotAllReduceKernel<half>(int)",
]
COMPUTE_NAMES = [
    GEMM,
    "void at::native::vectorized_elementwise_kernel<4, ncclDevKernelArgsStorage<4096ul>>(int)",
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(float)",
    "hip_fused_bias_gelu_kernel",
    "Cijk_Ailk_Bljk_BBS_BH_MT256x256x64",
    "triton_red_fused_native_layer_norm_reduce_scatter_like_3",
    "my_nccl_benchmark_gemm",
    "void (anonymous namespace)::softmax_warp_forward<float>(float*)",
    "kernel",
    "",
]


@pytest.mark.parametrize("name", COMM_NAMES)
def test_communication_kernels(analyze, name):
    assert analyze([kernel(name, 0, 5)])["n_comm"] == 1


@pytest.mark.parametrize("name", COMPUTE_NAMES)
def test_everything_else_on_a_device_is_compute(analyze, name):
    answer = analyze([kernel(name, 0, 5)])
    assert (answer["n_comm"], answer["n_compute"], answer["overlap_fraction"]) == (0, 1, None)


def test_nccl_arguments_make_a_kernel_communication_but_not_a_copy(analyze):
    answer = analyze(
        [
            kernel("mystery", 0, 5, **{"Collective name": "allreduce"}),
            kernel("Memcpy DtoD", 9, 5, cat="gpu_memcpy", **{"Collective name": "allgather"}),
        ]
    )
    assert (answer["n_comm"], answer["n_memory"]) == (1, 1)
    assert list(answer["collectives"]) == ["all_reduce"]


def test_zero_length_communication_has_no_fraction(analyze):
    answer = analyze([kernel(NCCL, 3, 0), kernel(GEMM, 0, 9)])
    assert (answer["n_comm"], answer["comm_us"], answer["overlap_fraction"]) == (1, 0.0, None)


def test_collectives_by_name_with_bytes_as_nccl_tests_counts_them(analyze):
    def comm(ts, collective, inside, out, dtype, **more):
        args = {"Collective name": collective, "In msg nelems": inside, "Out msg nelems": out, "dtype": dtype}
        return kernel("ncclDevKernel_SendRecv", ts, 1.5, **args, **more)

    answer = analyze(
        [
            comm(0, "allreduce", 100, 100, "BFloat16"),
            comm(2, "allreduce", 7, 7, "Float"),
            comm(4, "_allgather_base", 10, 80, "Half"),
            comm(6, "reduce_scatter_tensor_coalesced", 80, 10, "Float8_e4m3fn"),
            comm(8, "all_to_allv", 50, 60, "Long", **{"In split size": "[11, 12, 13, 14]"}),
            comm(10, "broadcast", 5, 5, "NewType"),
        ]
    )
    seen = {name: (entry["count"], entry["bytes"]) for name, entry in answer["collectives"].items()}
    assert seen == {
        "all_reduce": (2, 100 * 2 + 7 * 4),
        "all_gather": (1, 80 * 2),
        "reduce_scatter": (1, 80),
        "all_to_all": (1, 60 * 8),
        "broadcast": (1, None),
    }
    assert answer["collectives"]["all_reduce"]["sum_us"] == 3.0
    assert answer["warnings"] == ["uneven all-to-all: bytes overstate what was sent"]


def test_even_splits_are_no_reason_to_warn(analyze):
    args = {"Collective name": "all_to_allv", "In split size": [4, 4], "Out split size": "[4, 4]"}
    assert analyze([kernel("ncclDevKernel_SendRecv", 0, 1, **args)])["warnings"] == []


def test_a_kernel_name_names_the_collective_only_where_it_can(analyze):
    names = ["ncclKernel_ReduceScatter_RING", "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "ncclDevKernel_Generic_1"]
    answer = analyze([kernel(name, 2 * i, 1) for i, name in enumerate(names)])
    seen = {name: (entry["count"], entry["bytes"]) for name, entry in answer["collectives"].items()}
    assert seen == {"reduce_scatter": (1, None), "unknown": (2, None)}


def test_no_protocol_anywhere_in_the_answer(analyze):
    text = json.dumps(analyze([kernel(NCCL, 0, 5), kernel("ncclDevKernel_AllReduce_TREE_LL128", 9, 1)]))
    assert not any(word in text for word in ("RING", "TREE", "LL128", "protocol"))


def test_steps_follow_the_launch_even_when_work_runs_later(analyze):
    events = [
        step(7, 0, 100),
        step(8, 100, 100),
        launch(1, 90),
        kernel(GEMM, 150, 10, correlation=1),  # launched in 7, runs during 8
        launch(2, 110),
        kernel(NCCL, 250, 20, stream=20, correlation=2),  # runs after 8 ended
        launch(4, 100.5, cat="cuda_driver", name="cuLaunchKernelEx"),  # inside the runtime call of the same number,
        launch(4, 99.5),  # which began in 7
        kernel(GEMM, 400, 3, correlation=4),
        launch(3, 205),
        kernel(GEMM, 300, 5, correlation=3),  # launched outside
        kernel(NCCL, 1, 4, stream=20, correlation=99),  # launched before recording began
    ]
    answer = analyze(events)
    assert {k: (s["compute_us"], s["comm_us"]) for k, s in answer["steps"].items()} == {"7": (13, 0), "8": (0, 20)}
    assert (answer["outside_steps"]["compute_us"], answer["outside_steps"]["comm_us"]) == (5, 4)
    assert answer["warnings"] == ["kernels without a launch in the file"]
    assert answer["warning_details"]["kernels without a launch in the file"].startswith("1 of 5")


def test_step_edges_are_half_open_and_steps_belong_to_their_process(analyze):
    events = [step(1, 0, 100, pid=5), step(1, 0, 50, pid=6), step(2, 50, 100, pid=6), launch(1, 50, pid=6)]
    events += [launch(2, 99.999, pid=5), launch(3, 100, pid=5)]
    events += [kernel(GEMM, 200 + 10 * i, i, correlation=i) for i in (1, 2, 3)]
    answer = analyze(events)
    assert {k: s["compute_us"] for k, s in answer["steps"].items()} == {"1": 2, "2": 1}
    assert answer["outside_steps"]["compute_us"] == 3


def test_one_graph_launch_has_many_kernels(analyze):
    events = [step(4, 0, 10), launch(1, 5, name="cudaGraphLaunch")]
    events += [kernel(GEMM, 20 + i, 1, correlation=1) for i in range(5)]
    assert analyze(events)["steps"]["4"]["n_compute"] == 5


def test_kernel_before_its_launch_is_flagged_and_kept(analyze):
    answer = analyze(
        [launch(1, 50), kernel(GEMM, 45.5, 10, correlation=1), launch(2, 70), kernel(NCCL, 70, 5, correlation=2)]
    )
    assert answer["warnings"] == ["kernel starts before its launch"]
    assert "1 of 2, by up to 4.5 us" in answer["warning_details"]["kernel starts before its launch"]
    assert answer["compute_us"] == 10


def test_several_devices_are_never_mixed(analyze):
    answer = analyze([kernel(NCCL, 0, 100, device=3), kernel(GEMM, 0, 100, device=11), kernel(GEMM, 50, 10, device=3)])
    assert list(answer["devices"]) == ["3", "11"]
    assert answer["devices"]["3"]["overlap_us"] == 10 and answer["devices"]["11"]["overlap_us"] == 0
    assert answer["comm_us"] is None and answer["overlap_fraction"] is None
    assert (answer["n_comm"], answer["n_compute"]) == (1, 2)


def test_repeated_events_count_once(analyze):
    twice = [kernel(NCCL, 0, 10, stream=20, correlation=1), kernel(GEMM, 0, 10, correlation=2)] * 2
    answer = analyze([*twice, kernel(GEMM, 0, 10, correlation=3), kernel(GEMM, 0, 10, stream=8, correlation=2)])
    assert (answer["n_comm"], answer["n_compute"]) == (1, 3)
    assert answer["warnings"] == ["duplicate events dropped"]
    assert answer["warning_details"]["duplicate events dropped"].startswith("2 events")


@pytest.mark.parametrize(
    ("event", "warning"),
    [
        (kernel(GEMM, 5, -1), "negative duration"),
        (kernel(GEMM, None, 1), "events without a usable time"),
        (kernel(GEMM, 5, None), "events without a usable time"),
        (kernel(GEMM, "soon", 1), "events without a usable time"),
        (kernel(GEMM, 1e30, 1), "events without a usable time"),
        (kernel(GEMM, 10**400, 1), "events without a usable time"),
        (kernel(GEMM, 5, 1e19), "events without a usable time"),
        (kernel(GEMM, float("nan"), 1), "events without a usable time"),
        (kernel(GEMM, 5, float("inf")), "events without a usable time"),
        (kernel(GEMM, [5], 1), "events without a usable time"),
        (
            {"ph": "B", "cat": "kernel", "name": GEMM, "pid": 0, "tid": 7, "ts": 5},
            "begin or end events without a partner",
        ),
        ({"ph": "E", "pid": 0, "tid": 7, "ts": 5}, "begin or end events without a partner"),
    ],
)
def test_unusable_events_are_left_out_and_counted(analyze, event, warning):
    answer = analyze([kernel(GEMM, 0, 4), event, kernel(NCCL, 2, 4, stream=20)])
    assert (answer["n_compute"], answer["compute_us"], answer["overlap_us"]) == (1, 4, 2)
    assert answer["warnings"] == [warning]


def test_a_duration_over_its_successors_is_flagged_and_clipped(analyze):
    events = [kernel(GEMM, 10 * i, 8, correlation=i) for i in range(20)]
    events[3]["dur"] = 3_400_000  # seconds, as ROCm's tracer wrote it
    answer = analyze([*events, kernel(NCCL, 0, 200, stream=20)])
    assert answer["warnings"] == ["duration overruns the next kernel on its stream"]
    assert answer["compute_us"] == 3 * 8 + 3_400_000
    assert answer["clipped"]["compute_us"] == 19 * 8 + 10
    assert answer["clipped"]["overlap_us"] == 19 * 8 + 10


def test_small_overlaps_of_dependent_launches_are_legal(analyze):
    answer = analyze([kernel(GEMM, 10 * i, 12.5, correlation=i) for i in range(50)])
    assert answer["warnings"] == [] and answer["compute_us"] == 502.5 and "clipped" not in answer


def test_begin_and_end_of_the_same_name_pair_inside_each_other(analyze):
    def mark(ph, name, ts):
        return {"ph": ph, "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts}

    answer = analyze(
        [
            mark("B", "a", 0),
            mark("B", "b", 2),
            mark("E", "a", 5),
            mark("B", "a", 6),
            mark("E", "b", 7),
            mark("E", "a", 9),
        ]
    )
    assert (answer["n_compute"], answer["compute_us"]) == (3, 9)
    assert answer["warnings"] == []


@pytest.mark.parametrize(
    ("text", "total", "warnings"),
    [
        ("1712195495506160.0", 100.5, ["timestamp resolution 0.25 us"]),
        ("1712195495506160.25", 100.5, ["timestamp resolution 0.25 us"]),
        ("1712195495506160.2", 100.5, ["timestamp resolution 0.25 us"]),  # shortest text of the double ...160.25
        ("1712195495506160.123", 100.5, []),  # the writer knew more than a double holds
        ("1712195495506160", 100.5, []),
        ('"1712195495506160.5"', 100.5, []),  # text keeps what it says
    ],
)
def test_epoch_microseconds(analyze, tmp_path, text, total, warnings):
    content = json.dumps({"traceEvents": [kernel(NCCL, "HERE", 100.5)]}).replace('"HERE"', text)
    path = tmp_path / "epoch.json"
    path.write_text(content)
    answer = analyze_trace(path)
    assert answer["comm_us"] == total and answer["warnings"] == warnings
    assert answer == analyze_trace(path, use_msgspec=False)


def test_one_nanosecond_survives_at_epoch_scale(tmp_path):
    events = [kernel(NCCL, "AT 1", 0.002, stream=20), kernel(GEMM, "AT 2", 0.002)]
    content = json.dumps({"traceEvents": events})
    content = content.replace('"AT 1"', "1712195495506160.001").replace('"AT 2"', "1712195495506160.002")
    path = tmp_path / "ns.json"
    path.write_text(content)
    assert analyze_trace(path)["overlap_us"] == 0.001


@pytest.mark.parametrize(
    ("name", "header", "rank", "source"),
    [
        ("a.json", {"distributedInfo": {"rank": 3}}, 3, "distributedInfo"),
        ("a.json", {"distributedInfo": {"rank": "5"}}, 5, "distributedInfo"),
        ("run7_rank5.pt.trace.json", {}, 5, "file name"),
        ("rank-12.json", {}, 12, "file name"),
        ("node17_RANK_003_of_8.json", {}, 3, "file name"),
        ("trace.rank=4.json", {}, 4, "file name"),
        ("node12-h200_3456.1712195495506160.pt.trace.json", {}, None, None),
        ("frank5.json", {}, None, None),
        ("ranks4.json", {}, None, None),
        ("local_rank3.json", {}, None, None),
        ("localrank3_rank11.json", {}, 11, "file name"),
        ("rank5.json", {"distributedInfo": None}, 5, "file name"),
        ("rank5.json", {"distributedInfo": {"rank": -1}}, 5, "file name"),
    ],
)
def test_whose_trace_it_is(analyze, name, header, rank, source):
    answer = analyze([kernel(GEMM, 0, 1)], name=name, **header)
    assert (answer["rank"], answer["rank_source"], answer["warnings"]) == (rank, source, [])


def test_contents_beat_the_file_name_and_say_so(analyze):
    answer = analyze([kernel(GEMM, 0, 1)], name="rank0.json", distributedInfo={"rank": 2, "world_size": 4})
    assert (answer["rank"], answer["world_size"]) == (2, 4)
    assert answer["warnings"] == ["rank in the file name differs"]


def test_table_for_timelines(tmp_path):
    path = tmp_path / "t.json"
    events = [step(1, 0, 10), launch(1, 1), launch(2, 20)]
    nccl = {"Collective name": "allreduce", "In msg nelems": 3, "Out msg nelems": 3, "dtype": "Float"}
    events += [kernel(NCCL, 5.5, 2, stream=20, correlation=1, **nccl), kernel(GEMM, 4, 1, correlation=2)]
    path.write_text(json.dumps({"traceEvents": [*events, kernel("Memset", 9, 1, cat="gpu_memset")]}))
    table = trace_events(path)
    assert table["cls"].tolist() == ["compute", "comm", "memory"]
    assert table[["start_ns", "dur_ns"]].to_numpy().tolist() == [[4000, 1000], [5500, 2000], [9000, 1000]]
    assert table["step"].isna().tolist() == [True, False, True] and table["step"][1] == 1
    assert table["collective"].tolist() == [None, "all_reduce", None]
    assert table["bytes"].isna().tolist() == [True, False, True] and table["bytes"][1] == 12
    assert (table["stream"].tolist(), table["device"].tolist()) == ([7, 20, 7], [0, 0, 0])


def test_an_empty_trace_gives_an_empty_table(tmp_path):
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    assert len(trace_events(path)) == 0


def test_cpu_operators_count_once_and_without_the_calls_that_enqueue(analyze):
    events = [
        {"ph": "M", "name": "thread_name", "pid": 100, "tid": 2, "args": {"name": "thread 2 (pt_gloo_runloop)"}},
        step(1, 0, 100),
        cpu("evaluate_function: AddmmBackward0", 0, 40),
        cpu("aten::mm", 5, 30),  # inside the outer one
        cpu("c10d::allreduce_", 20, 10),  # enqueues only
        cpu("DistributedDataParallel.forward", 0, 90, cat="user_annotation"),
        cpu("aten::add", 60, 5),
        cpu(
            "gloo:all_reduce", 25, 50, tid=2, cat="user_annotation", **{"Input Dims": [[2, 3]], "Input type": ["float"]}
        ),
        cpu("aten::copy_", 30, 10, tid=2),  # the collective's own work
    ]
    answer = analyze(events)
    # compute 0..20, 30..40, 60..65; communication 25..75
    assert (answer["n_comm"], answer["n_compute"], answer["device_kind"]) == (1, 3, "cpu")
    assert (answer["compute_us"], answer["comm_us"], answer["overlap_us"]) == (35, 50, 15)
    assert answer["collectives"]["all_reduce"]["bytes"] == 24
    assert list(answer["devices"]) == ["cpu"] and answer["steps"]["1"]["n_comm"] == 1


def test_old_gloo_annotation_on_the_calling_thread_hides_no_compute(analyze):
    events = [cpu("gloo:all_reduce", 0, 50), cpu("aten::mm", 10, 20), cpu("aten::add", 60, 5)]
    answer = analyze(events)
    assert (answer["comm_us"], answer["compute_us"], answer["overlap_us"]) == (50, 25, 20)


def test_device_work_leaves_cpu_operators_out(analyze):
    answer = analyze([cpu("aten::mm", 0, 50), kernel(GEMM, 10, 5), cpu("gloo:barrier", 0, 9, cat="user_annotation")])
    assert (answer["n_comm"], answer["n_compute"], answer["compute_us"], answer["device_kind"]) == (0, 1, 5, "gpu")


def test_a_cpu_only_recording_of_an_nccl_job_says_that_communication_is_unknown(analyze):
    events = [cpu("aten::mm", 0, 50), cpu("nccl:all_reduce", 10, 5, cat="user_annotation")]
    answer = analyze(events)
    assert answer["warnings"] == ["device work was not recorded"]
    assert answer["comm_us"] is None and answer["n_comm"] is None and answer["compute_us"] == 50


def test_annotations_alone_are_no_work(analyze):
    answer = analyze([cpu("nccl:all_reduce", 0, 9, cat="gpu_user_annotation"), cpu("f", 0, 9, cat="python_function")])
    assert (answer["n_comm"], answer["n_compute"], answer["overlap_fraction"]) == (0, 0, None)
    assert answer["warnings"] == ["no device or operator work in the file"]


def test_several_processes_in_one_cpu_file_stay_apart(analyze):
    events = [cpu("aten::mm", 0, 50, pid=1), cpu("gloo:all_reduce", 0, 50, pid=2, tid=9, cat="user_annotation")]
    answer = analyze(events)
    assert list(answer["devices"]) == ["cpu:1", "cpu:2"]
    assert answer["devices"]["cpu:2"]["overlap_us"] == 0
