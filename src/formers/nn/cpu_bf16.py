"""Half precision on a CPU: some virtual machines announce AMX, the tiles that multiply bf16, and end a process that
uses them without a word. There, oneDNN is told to leave them alone."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import signal
import time
import warnings

import torch

from ..errors import Error

ISA_VARIABLE, ISA_WITHOUT_AMX = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16"
TRIAL_SECONDS = 10.0  # a trial takes milliseconds


def is_amx_announced() -> bool:
    """The processor says that it has tiles, and nobody has said which instructions oneDNN may take."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)()) and ISA_VARIABLE not in os.environ


def is_bf16_fatal() -> bool:
    """Return whether a product in bf16 would end this process: a child in the same state tries it."""
    if not hasattr(os, "fork"):
        return False
    with warnings.catch_warnings():  # of threads, of which the child needs none
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            import resource

            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2 * int(TRIAL_SECONDS))  # should this process be killed meanwhile, the child ends by itself

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a trial that ends badly leaves no file
            torch.set_num_threads(1)
            x = torch.ones(64, 64, dtype=torch.bfloat16)
            torch.mm(x, x)
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):  # somebody else asks how children ended: nothing is known
        end = time.monotonic() + TRIAL_SECONDS
        while time.monotonic() < end:
            if (ended := os.waitpid(child, os.WNOHANG))[0]:
                return os.WIFSIGNALED(ended[1])
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)  # it waits for a thread that it does not have: nothing is known either
        os.waitpid(child, 0)
    return False


@functools.cache
def is_amx_broken() -> bool:
    """The tiles that are announced do not work."""
    return is_amx_announced() and is_bf16_fatal()


@functools.cache
def disable_amx() -> bool:
    """Keep oneDNN from the tiles, which helps as long as it has computed nothing."""
    os.environ[ISA_VARIABLE] = ISA_WITHOUT_AMX
    if is_bf16_fatal():
        del os.environ[ISA_VARIABLE]
        return False
    return True


def can_use_bf16() -> bool:
    """oneDNN may multiply bf16 and 8 bits: the tiles work, or it keeps away from them."""
    return not is_amx_announced() or not is_amx_broken() or disable_amx()


def check_cpu_bf16(dtype: torch.dtype | None, device: torch.device, strict: bool = True) -> None:
    """Before bf16 is used on a CPU: keep oneDNN from tiles that do not work; where that is too late it is an error, or
    a warning where it is not `strict`."""
    if dtype != torch.bfloat16 or device.type != "cpu" or can_use_bf16():
        return
    what = "this processor announces AMX and has none: bf16 would end this process"
    fix = f"set {ISA_VARIABLE}={ISA_WITHOUT_AMX} in the environment before Python starts, or stay with fp32"
    if strict:
        raise Error(what, fix=fix)
    warnings.warn(f"{what}; {fix}, or move the model to a GPU", stacklevel=3)
