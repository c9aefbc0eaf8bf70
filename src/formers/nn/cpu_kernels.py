"""Our own kernels for inference on a CPU (cpu_kernels.cpp): products of whole numbers of 8 bits, attention over a
cache, and small operations in one call each. A step of decoding calls hundreds of torch's, which cost more than they
compute.

The source is compiled on first use, in about two seconds, and kept in the user's cache. Without a compiler, on another
processor or system, or where a trial fails, there are none, and torch's own operations serve:
`FORMERS_CPU_KERNELS=off` in the environment asks for that."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

VARIABLE = "FORMERS_CPU_KERNELS"
SOURCE = Path(__file__).with_suffix(".cpp")
COMPILER_OPTIONS = ("-std=c++17", "-O3", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
AVX512_OPTIONS = ("-march=x86-64-v4", "-mavx512vnni", "-mprefer-vector-width=512")
AVX2_OPTIONS = ("-march=x86-64-v3",)
COMPILE_SECONDS, TRIAL_SECONDS = 120.0, 10.0  # limits: a compilation takes 2 s, a trial milliseconds
PANEL, GROUP = 64, 4  # outputs and inputs whose weights lie together, as in the source


POINTERS = ("q", "fresh_k", "fresh_v", "k", "v", "out", "lengths", "table", "bias")
SIZES = (
    "queries", "rows", "heads", "dim", "slots", "width", "q_row", "q_head", "k_row", "k_slot", "k_head", "v_row",
    "v_slot", "v_head", "fk_row", "fk_head", "fv_row", "fv_head", "table_row", "bias_head",
)  # fmt: skip


class AttentionArguments(ctypes.Structure):
    """The struct `Attention` of the source."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in POINTERS),
        *((name, ctypes.c_int64) for name in SIZES),
        ("scale", ctypes.c_float),
        ("threads", ctypes.c_int32),
    ]


class Kernels:
    """The compiled kernels; all tensors are fp32 on a CPU."""

    def __init__(self, path: Path):
        library, pointer, integer, size = ctypes.CDLL(str(path)), ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._linear, self._add_norm = library.formers_linear, library.formers_add_norm
        self._gelu_tanh, self._attend = library.formers_gelu_tanh, library.formers_attend
        self._linear.argtypes = [pointer, size, size, size, pointer, pointer, pointer, size, pointer, integer]
        self._add_norm.argtypes = [*[pointer] * 4, ctypes.c_float, integer, size, size, pointer, pointer]
        self._gelu_tanh.argtypes = [pointer, pointer, size, integer]
        self._attend.argtypes = [ctypes.POINTER(AttentionArguments)]
        for function in (self._linear, self._add_norm, self._gelu_tanh, self._attend):
            function.restype = None

    def multiply(self, x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, outputs: int) -> Tensor:
        """(rows, in) · a weight of `pack_weight` → (rows, outputs); x is rounded to 8 bits row by row."""
        x = x if x.stride(1) == 1 else x.contiguous()
        rows, inputs = x.shape
        y = torch.empty(rows, outputs)
        self._linear(
            x.data_ptr(), x.stride(0), rows, inputs, weight.data_ptr(), scale.data_ptr(),
            None if bias is None else bias.data_ptr(), outputs, y.data_ptr(), torch.get_num_threads(),
        )  # fmt: skip
        return y

    def add_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float, has_mean: bool
    ) -> tuple[Tensor, Tensor]:
        """Return x + y (N, dim), and its layer norm, or without `has_mean` its RMS norm."""
        x, y = x.contiguous(), y.contiguous()
        total, normed = torch.empty_like(x), torch.empty_like(x)
        self._add_norm(
            x.data_ptr(), y.data_ptr(), weight.data_ptr(), None if bias is None else bias.data_ptr(), eps, has_mean,
            *x.shape, total.data_ptr(), normed.data_ptr(),
        )  # fmt: skip
        return total, normed

    def gelu_tanh(self, x: Tensor) -> Tensor:
        """Compute GELU's tanh form."""
        x = x.contiguous()
        y = torch.empty_like(x)
        self._gelu_tanh(x.data_ptr(), y.data_ptr(), x.numel(), torch.get_num_threads())
        return y

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, scale: float, *, table: Tensor | None = None,
        bias: Tensor | None = None, width: int = 0, fresh: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Attend from single queries (N, H, D) over a cache (attention/kernels/decode.py: `decode_attention`)."""
        q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
        lengths = lengths if lengths.dtype == torch.long else lengths.long()
        bias = None if bias is None else bias.float().contiguous()
        out = torch.empty(q.shape)
        arguments = AttentionArguments(
            q.data_ptr(), None, None, k.data_ptr(), v.data_ptr(), out.data_ptr(), lengths.data_ptr(),
            None if table is None else table.data_ptr(), None if bias is None else bias.data_ptr(), len(q), len(k),
            q.shape[1], q.shape[2], k.shape[1], width, *q.stride()[:2], *k.stride()[:3], *v.stride()[:3], 0, 0, 0, 0,
            0 if table is None else table.stride(0), 0 if bias is None else bias.stride(0), scale,
            torch.get_num_threads(),
        )  # fmt: skip
        if fresh is not None:
            new_k, new_v = (t if t.stride(-1) == 1 else t.contiguous() for t in fresh)
            arguments.fresh_k, arguments.fresh_v = new_k.data_ptr(), new_v.data_ptr()
            arguments.fk_row, arguments.fk_head = new_k.stride()[:2]
            arguments.fv_row, arguments.fv_head = new_v.stride()[:2]
        self._attend(ctypes.byref(arguments))
        return out


def pack_weight(weight: Tensor) -> Tensor:
    """Lay out a weight of whole numbers (out, in) as `Kernels.multiply` reads it: (panels, groups, PANEL, GROUP) of
    unsigned bytes, each + 128."""
    outputs, inputs = weight.shape
    padded = F.pad(weight, (0, -inputs % GROUP, 0, -outputs % PANEL))
    parts = padded.view(-1, PANEL, padded.shape[1] // GROUP, GROUP).transpose(1, 2)
    return parts.contiguous().view(torch.uint8).bitwise_xor_(128)


def pad_to_panels(numbers: Tensor) -> Tensor:
    """Fill up one number for each output to whole panels."""
    return F.pad(numbers.float(), (0, -len(numbers) % PANEL))


@functools.cache
def load_kernels() -> Kernels | None:
    """Compile the kernels if that is yet to be done, load and try them; None where there are none."""
    options = choose_options()
    path = None if options is None else compile_source(options)
    if path is None:
        return None
    try:
        kernels = Kernels(path)
    except (OSError, AttributeError):
        return None
    return None if is_fatal(lambda: are_exact(kernels)) or not are_exact(kernels) else kernels


def choose_options() -> tuple[str, ...] | None:
    """Return the compiler's options for this processor: as much of it as torch itself may use; None for another."""
    linux = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
    if not linux or os.environ.get(VARIABLE, "") == "off":
        return None
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512" and "avx512_vnni" in read_cpu_flags():
        return AVX512_OPTIONS
    return AVX2_OPTIONS if capability in ("AVX512", "AVX2") else None


