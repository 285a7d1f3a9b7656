"""C = A B on a square grid of servers with little memory: what is resident, panel widths, traffic, out-of-core tiles.

In: side N of the matrices (1 gives results in units of N and N^2), grid, memory. Out: elements, widths, steps, FLOP.

    python -m labkit calc summa panel_width num_buffers=2
"""

from __future__ import annotations

import math
from typing import Any

from labkit.calc._require import require_int, require_number


def resident_elements(*, side: float = 1.0, grid: int = 2, num_matrices: int = 3) -> float:
    """Elements of A, B and C that each server keeps.

    Args:
        side: N, rows of the square matrices, > 0; 1 gives the result in units of N^2.
        grid: servers along a side, >= 1.
        num_matrices: blocks on each server, >= 1.

    Returns: elements.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: equal blocks.
    Source: 3 (N / q)^2; interview question 12.

    >>> resident_elements()
    0.75
    """
    block = require_number("side", side, above=0) / require_int("grid", grid, least=1)
    return require_int("num_matrices", num_matrices, least=1) * block**2


def spare_elements(
    *, side: float = 1.0, grid: int = 2, memory_elements: float | None = None, panel_width: float = 0.0,
    num_buffers: int = 1,
) -> float:
    """Elements of a server's memory that blocks and panels leave free.

    Args:
        side: N > 0.
        grid: servers along a side, >= 1.
        memory_elements: of one server, > 0; None: N^2.
        panel_width: w, columns of A's and rows of B's panel, 0 to N / grid.
        num_buffers: copies of each panel, >= 1.

    Returns: elements; below 0 it does not fit.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: both panels arrive from elsewhere; headers and workspace not counted.
    Source: M - 3 (N/q)^2 - 2 buffers (N/q) w; interview question 12, erratum E12.

    >>> spare_elements(), spare_elements(panel_width=0.125, num_buffers=2)
    (0.25, 0.0)
    """
    memory = side**2 if memory_elements is None else require_number("memory_elements", memory_elements, above=0)
    block = require_number("side", side, above=0) / require_int("grid", grid, least=1)
    if require_number("panel_width", panel_width, least=0) > block:
        raise ValueError(f"panel_width={panel_width!r}: expected at most side / grid = {block:g}")
    panels = 2 * require_int("num_buffers", num_buffers, least=1) * block * panel_width
    return memory - resident_elements(side=side, grid=grid) - panels


def panel_width(
    *, side: float = 1.0, grid: int = 2, memory_elements: float | None = None, num_buffers: int = 1
) -> float:
    """Widest panels of A and B that fit beside the blocks, at most a block.

    Args:
        side: N > 0.
        grid: servers along a side, >= 1.
        memory_elements: of one server, > 0; None: N^2.
        num_buffers: copies of each panel, >= 1.

    Returns: w in elements (units of N for side 1), not rounded; it leaves no spare element.
    Raises: ValueError naming the argument, the value got, what was expected; also when the blocks do not fit.
    Assumes: as `spare_elements`.
    Source: 2 buffers (N / q) w <= slack; interview question 12.

    >>> panel_width(), panel_width(num_buffers=2)
    (0.25, 0.125)
    """
    slack = spare_elements(side=side, grid=grid, memory_elements=memory_elements)
    if slack < 0:
        raise ValueError(f"memory_elements={memory_elements!r}: expected at least the blocks of A, B and C")
    block = side / grid
    return min(block, slack / (2 * require_int("num_buffers", num_buffers, least=1) * block))


def microsteps(*, panel_width: float, side: float = 1.0) -> int:
    """Panel products that cover the inner dimension.

    Args:
        panel_width: w > 0, at most N.
        side: N > 0.

    Returns: steps.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the last panel may be narrower.
    Source: ceil(N / w); interview question 12.

    >>> microsteps(panel_width=0.25), microsteps(panel_width=0.125)
    (4, 8)
    """
    whole = require_number("side", side, above=0)
    if require_number("panel_width", panel_width, above=0) > whole:
        raise ValueError(f"panel_width={panel_width!r}: expected at most side={side}")
    return math.ceil(whole / panel_width * (1 - 1e-12))


def server_work(*, side: float = 1.0, grid: int = 2) -> dict[str, float]:
    """Work and traffic of one server, whatever the panel width.

    Args:
        side: N > 0.
        grid: servers along a side, >= 1.

    Returns: {"multiply_adds", "flop", "received_elements": of A and B together}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: C stays in place; every remote panel is received once.
    Source: N^3 / q^2 and 2 (N/q)^2 (q - 1); interview question 12.

    >>> server_work()
    {'multiply_adds': 0.25, 'flop': 0.5, 'received_elements': 0.5}
    """
    n, q = require_number("side", side, above=0), require_int("grid", grid, least=1)
    products = n**3 / q**2
    return {"multiply_adds": products, "flop": 2 * products, "received_elements": 2 * (n / q) ** 2 * (q - 1)}


