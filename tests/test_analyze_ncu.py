"""Nsight Compute's CSV: every layout, unit and failure text that it is known to print, and files cut anywhere."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import zlib

import pytest

from labkit.analyze.kinds import KINDS, UnreadableInput
from labkit.analyze.ncu_csv import parse_ncu_csv
from labkit.analyze.ncu_messages import ADMIN_CHANGE, NO_PERMISSION
from labkit.analyze.ncu_values import normal_unit, parse_value, uses_decimal_comma
from tests.test_analyze_fuzz import FORMATS, check, damaged

META = [
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
]
ROUNDS = 5 * int(os.environ.get("LABKIT_FUZZ_ROUNDS", "40"))


def text_of(rows, *, delimiter=",", quoting=csv.QUOTE_ALL):
    """The rows as a CSV text, written by the standard library: an oracle that shares no code with the parser."""
    out = io.StringIO()
    csv.writer(out, delimiter=delimiter, quoting=quoting, lineterminator="\n").writerows(rows)
    return out.getvalue()


def meta(number, name="k", pid=7):
    return [str(number), str(pid), "python3", "127.0.0.1", name, "1", "7", "(128, 1, 1)", "(4, 2, 1)", "0", "9.0"]


def raw(columns, *rows, units=True, **how):
    """A raw page: columns {metric: unit}, one list of cells a kernel."""
    table = [META + list(columns), *([[""] * len(META) + list(columns.values())] if units else [])]
    return text_of([*table, *[meta(i) + list(cells) for i, cells in enumerate(rows)]], **how)


def only(text):
    (kernel,) = parse_ncu_csv(text)["kernels"]
    return kernel


@pytest.mark.parametrize(
    ("unit", "factor", "normal"),
    [
        ("byte", 1, "byte"),
        ("Kbyte", 1e3, "byte"),
        ("Mbyte", 1e6, "byte"),
        ("Gbyte", 1e9, "byte"),
        ("Tbyte", 1e12, "byte"),
        ("B", 1, "byte"),
        ("KB", 1e3, "byte"),
        ("MB", 1e6, "byte"),
        ("KiB", 1024, "byte"),
        ("MiB", 2**20, "byte"),
        ("bytes", 1, "byte"),
        ("ns", 1, "ns"),
        ("nsecond", 1, "ns"),
        ("us", 1e3, "ns"),
        ("usecond", 1e3, "ns"),
        ("µs", 1e3, "ns"),
        ("ms", 1e6, "ns"),
        ("msecond", 1e6, "ns"),
        ("s", 1e9, "ns"),
        ("second", 1e9, "ns"),
        ("byte/second", 1, "byte/s"),
        ("Gbyte/s", 1e9, "byte/s"),
        ("Tbyte/second", 1e12, "byte/s"),
        ("byte/ns", 1e9, "byte/s"),
        ("byte/usecond", 1e6, "byte/s"),
        ("cycle/nsecond", 1e9, "cycle/s"),
        ("hz", 1, "hz"),
        ("Ghz", 1e9, "hz"),
        ("MHz", 1e6, "hz"),
        ("%", 1, "%"),
        ("cycle", 1, "cycle"),
        ("inst", 1, "inst"),
        ("Kinst", 1e3, "inst"),
        ("Mcycle", 1e6, "cycle"),
        ("register/thread", 1, "register/thread"),
        ("Kbyte/block", 1e3, "byte/block"),
        ("inst/cycle", 1, "inst/cycle"),
        ("block", 1, "block"),
        ("", 1, ""),
        ("sector/request", 1, "sector/request"),
        ("byte/kernel", 1, "byte/kernel"),
        ("msg", 1, "msg"),
        ("Kernel", 1, "Kernel"),
    ],
)
def test_units(unit, factor, normal):
    assert normal_unit(unit) == (factor, normal)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1,234,567.50", 1234567.5),
        ("0", 0.0),
        ("-3.5", -3.5),
        (".5", 0.5),
        ("1e+06", 1e6),
        ("nan", None),
        ("-nan", None),
        ("(!) nan", None),
        ("n/a", None),
        ("N/A", None),
        ("inf", None),
        ("no data", None),
        ("", None),
        ("  ", None),
        ("-", None),
        ("CachePreferNone", "CachePreferNone"),
        ("(256, 1, 1)", "(256, 1, 1)"),
        ("35 (1; 2; 32)", 35.0),
        ("1e999", None),
        ("1,2,3", "1,2,3"),
        ("0x10", "0x10"),
        ("True", "True"),
        ("1 234.5", 1234.5),
        ("1'234", 1234.0),
        ("١٢", "١٢"),
    ],
)
def test_values(cell, value):
    assert parse_value(cell) == value


def test_a_locale_with_decimal_commas_is_recognised_by_the_whole_table():
    assert parse_value("1.234,5", decimal_comma=True) == 1234.5
    assert uses_decimal_comma(["27.595.520", "117.344", "65,77"]) and not uses_decimal_comma(["1,200", "640", "2.5"])
    assert not uses_decimal_comma(["1,200", "640"])  # could be either: the tool's own spelling is the default
    metrics = raw(
        {"dram__bytes.sum": "byte", "sm__throughput.avg": "%", "gpu__time_duration.sum": "ns"},
        ["27.595.520", "65,77", "117.344"],
        delimiter=";",
    )
    assert only(metrics)["metrics"] == {
        "dram__bytes.sum": 27595520.0,
        "sm__throughput.avg": 65.77,
        "gpu__time_duration.sum_ns": 117344.0,
    }


def test_units_row_applies_to_every_kernel_and_blank_cells_stay_unknown():
    answer = parse_ncu_csv(raw({"dram__bytes_read.sum": "Gbyte", "x.ratio": ""}, ["1.5", "n/a"], ["2", "0.25"]))
    assert [k["metrics"] for k in answer["kernels"]] == [
        {"dram__bytes_read.sum": 1.5e9, "x.ratio": None},
        {"dram__bytes_read.sum": 2e9, "x.ratio": 0.25},
    ]
    first = answer["kernels"][0]
    assert (first["id"], first["block"], first["grid"], first["device"], first["cc"]) == (
        0,
        [128, 1, 1],
        [4, 2, 1],
        0,
        "9.0",
    )
    assert first["units"] == {"dram__bytes_read.sum": "byte", "x.ratio": ""} and answer["error"] is None


def test_without_a_units_row_no_unit_is_guessed():
    kernel = only(raw({"gpu__time_duration.sum": "ns"}, ["32"], units=False))
    assert kernel["metrics"] == {"gpu__time_duration.sum": 32.0} and kernel["units_missing"] is True
    assert kernel["units"] == {"gpu__time_duration.sum": None}


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
def test_delimiters_and_quoting(delimiter, quoting):
    kernel = only(raw({"a__b.sum": "Kbyte"}, ["1,234.5"], delimiter=delimiter, quoting=quoting))
    assert kernel["metrics"] == {"a__b.sum": 1234500.0} and kernel["name"] == "k"


def test_commas_quotes_and_line_breaks_in_a_kernel_name():
    name = 'void f<int, 4>(char *, "x")\nwith a break'
    table = text_of([["ID", "Kernel Name", "m.sum"], ["", "", "byte"], ["0", name, "5"], ["1", "g", "6"]])
    first, second = parse_ncu_csv("==PROF== Connected\n" + table)["kernels"]
    assert first["name"] == 'void f<int, 4>(char *, "x") with a break'
    assert (first["metrics"], second["metrics"]) == ({"m.sum": 5.0}, {"m.sum": 6.0})


def test_unquoted_commas_inside_brackets_part_nothing():
    text = "ID,Kernel Name,Block Size,m.sum\n,,,byte\n0,f<int, 4>(float *, int),(256, 1, 1),5\n"
    kernel = only(text)
    assert (kernel["name"], kernel["block"], kernel["metrics"]) == (
        "f<int, 4>(float *, int)",
        [256, 1, 1],
        {"m.sum": 5.0},
    )


def test_the_programs_own_lines_and_banners_between_rows():
    lines = raw({"m.sum": "byte"}, ["1"], ["2"], ["3"]).splitlines()
    noisy = [
        "step 1, loss 2.5",
        '{"kind": "x", "a": 1}',
        *lines[:2],
        "==WARNING== one, two",
        lines[2],
        "done, bye",
        lines[3],
        "==PROF== Disconnected from process 7",
        lines[4],
        "Traceback: a, b",
    ]
    assert [k["metrics"]["m.sum"] for k in parse_ncu_csv("\r\n".join(noisy))["kernels"]] == [1, 2, 3]


def test_details_page_first_section_wins_and_rules_add_nothing():
    head = [
        *META,
        "Section Name",
        "Metric Name",
        "Metric Unit",
        "Metric Value",
        "Rule Name",
        "Rule Type",
        "Rule Description",
    ]
    rows = [
        head,
        [*meta(0), "Speed Of Light", "Duration", "us", "2.5", "", "", ""],
        [*meta(0), "Speed Of Light", "Memory Throughput", "%", "14.26"],
        [*meta(0), "Analysis", "Memory Throughput", "Gbyte/second", "1,234"],
        [*meta(0), "Analysis", "", "", "", "Bottleneck", "WRN", "text, with commas"],
        [*meta(1), "Speed Of Light", "Duration", "ns", "7"],
    ]
    first, second = parse_ncu_csv(text_of(rows))["kernels"]
    assert first["metrics"] == {
        "Duration_ns": 2500.0, "Memory Throughput": 14.26, "Memory Throughput [byte/s]": 1.234e12}
    assert second["metrics"] == {"Duration_ns": 7.0} and second["id"] == 1


def test_summary_page_gives_the_average():
    head = ["Kernel Name", "Block Size", "Invocations", "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"]
    kernel = only(text_of([head, ["k", "(64, 1, 1)", "3", "gpu__time_duration.sum", "us", "1", "3", "2"]]))
    assert kernel["metrics"] == {"gpu__time_duration.sum_ns": 2000.0} and kernel["invocations"] == 3


def test_a_metric_that_comes_again_without_ids_is_the_next_launch():
    head = ["Kernel Name", "Metric Name", "Metric Unit", "Metric Value"]
    rows = [
        ["k", "t.sum", "ns", "1"],
        ["k", "b.sum", "byte", "9"],
        ["k", "t.sum", "ns", "2"],
        ["k", "b.sum", "byte", "8"],
    ]
    assert [k["metrics"] for k in parse_ncu_csv(text_of([head, *rows]))["kernels"]] == [
        {"t.sum_ns": 1.0, "b.sum": 9.0},
        {"t.sum_ns": 2.0, "b.sum": 8.0},
    ]


def test_same_id_in_two_processes_and_two_tables_in_one_file():
    one = text_of([[*META, "m.sum"], [""] * len(META) + ["byte"], [*meta(0, pid=7), "1"], [*meta(0, pid=8), "2"]])
    two = raw({"n.sum": "Mbyte"}, ["3"])
    assert [k["metrics"] for k in parse_ncu_csv(one + two)["kernels"]] == [
        {"m.sum": 1.0},
        {"m.sum": 2.0},
        {"n.sum": 3e6},
    ]


def test_a_cut_row_is_left_out_and_said():
    whole = raw({"m.sum": "byte", "n.sum": "byte"}, ["12", "34"], ["56", "7890"])
    for cut in (whole[:-4], whole[:-12], whole[: whole.index('"56"') + 1]):
        answer = parse_ncu_csv(cut)
        assert [k["metrics"] for k in answer["kernels"]] == [{"m.sum": 12.0, "n.sum": 34.0}]
        assert "1 row(s)" in answer["error"] and answer["num_ignored_lines"] == 1


def test_passes_are_read_from_the_progress_lines():
    text = '==PROF== Profiling "k" - 0: 0%....50%....100% - 12 passes\n' + raw({"m.sum": "byte"}, ["1"])
    assert only(text)["passes"] == 12


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters "
            "on the target device 0.\n==WARNING== No kernels were profiled.",
            NO_PERMISSION,
        ),
        ("Device NVIDIA H100 (GH100)\n==ERROR== ERR_NVGPUCTRPERM", NO_PERMISSION),
        (
            "==ERROR== Failed to find metric regex:^no_such__thing(\\.(sum|min|max|avg))?$\n"
            "==WARNING== No kernels were profiled.",
            "unknown metric: no_such__thing",
        ),
        ("==ERROR== Failed to find metric dram__bytes_red.sum", "unknown metric: dram__bytes_red.sum"),
        (
            "==PROF== x\n"
            "==ERROR== Nsight Compute failed to connect to the CUDA driver (stub libcuda.so[.1] on path?).\n"
            "==ERROR== The application returned an error code (1).",
            "the driver does not fit this Nsight Compute",
        ),
        (
            "==ERROR== Failed to initialize the profiler: LibraryNotLoaded. "
            "Check that a compatible driver library is loaded.",
            "the driver does not fit this Nsight Compute",
        ),
        (
            "==ERROR== Profiling failed because a driver resource was unavailable. "
            'Ensure that no other tool (like DCGM) is concurrently collecting profiling data.\n'
            '==ERROR== Failed to profile "k" in process 7',
            "the counters are in use by another tool",
        ),
        (
            "==PROF== x\n==ERROR== The application returned an error code (1).\n==WARNING== No kernels were profiled.",
            "the profiled program failed",
        ),
        ('==ERROR== Failed to profile "k" in process 9', "profiling failed"),
        (
            "==WARNING== No metrics to collect found in sections.\n==WARNING== No kernels were profiled.",
            "no metrics to collect",
        ),
        ("sh: 1: ncu: not found", "ncu is not installed"),
        ("bash: ncu: command not found", "ncu is not installed"),
        ("==ERROR== unrecognised option '--metricz'", "ncu did not accept its arguments"),
        ("==ERROR== Something new happened", "Something new happened"),
        (
            "==PROF== Connected to process 1 (/usr/bin/python3)\n==PROF== Disconnected from process 1",
            "no kernels were profiled",
        ),
    ],
)
def test_failures_of_a_tool_that_exits_0(text, error):
    answer = parse_ncu_csv(text)
    assert answer["kernels"] == [] and answer["error"] == error
    assert (answer.get("remedy") == ADMIN_CHANGE) is (error == NO_PERMISSION)


def test_kernels_measured_before_a_failure_are_kept_beside_the_error():
    answer = parse_ncu_csv(raw({"m.sum": "byte"}, ["1"]) + "==ERROR== The application returned an error code (9).\n")
    assert len(answer["kernels"]) == 1 and answer["error"] == "the profiled program failed"


@pytest.mark.parametrize("text", ["", "\n \n", "hello world", "a,b,c\n1,2,3\n", '{"traceEvents": []}', "Kernel Name"])
def test_what_is_not_ncus_is_refused_in_one_line(text):
    with pytest.raises(UnreadableInput, match="ncu --csv"):
        parse_ncu_csv(text)


def test_binary_and_missing_files_are_refused(tmp_path):
    (tmp_path / "x.ncu-rep").write_bytes(b"NVR\0\1\2")
    for path in (tmp_path / "x.ncu-rep", tmp_path / "absent.csv", tmp_path):
        with pytest.raises(UnreadableInput) as caught:
            KINDS["ncu_csv"]([path])
        assert "\n" not in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["raw_page.csv", "old_units_mixed.csv", "no_kernels.txt"])
def test_damaged_files_give_an_answer_or_one_line(tmp_path, name):
    rng = random.Random(zlib.crc32(name.encode()))
    content = (FORMATS / "ncu" / name).read_bytes()
    seen = set()
    for number in range(ROUNDS):
        path = tmp_path / f"f{number}.csv"
        path.write_bytes(damaged(content, rng))
        seen.add(check("ncu_csv", path))
    assert "read" in seen


def random_cell(rng):
    return rng.choice(
        [
            "1",
            "1,234",
            "0.5",
            "nan",
            "n/a",
            "",
            "text",
            "(1, 1, 1)",
            "1e308",
            "-0",
            "9" * 400,
            "1e-400",
            "\ud800",
            "a\nb",
            "1 (2; 3)",
            '"',
            "Infinity",
            "０",
            "1.2.3",
            ",",
        ]
    )


def test_random_tables_never_escape(tmp_path):
    rng = random.Random(5)
    words = [
        *META,
        "Metric Name",
        "Metric Unit",
        "Metric Value",
        "Section Name",
        "dram__bytes.sum",
        "x",
        "",
        "Kernel Name",
    ]
    for number in range(ROUNDS):
        columns = ["Kernel Name", *rng.choices(words, k=rng.randrange(1, 8))]
        rows = [[random_cell(rng) for _ in range(rng.randrange(len(columns) + 2))] for _ in range(rng.randrange(5))]
        text = text_of(
            [columns, *rows], delimiter=rng.choice(",;\t"), quoting=rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
        )
        path = tmp_path / f"r{number}.csv"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        check("ncu_csv", path)


def test_a_long_file_is_read_in_reasonable_work():
    table = raw({f"m__{i}.sum": "byte" for i in range(40)}, *[[str(i)] * 40 for i in range(2000)])
    answer = parse_ncu_csv(table + 'stray " quote, here\n' * 500)
    assert len(answer["kernels"]) == 2000
    json.dumps(answer, allow_nan=False)


PAGE = """\
==PROF== Profiling "k" - 0: 0%....50%....100% - 9 passes
==PROF== Profiling "j" - 1: 0%....50%....100% - 3 passes
[77] python3@127.0.0.1
  void k<float, 4>(T1 *, int) (1024, 1, 1)x(256, 2, 1), Context 1, Stream 7, Device 0, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Elapsed Cycles                cycle       12,345
    Duration                         us         8.10
    Memory Throughput                 %        20.50
    ----------------------- ----------- ------------

    OPT   A sentence with words in columns, and 3 numbers 4 in it.

    Section: Launch Statistics
    ---------------------------- --------------- ---------------
    Metric Name                      Metric Unit    Metric Value
    ---------------------------- --------------- ---------------
    Function Cache Configuration                 CachePreferNone
    ---------------------------- --------------- ---------------

  j(int *), 2021-Mar-04 10:11:12, Context 1, Stream 13
    Section: Command line profiler metrics
    ---------------------- --------------- ------------------------------
    dram__bytes.sum                  Mbyte                           1.50
    smsp__cycles.avg                                                  n/a
    ---------------------- --------------- ------------------------------
"""


def test_the_page_for_people_is_read():
    answer = parse_ncu_csv(PAGE)
    first, second = answer["kernels"]
    assert answer["error"] is None and (first["name"], first["grid"], first["block"], first["passes"]) == (
        "void k<float, 4>(T1 *, int)", [1024, 1, 1], [256, 2, 1], 9)
    assert first["metrics"] == {"Elapsed Cycles": 12345.0, "Duration_ns": 8100.0, "Memory Throughput": 20.5,
                                "Function Cache Configuration": "CachePreferNone"}
    assert first["process_id"] == 77 and first["units"]["Elapsed Cycles"] == "cycle"
    assert (second["name"], second["stream"], second["passes"]) == ("j(int *)", 13, 3) and "cc" not in second
    assert second["metrics"] == {"dram__bytes.sum": 1.5e6, "smsp__cycles.avg": None}


def test_kernels_that_were_profiled_into_a_file_are_not_called_missing():
    answer = parse_ncu_csv(PAGE[: PAGE.index("[77]")] + "==PROF== Report: /tmp/r.ncu-rep\n")
    assert answer["kernels"] == [] and "no table" in answer["error"] and answer["report"] == "/tmp/r.ncu-rep"
