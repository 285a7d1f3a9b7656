"""Random CUDA kernels as PTX text: each with its own registers, block size, register limit and static shared memory.

A kernel loads `live` numbers, waits at a barrier, then stores them in reverse. Loads and stores are volatile, so the
compiler must keep all of them at once: in registers, or spilled where a limit forbids it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

HEADER = ".version 7.0\n.target sm_70\n.address_size 64\n"
"""Old enough for every driver here; the driver compiles it for the GPU it runs on."""


@dataclass(frozen=True, slots=True)
class RandomKernel:
    """What one kernel is made of."""

    name: str
    live: int
    """Numbers alive at the barrier."""
    max_threads: int
    """Block size the compiler is told of (`__launch_bounds__`)."""
    max_registers: int | None
    """Limit of registers per thread (`-maxrregcount`); None: only what the block size implies."""
    min_blocks: int | None
    """Blocks per SM asked of the compiler (second argument of `__launch_bounds__`); never with `max_registers`."""
    static_shared_bytes: int


def draw(number: int, rng: random.Random) -> RandomKernel:
    """A kernel with random properties; small and large register counts are equally likely."""
    limit = rng.choice(("none", "registers", "blocks"))
    return RandomKernel(
        name=f"k{number}", live=rng.choice((rng.randint(1, 40), rng.randint(1, 230))),
        max_threads=rng.choice((32, 64, 96, 128, 160, 192, 256, 288, 320, 384, 512, 640, 768, 896, 1024)),
        max_registers=rng.randrange(24, 256) if limit == "registers" else None,
        min_blocks=rng.randint(1, 8) if limit == "blocks" else None,
        static_shared_bytes=rng.choice((0, 0, 4 * rng.randint(1, 256), 4 * rng.randint(1, 12_000))),
    )


def ptx_of(kernel: RandomKernel) -> str:
    """PTX of one kernel, without HEADER."""
    limits = f".maxntid {kernel.max_threads}, 1, 1\n"
    limits += f".maxnreg {kernel.max_registers}\n" if kernel.max_registers is not None else ""
    limits += f".minnctapersm {kernel.min_blocks}\n" if kernel.min_blocks is not None else ""
    lines = [f".visible .entry {kernel.name}(.param .u64 data)", limits + "{",
             f".reg .b64 %rd<4>; .reg .b32 %r<4>; .reg .f32 %f<{kernel.live + 2}>;"]  # fmt: skip
    if kernel.static_shared_bytes:
        lines.append(f".shared .align 4 .b8 {kernel.name}_buffer[{kernel.static_shared_bytes}];")
    lines += ["ld.param.u64 %rd0, [data];", "cvta.to.global.u64 %rd1, %rd0;", "mov.u32 %r0, %tid.x;",
              "mul.wide.u32 %rd2, %r0, 4;", "add.u64 %rd3, %rd1, %rd2;"]  # fmt: skip
    lines += [f"ld.volatile.global.f32 %f{i}, [%rd3+{4096 * i}];" for i in range(kernel.live)]
    if kernel.static_shared_bytes:
        lines.append(f"st.volatile.shared.f32 [{kernel.name}_buffer], %f0;")
    lines.append("bar.sync 0;")
    lines += [f"st.volatile.global.f32 [%rd3+{4096 * i}], %f{i};" for i in reversed(range(kernel.live))]
    return "\n".join([*lines, "ret;", "}", ""])


def draw_launches(kernel: RandomKernel, rng: random.Random, *, count: int, most_shared_bytes: int
                  ) -> list[tuple[int, int, bool]]:  # fmt: skip
    """Random launches of a kernel: threads, dynamic shared bytes, and whether more than 48 KiB is asked for."""
    launches = []
    for _ in range(count):
        threads = rng.choice((kernel.max_threads, rng.randint(1, kernel.max_threads)))
        room = most_shared_bytes - kernel.static_shared_bytes
        opt_in = rng.random() < 0.6
        dynamic = rng.choice((0, rng.randint(0, 2048), rng.randint(0, min(room, 49_152)), rng.randint(0, room)))
        launches.append((threads, dynamic, opt_in))
    return launches
