"""What the names in a trace mean: communication kernels, collectives, element sizes.

Communication is recognised positively, by the function's own name or by NCCL's arguments on the event; everything else
on a device is compute, copies and memsets apart. A protocol is never read from a kernel name: the suffix of an NCCL
kernel (`_RING_LL`) names the function it was linked as, not what ran (NVIDIA/nccl#2196).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from labkit.analyze.kinds import clean_text

# A library's name at the start of an identifier of the function's own name (not of its template or call arguments).
_COMM_LIBRARY = re.compile(
    r"(?:^|[\s:*&])(?:nccl|rccl|hccl|oneccl|msccl|nvshmem|rocshmem|deep_ep::|quickreduce::)", re.IGNORECASE
)
# One-shot and two-shot all-reduce kernels of the serving engines and of torch's symmetric memory.
_COMM_FUNCTION = re.compile(
    r"cross_device_reduce_|(?:one|two)_?shot_?(?:push_|pull_)?all_?reduce|multimem_(?:all_?reduce|one_shot|all_gather)"
    r"|all_?reduce_?fusion",
    re.IGNORECASE,
)
_SYNC_NAMES = re.compile(r"^(?:(?:stream|event|device|context) sync(?:hronize)?|stream wait event)$", re.IGNORECASE)
_CPU_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc|nccl|xccl):(\w+)")

_CANONICAL = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherv": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescatterv": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallsingle": "all_to_all",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "reduce": "reduce",
    "reduceoop": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "allbarrier": "barrier",
    "monitoredbarrier": "barrier",
    "send": "send",
    "recv": "recv",
    "recvanysource": "recv",
    "sendrecv": "send_recv",
    "coalesced": "coalesced",
}
# In a kernel name, longest first: AllReduce must not be read as Reduce.
_IN_KERNEL_NAME = (
    ("reducescatter", "reduce_scatter"),
    ("allreduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("reduce", "reduce"),
)
_DTYPE_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8", "unsigned char", "signed char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16", "int16", "uint16", "c10::half", "c10::bfloat16"), 2),
    **dict.fromkeys(("float", "int", "float32", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "long", "int64", "uint64", "float64", "long int", "complexfloat"), 8),
    **dict.fromkeys(("complexdouble",), 16),
}


@lru_cache(maxsize=65536)
def own_name(kernel: str) -> str:
    """A kernel's function name without return type arguments, template arguments and call arguments.

    >>> own_name("void at::native::(anonymous namespace)::foo_kernel<4, ncclDevKernelArgs>(int)")
    'void at::native::foo_kernel'
    """
    name = kernel.replace("(anonymous namespace)::", "").replace("{anonymous}::", "")
    return re.split(r"[<(]", name, maxsplit=1)[0].strip()


def is_comm_kernel(kernel: str) -> bool:
    """Whether a device kernel's own name says that it communicates.

    >>> is_comm_kernel("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)")
    True
    >>> is_comm_kernel("void at::native::add<ncclDevKernelArgsStorage>(float*)")
    False
    """
    name = own_name(kernel)
    return bool(_COMM_LIBRARY.search(name) or _COMM_FUNCTION.search(name))


def is_sync_marker(name: str) -> bool:
    """Whether a device event is a synchronisation marker (Stream Sync, Event Sync, ...): time in which nothing runs."""
    return bool(_SYNC_NAMES.match(name.strip()))


def cpu_collective(annotation: str) -> tuple[str, str] | None:
    """(backend, collective) of a process group's CPU annotation, or None for any other name.

    >>> cpu_collective("gloo:all_reduce")
    ('gloo', 'all_reduce')
    """
    match = _CPU_COLLECTIVE.match(annotation)
    return (match[1], canonical_collective(match[2])) if match else None


def canonical_collective(name: str) -> str:
    """One name for each collective, whatever torch release or call wrote it.

    >>> canonical_collective("_allgather_base"), canonical_collective("all_to_allv")
    ('all_gather', 'all_to_all')
    """
    return _CANONICAL.get(re.sub(r"[^a-z]", "", name.lower()), clean_text(name))


def collective_in_kernel_name(kernel: str) -> str:
    """The collective a kernel's name states, or "unknown".

    `SendRecv` states nothing: all-to-all runs under it, and some NCCL releases use it for every kernel (nccl#714).

    >>> collective_in_kernel_name("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_in_kernel_name("ncclDevKernel_Generic_4"), collective_in_kernel_name("ncclKernel_SendRecv_RING")
    ('unknown', 'unknown')
    """
    letters = re.sub(r"[^a-z]", "", own_name(kernel).lower())
    return next((collective for text, collective in _IN_KERNEL_NAME if text in letters), "unknown")


def dtype_bytes(dtype: Any) -> int | None:
    """Bytes of one element of a torch or C type name, or None if the name is unknown.

    >>> dtype_bytes("BFloat16"), dtype_bytes("float"), dtype_bytes("Float8_e4m3fn"), dtype_bytes("?")
    (2, 4, 1, None)
    """
    return _DTYPE_BYTES.get(str(dtype).removeprefix("torch.").strip().lower())
