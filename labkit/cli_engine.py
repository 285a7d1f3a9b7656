"""`labkit engine ...`: the serving engine that the two vLLM labs run."""

from __future__ import annotations

from typing import Annotated

import typer

from labkit import machine
from labkit.cli_output import AsJson, emit, fail, log, make_group, one_line_errors
from labkit.engine.find import EngineMissing, find_engine
from labkit.engine.install import install as install_engine
from labkit.presets import UsageError

engine_app = make_group("vLLM, in an environment of its own.")
Cpu = Annotated[bool, typer.Option("--cpu", help="The CPU build.")]
Cuda = Annotated[bool, typer.Option("--cuda", help="The CUDA build.")]


@engine_app.command("install")
def engine_install(cpu: Cpu = False, cuda: Cuda = False, as_json: AsJson = False) -> None:
    """Install vLLM into .engines/vllm from the pinned lock: for this machine's device, unless told otherwise."""
    with one_line_errors():
        device = _device(cpu, cuda)
        try:
            engine = install_engine(device, log=log)
        except EngineMissing as error:  # the machine refused, not the user
            fail(str(error), 1)
        emit(engine.as_result()) if as_json else print(f"vLLM {engine.version}, torch {engine.torch}")


@engine_app.command("show")
def engine_show(cpu: Cpu = False, cuda: Cuda = False, as_json: AsJson = False) -> None:
    """Say which vLLM the labs would use here."""
    with one_line_errors():
        try:
            engine = find_engine(_device(cpu, cuda))
        except EngineMissing as error:
            fail(str(error), 1)
        emit(engine.as_result()) if as_json else print(f"vLLM {engine.version}, torch {engine.torch}, {engine.python}")


def _device(cpu: bool, cuda: bool) -> str:
    if cpu and cuda:
        raise UsageError("--cpu and --cuda: expected one of them")
    if cpu or cuda:
        return "cpu" if cpu else "cuda"
    return "cuda" if machine.detect().num_gpus else "cpu"