def simulate(*, side: int = 8, panel_width: int = 2, grid: int = 2) -> dict[str, Any]:
    """SUMMA on whole numbers, panel by panel, with every received element counted.

    Args:
        side: N, a multiple of grid, 1 to 64.
        panel_width: w, a divisor of side / grid.
        grid: servers along a side, >= 1.

    Returns: {"matches": C equals the plain product, "received_elements": of each server, "microsteps"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: broadcasts along rows and columns; own panels are not received.
    Source: van de Geijn and Watts, "SUMMA", 1997; interview question 12.

    >>> simulate()
    {'matches': True, 'received_elements': [32, 32, 32, 32], 'microsteps': 4}
    """
    n, q, w = require_int("side", side, least=1), require_int("grid", grid, least=1), panel_width
    if n % q or n > 64:
        raise ValueError(f"side={side!r}: expected a multiple of grid={grid}, at most 64")
    if (n // q) % require_int("panel_width", w, least=1):
        raise ValueError(f"panel_width={panel_width!r}: expected a divisor of side / grid = {n // q}")
    block, everything = n // q, range(n)
    a = [[(3 * i + 5 * j) % 7 - 3 for j in everything] for i in everything]
    b = [[(2 * i - 3 * j) % 5 - 2 for j in everything] for i in everything]
    c = [[0] * n for _ in everything]
    received = [0] * (q * q)
    for k in range(0, n, w):
        owner = k // block
        for server in range(q * q):
            row, column = divmod(server, q)
            received[server] += block * w * ((column != owner) + (row != owner))
            for i in range(row * block, (row + 1) * block):
                for j in range(column * block, (column + 1) * block):
                    c[i][j] += sum(a[i][x] * b[x][j] for x in range(k, k + w))
    plain = [[sum(a[i][x] * b[x][j] for x in everything) for j in everything] for i in everything]
    return {"matches": c == plain, "received_elements": received, "microsteps": n // w}


def tile_side(*, memory_elements: float = 0.125, num_tiles: int = 3) -> float:
    """Largest square tile when several of them must be in fast memory.

    Args:
        memory_elements: fast memory, > 0 (in units of N^2 for a result in units of N).
        num_tiles: held at a time, >= 1: 3 for A, B, C; 5 with A and B double-buffered.

    Returns: side of a tile, not rounded.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: square tiles, nothing else in fast memory.
    Source: tiles t^2 <= M; interview question 12.

    >>> [round(tile_side(num_tiles=k), 3) for k in (3, 5)]
    [0.204, 0.158]
    """
    tiles = require_int("num_tiles", num_tiles, least=1)
    return math.sqrt(require_number("memory_elements", memory_elements, above=0) / tiles)


def tiled_schedule(
    *, tiles_per_side: int = 8, grid: int = 2, memory_elements: float = 0.125, tiles_in_memory: int = 5
) -> dict[str, Any]:
    """Out-of-core schedule that keeps one tile of C and streams tiles of A and B, in units of N^2.

    Args:
        tiles_per_side: N / t, a multiple of grid.
        grid: servers along a side, >= 1.
        memory_elements: fast memory in units of N^2, > 0.
        tiles_in_memory: held at a time, >= 1.

    Returns: {"tiles": of C, "tiles_per_server", "products_per_tile", "used_elements", "fits",
        "loaded_elements": of A and B by each server, "times_in_memory": over what `server_work` receives}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no tile of A or B is reused for a second tile of C.
    Source: (tiles of C) x (products) x 2 t^2; interview question 12, erratum E13.

    >>> found = tiled_schedule()
    >>> found["tiles_per_server"], found["loaded_elements"], found["times_in_memory"]
    (16, 4.0, 8.0)
    """
    side, q = require_int("tiles_per_side", tiles_per_side, least=1), require_int("grid", grid, least=1)
    if side % q:
        raise ValueError(f"tiles_per_side={tiles_per_side!r}: expected a multiple of grid={grid}")
    tile = 1 / side**2
    used = require_int("tiles_in_memory", tiles_in_memory, least=1) * tile
    mine = side**2 // q**2
    loaded, received = mine * side * 2 * tile, server_work(grid=q)["received_elements"]
    return {
        "tiles": side**2, "tiles_per_server": mine, "products_per_tile": side, "used_elements": used,
        "fits": used <= require_number("memory_elements", memory_elements, above=0), "loaded_elements": loaded,
        "times_in_memory": loaded / received if received else None,
    }


def total_storage(*, num_servers: int, memory_elements: float, needed_elements: float = 1.0) -> dict[str, Any]:
    """Whether several small memories hold a matrix at all.

    Args:
        num_servers: >= 1.
        memory_elements: of each, in units of N^2, > 0.
        needed_elements: in units of N^2, > 0; 1 is one matrix.

    Returns: {"elements": of all servers, "fits"}.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: no other storage.
    Source: sum; interview question 12.

    >>> total_storage(num_servers=4, memory_elements=0.125)
    {'elements': 0.5, 'fits': False}
    """
    total = require_int("num_servers", num_servers, least=1) * require_number(
        "memory_elements", memory_elements, above=0
    )
    return {"elements": total, "fits": total >= require_number("needed_elements", needed_elements, above=0)}


def least_traffic_elements(*, multiply_adds: float, memory_elements: float) -> float:
    """Elements that must move into fast memory, whatever the schedule.

    Args:
        multiply_adds: > 0.
        memory_elements: fast memory, > 0.

    Returns: elements, 2 x multiply-adds / sqrt(M); the bound's lower-order term is left out.
    Raises: ValueError naming the argument, the value got, what was expected.
    Assumes: the classical algorithm, problem much larger than the memory.
    Source: Hong and Kung, 1981, with the constant of Smith et al., 2019; erratum E13.

    >>> round(least_traffic_elements(multiply_adds=0.25, memory_elements=0.125), 2)
    1.41
    """
    work = require_number("multiply_adds", multiply_adds, above=0)
    return 2 * work / math.sqrt(require_number("memory_elements", memory_elements, above=0))