def read_cpu_flags() -> set[str]:
    """Return the processor's feature flags."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("flags"):
                return set(line.partition(":")[2].split())
    return set()


def get_cache_folder() -> Path:
    """Return the folder that keeps what was compiled."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "formers" / "kernels"


def compile_source(options: tuple[str, ...]) -> Path | None:
    """Return the compiled library, from the user's cache if it is there; None if there is no compiler, or it fails."""
    try:
        command = [*COMPILER_OPTIONS, *options]
        name = hashlib.sha256(SOURCE.read_bytes() + " ".join(command).encode()).hexdigest()[:24]
        folder = get_cache_folder()
        path = folder / f"{name}.so"
        if path.exists():
            return path if path.stat().st_uid == os.getuid() else None  # code of another user is not run
        compiler = next(filter(None, map(shutil.which, (os.environ.get("CXX") or "c++", "g++", "clang++"))), None)
        if compiler is None:
            return None
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            library_file = Path(scratch) / path.name
            subprocess.run(
                [compiler, *command, str(SOURCE), "-o", str(library_file)], check=True, capture_output=True,
                timeout=COMPILE_SECONDS,
            )  # fmt: skip
            library_file.replace(path)  # at once, for other processes that look for it
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no place to write, no home, no OpenMP …
        return None
    return path


def are_exact(kernels: Kernels) -> bool:
    """Return whether the kernels give what they should: the largest sums of whole numbers, and a step of attention."""
    weight = torch.full((65, 130), 127, dtype=torch.int8)
    weight[1] = -127
    x = torch.full((7, 130), 127.0)
    x[3] = -127
    packed, ones = pack_weight(weight), pad_to_panels(torch.ones(65))
    if not torch.equal(kernels.multiply(x, packed, ones, None, 65), x @ weight.float().t()):
        return False
    k = torch.linspace(-1, 1, 2 * 5 * 2 * 8).view(2, 5, 2, 8)
    attended = kernels.attend(k[:, 0], k, k, torch.tensor([5, 5]), 0.5)
    grid = k.transpose(1, 2)  # (rows, H, slots, D)
    weights = (grid @ k[:, 0, :, :, None] * 0.5).softmax(2)
    expected = (weights * grid).sum(2)
    total, normed = kernels.add_norm(x, x, x[0], x[1], 1e-5, True)
    gelu = kernels.gelu_tanh(k)
    near = torch.allclose(attended, expected, atol=1e-5) and torch.equal(total, x + x)
    near = near and torch.allclose(normed, F.layer_norm(total, (130,), x[0], x[1]), atol=1e-3)
    return near and torch.allclose(gelu, F.gelu(k, approximate="tanh"), atol=1e-5)


def is_fatal(trial: Callable[[], object]) -> bool:
    """Return whether a trial would end this process: a child in the same state runs it."""
    if sys.platform == "win32":  # no fork
        return False
    with warnings.catch_warnings():  # of threads, of which the child needs none
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            import resource

            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2 * int(TRIAL_SECONDS))  # should this process be killed meanwhile, the child ends on its own

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a trial that ends badly leaves no file
            torch.set_num_threads(1)
            trial()
        finally:
            os._exit(0)
    with contextlib.suppress(ChildProcessError):  # another handler has reaped the child: the outcome is unknown
        end = time.monotonic() + TRIAL_SECONDS
        while time.monotonic() < end:
            if (ended := os.waitpid(child, os.WNOHANG))[0]:
                return os.WIFSIGNALED(ended[1])
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)  # it hangs on a thread that it does not have: unknown as well
        os.waitpid(child, 0)
    return False
