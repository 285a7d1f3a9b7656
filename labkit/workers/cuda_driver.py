"""The few calls of the CUDA driver that the occupancy workers need, through ctypes: no compiler, no torch.

Works in the context that torch or Triton have made current, or makes the primary context of device 0 current itself.
"""

from __future__ import annotations

import ctypes
from typing import Any

FUNCTION_ATTRIBUTES = {"max_threads": 0, "static_shared_bytes": 1, "local_bytes": 3, "registers": 4, "binary": 6}
MAX_DYNAMIC_SHARED, CARVEOUT = 8, 9
DEVICE_ATTRIBUTES = {
    "num_sms": 16, "max_threads_per_sm": 39, "cc_major": 75, "cc_minor": 76, "shared_memory_per_sm_bytes": 81,
    "registers_per_sm": 82, "shared_memory_per_block_bytes": 97, "max_blocks_per_sm": 106,
    "reserved_shared_memory_bytes": 111,
}  # fmt: skip
"""Names of labkit.calc.occupancy.LIMITS where there is one; numbers of CUdevice_attribute in cuda.h."""


class DriverError(RuntimeError):
    """A driver call that failed; one line with the call and the driver's name for the error."""


class Driver:
    """The loaded driver library."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"no CUDA driver on this machine: {error}") from None
        self.call("cuInit", ctypes.c_uint(0))
        self.modules: list[ctypes.c_void_p] = []

    def code(self, name: str, *args: Any) -> int:
        """Error number of a call; 0 is success."""
        return getattr(self.library, name)(*args)

    def call(self, name: str, *args: Any) -> None:
        """Make a call; raises DriverError unless it succeeds."""
        if code := self.code(name, *args):
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
            raise DriverError(f"{name}: {(text.value or b'unknown error').decode()} ({code})")

    def use_device(self, index: int = 0) -> int:
        """Make the primary context of a device current; returns the device's handle."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        return device.value

    def device_attributes(self, device: int) -> dict[str, int]:
        """Limits of a device by the names of DEVICE_ATTRIBUTES."""
        found = {}
        for name, number in DEVICE_ATTRIBUTES.items():
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number), ctypes.c_int(device))
            found[name] = value.value
        return found

    def version(self) -> int:
        """CUDA version that the driver supports, e.g. 13000."""
        value = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(value))
        return value.value

    def load(self, image: bytes) -> ctypes.c_void_p:
        """A module of a cubin, or of PTX text that the driver compiles now."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(image))
        self.modules.append(module)
        return module

    def unload_all(self) -> None:
        """Unload what `load` loaded."""
        while self.modules:
            self.call("cuModuleUnload", self.modules.pop())

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """A kernel of a module."""
        found = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(found), module, ctypes.c_char_p(name.encode()))
        return found

    def function_attributes(self, function: ctypes.c_void_p) -> dict[str, int]:
        """What the driver says of a kernel, by the names of FUNCTION_ATTRIBUTES."""
        found = {}
        for name, number in FUNCTION_ATTRIBUTES.items():
            value = ctypes.c_int()
            self.call("cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(number), function)
            found[name] = value.value
        return found

    def allow_shared(self, function: ctypes.c_void_p, dynamic_bytes: int, *, carveout: bool = False) -> None:
        """Let a kernel have this much dynamic shared memory; `carveout`: give shared memory all of L1 that it can."""
        self.call("cuFuncSetAttribute", function, ctypes.c_int(MAX_DYNAMIC_SHARED), ctypes.c_int(dynamic_bytes))
        if carveout:
            self.call("cuFuncSetAttribute", function, ctypes.c_int(CARVEOUT), ctypes.c_int(100))

    def max_blocks(self, function: ctypes.c_void_p, *, threads: int, dynamic_bytes: int) -> tuple[int, int]:
        """Resident blocks per SM by the driver's own rule, and the call's error number (then the blocks are 0)."""
        blocks = ctypes.c_int()
        code = self.code("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(blocks), function,
                         ctypes.c_int(threads), ctypes.c_size_t(dynamic_bytes))  # fmt: skip
        return (0 if code else blocks.value), code

    def launch(
        self, function: ctypes.c_void_p, *, blocks: int, threads: int, dynamic_bytes: int, stream: int, args: Any
    ) -> None:
        """Launch a kernel; `args` is what `pack` made."""
        one = ctypes.c_uint(1)
        self.call("cuLaunchKernel", function, ctypes.c_uint(blocks), one, one, ctypes.c_uint(threads), one, one,
                  ctypes.c_uint(dynamic_bytes), ctypes.c_void_p(stream), args[0], None)  # fmt: skip


def pack(values: list[Any]) -> tuple[Any, list[Any]]:
    """Kernel arguments (ctypes values) as the driver takes them; keep the result until the launch has been made."""
    pointers = [ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in values]
    return (ctypes.c_void_p * len(values))(*pointers), values
