"""The page that `ncu` prints without `--csv`: a heading for each kernel and, below it, tables between dashed rules."""

from __future__ import annotations

import re
from collections.abc import Iterator

Row = dict[str, str]
_HEADING = re.compile(
    r"\s{2,8}(?P<name>\S.*?)(?: \((?P<grid>\d+, ?\d+, ?\d+)\)x\((?P<block>\d+, ?\d+, ?\d+)\))?"
    r"(?:, \d{4}-\w+-\d+ [\d:]+)?, Context (?P<context>\d+), Stream (?P<stream>\d+)"
    r"(?:, Device (?P<device>\d+), CC (?P<cc>[\d.]+))?\s*")
_PROCESS = re.compile(r"\[(\d+)\] \S.*@\S+\s*")
_RULE = re.compile(r"\s*-{3,}\s+-{3,}\s+-{3,}\s*")


def text_rows(lines: list[str]) -> Iterator[tuple[Row, str, str, str, str]]:
    """(kernel's fields, section, metric, unit, value) of each row; a kernel without a row gives one of blanks."""
    kernel: Row | None = None
    process, section, num_kernels = "", "", 0
    edges: tuple[int, int] | None = None  # where the first and the second column of the table end
    for line in lines:
        if found := _HEADING.fullmatch(line):
            kernel = {key: value for key, value in found.groupdict().items() if value} | {
                "id": str(num_kernels), "process_id": process}
            num_kernels, section, edges = num_kernels + 1, "", None
            yield kernel, "", "", "", ""
        elif found := _PROCESS.fullmatch(line):
            process, kernel = found[1], None
        elif kernel is None:
            continue
        elif found := re.match(r"\s*Section: (.*\S)", line):
            section, edges = found[1], None
        elif _RULE.fullmatch(line):
            spans = [match.span() for match in re.finditer(r"-+", line)]
            edges = spans[0][1], spans[1][1]
        elif not line.strip():
            edges = None
        elif edges is not None:
            name, unit, value = (cell.strip() for cell in (
                line[: edges[0]], line[edges[0] : edges[1]], line[edges[1] :]))
            if name and value and (name, unit) != ("Metric Name", "Metric Unit"):
                yield kernel, section, name, unit, value
