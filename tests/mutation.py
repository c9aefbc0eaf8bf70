"""Does a test notice when the code is broken?   python -m tests.mutation [FILES] [--full] [--sample N] [--seed S]

The files are those of a room, nn/ or objectives/; --jobs J tries several at a time.

One small change at a time is made in memory, never in a file: a process is forked from one that has torch loaded,
reads the changed module in place of the real one, and runs the quick tests. A change is killed when a test fails or
the time is up, and survives when all pass. Below 85 % killed the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import copy
import functools
import importlib.machinery
import importlib.util
import linecache
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import safetensors.torch
import tokenizers
import torch._dynamo
import torch.nn.attention.flex_attention
from hypothesis import Phase, settings

from tests import conftest

LOADED = (conftest, safetensors, tokenizers, torch)  # before the fork, so that no child pays for them
settings.register_profile("hasty", settings.get_profile("formers"), phases=[Phase.explicit, Phase.generate])
SOURCE = Path(__file__).parents[1] / "src"
GOAL = 0.85

# In each child, until one fails: from the quick tests that kill most to the slow ones.
FIRST = ("test_types", "test_layers", "test_block", "test_masks", "test_positions", "test_attention", "test_dispatch")
NN = [
    str(p) for p in sorted(Path(__file__).parent.glob("nn/**/test_*.py"), key=lambda p: (p.stem not in FIRST, p.stem))
]
# The test that looks at a file of objectives/ most closely comes first: that of its name, or this one.
OWN = {"token_losses": "span_corruption"}
OBJECTIVES = [
    "frozen", "masking", "causal", "token_losses", "masking_pairs", "span_corruption", "seq2seq", "permutation",
    "denoising", "masking_units", "bidirectional", "registry", "word_vector_losses", "every_family",
]  # fmt: skip
TESTS = {
    "nn": [
        [*NN, "-k", "not test_flex and not pieces and not compile"],
        [
            "tests/parity/test_golden.py",
            "tests/test_former.py",
            "tests/generation",
            "tests/inspection",
            "-k",
            "not tree",
        ],
        ["tests/models/test_family.py", "-k", "not compiles and not presets"],
        [*NN, "-k", "test_flex or pieces or compile"],
        ["tests/models/test_family.py", "-k", "compiles and gpt2"],
    ],
    "objectives": [[f"tests/objectives/test_{name}.py"] for name in OBJECTIVES]
    + [["tests/nn/test_adaptive_softmax.py"]],
}
OPTIONS = ["-x", "-q", "--tb=no", "--hypothesis-profile=hasty", "-p", "no:cacheprovider", "-p", "no:xdist"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]

# Never run without a GPU, where tests/gpu covers them: counted and printed, but in no score.
CUDA = {"_get_flex_kernel", "_compile_flex"}

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "zeros_like": "ones_like",
    "new_zeros": "new_ones", "logical_and": "logical_or", "zero_": "detach", "fill_": "add_",
}  # fmt: skip
METHODS = {
    "abs", "clamp", "contiguous", "detach", "flatten", "flip", "float", "long", "masked_fill", "square", "to",
    "transpose", "unfold",
}  # fmt: skip


class Mutant(NamedTuple):
    """One change of one file: `put(new)` makes it, `put(old)` takes it back; `why` it is left out, if it is."""

    file: str
    tree: ast.Module
    put: Callable[[ast.AST], None]
    old: ast.AST
    new: ast.AST
    why: str

    def __str__(self) -> str:
        """Where, what (from a little before the first difference), and the line it is in."""
        number = self.old.value.lineno if isinstance(self.old, ast.keyword) else self.old.lineno
        a, b = ast.unparse(self.old), ast.unparse(self.new)
        same = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        a, b = (" ".join(text[max(0, same - 30) : same + 50].split()) for text in (a, b))
        return f"{self.file}:{number}  {a} → {b}    in  {linecache.getline(str(SOURCE / self.file), number).strip()}"


def copy_with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def list_variants(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op]):
            yield copy_with(node, ops=[SWAPS[type(op)]()])
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            yield copy_with(node, op=SWAPS[type(op)]())
        case ast.UnaryOp(operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield copy_with(node, value=not value)
        case ast.Constant(value=int(value)):
            yield copy_with(node, value=value + 1)
            yield copy_with(node, value=value - 1)
        case ast.Constant(value=float(value)):
            yield copy_with(node, value=2 * value + (value == 0))
        case ast.Constant(value=str(value)) if value and " " not in value:  # others are messages
            yield copy_with(node, value=value + "!")
        case ast.Name(id=name) if name in NAMES:
            yield copy_with(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield copy_with(node, attr=NAMES[name])
        case ast.keyword(arg=name) if name in NAMES:
            yield copy_with(node, arg=NAMES[name])
        case ast.Slice(lower=lower, upper=upper):
            if lower is not None and ast.unparse(lower) != "0":
                yield copy_with(node, lower=None)
            if upper is not None:
                yield copy_with(node, upper=None)
        case ast.Return(value=value) if value is not None and ast.unparse(value) != "None":
            yield copy_with(node, value=ast.Constant(None))
    match node:
        case ast.BoolOp(values=values):
            for i in range(len(values)):
                rest = values[:i] + values[i + 1 :]
                yield rest[0] if len(rest) == 1 else copy_with(node, values=rest)
        case ast.Call(func=func, args=args, keywords=keywords):
            for i, keyword in enumerate(keywords):
                if keyword.arg not in (None, "device"):  # there is one device only
                    yield copy_with(node, keywords=keywords[:i] + keywords[i + 1 :])
            if isinstance(func, ast.Attribute) and func.attr in METHODS:
                yield func.value  # x.method(…) → x
            elif len(args) == 1 and not keywords and not isinstance(args[0], ast.Starred):
                yield args[0]  # f(x) → x
        case ast.If(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield copy_with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Expr() | ast.AugAssign() | ast.Raise() | ast.Continue():
            yield ast.Pass()
        case ast.Assign(targets=[target], value=value):
            names = [{n.id for n in ast.walk(x) if isinstance(n, ast.Name)} for x in (target, value)]
            if isinstance(target, ast.Attribute) or names[0] & names[1] - {"self"}:
                yield ast.Pass()  # of other names nothing would be left, and any test at all would notice


def is_silent(node: ast.AST) -> bool:
    """A part of the source that computes nothing."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.JoinedStr() | ast.Assert() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Assign(value=ast.JoinedStr() | ast.Subscript(value=ast.Name(id="Callable" | "Literal"))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Call(func=ast.Attribute(attr="warn")):
            return True
    return False


def list_places(node: ast.AST, why: str = "") -> Iterator[tuple[Callable[[ast.AST], None], ast.AST, str]]:
    """Every node that may be changed: the way to put another in its place, the node, and why it is left out."""
    if isinstance(node, ast.FunctionDef) and node.name in CUDA:
        why = f"CUDA only: {node.name}"
    if isinstance(node, ast.Raise):  # what it says is a message
        return
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        gpu = isinstance(node, ast.IfExp) and field == "body" and ast.unparse(node.test).endswith(".is_cuda")
        here = "CUDA only: a value for a GPU" if gpu else why
        for i, child in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(child, ast.AST) and not is_silent(child):
                put, *at = (value.__setitem__, i) if isinstance(value, list) else (setattr, node, field)
                yield functools.partial(put, *at), child, here
                yield from list_places(child, here)


def list_mutants(path: Path) -> list[Mutant]:
    """All changes of a file."""
    tree, file = ast.parse(path.read_text(encoding="utf-8")), path.relative_to(SOURCE).as_posix()
    return [
        Mutant(file, tree, put, old, new, why) for put, old, why in [*list_places(tree)] for new in list_variants(old)
    ]


class Changed(importlib.machinery.SourceFileLoader):
    """Gives the code of a tree instead of the file's; also the finder that is asked first."""

    def __init__(self, file: str, tree: ast.Module):
        super().__init__(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"), str(SOURCE / file))
        self.code = compile(ast.fix_missing_locations(tree), self.path, "exec")

    def get_code(self, fullname):
        return self.code

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def tests_of(file: Path) -> list[list[str]]:
    """The tests of a file's room, those of the file itself first."""
    return sorted(
        TESTS[file.parts[1]], key=lambda tests: not tests[0].endswith(f"test_{OWN.get(file.stem, file.stem)}.py")
    )


def start_child(file: str, tree: ast.Module, limit: int) -> int:
    """Fork a child that runs the tests against a changed file; it exits with 0 if all pass."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        signal.alarm(limit)
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        os.chdir(SOURCE.parent)
        sys.meta_path.insert(0, Changed(file, tree))
        code = int(any(pytest.main([*OPTIONS, *tests]) for tests in tests_of(Path(file))))
    finally:
        os._exit(code)


def draw_sample(found: list[Mutant], size: int, seed: int) -> list[Mutant]:
    """As many of each file as its share, but at least three."""
    draw, chosen = random.Random(seed), []
    for file in sorted({m.file for m in found}):
        mine = [m for m in found if m.file == file]
        chosen += draw.sample(mine, min(len(mine), max(3, round(size * len(mine) / len(found)))))
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="default: all of src/formers/nn")
    parser.add_argument("--full", action="store_true", help="every change, not a sample")
    parser.add_argument("--sample", type=int, default=150, help="how many changes (150)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--jobs", type=int, default=1, help="children at a time (1)")
    args = parser.parse_args()
    files = [file.resolve() for file in args.files] or sorted((SOURCE / "formers" / "nn").rglob("*.py"))
    every = [m for file in files for m in list_mutants(file)]
    counted = [m for m in every if not m.why]
    chosen = counted if args.full else draw_sample(counted, args.sample, args.seed)

    began = time.monotonic()
    if os.waitpid(start_child(chosen[0].file, chosen[0].tree, 600), 0)[1]:
        print("the tests fail on the code as it is: see python -m pytest tests")
        return 2
    whole = time.monotonic() - began
    print(f"{len(every)} changes, {len(chosen)} of them tried; all tests take {whole:.0f} s", flush=True)

    running: dict[int, Mutant] = {}
    tried, alive, late = Counter[str](), Counter[str](), 0
    for mutant in [*chosen, *[None] * args.jobs]:
        if len(running) == args.jobs or (mutant is None and running):
            child, status = os.wait()
            done = running.pop(child)
            tried[done.file] += 1
            late += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
            if status == 0:
                alive[done.file] += 1
                print("survived ", done, flush=True)
        if mutant is not None:
            mutant.put(mutant.new)
            running[start_child(mutant.file, mutant.tree, int(3 * whole * args.jobs) + 20)] = mutant
            mutant.put(mutant.old)

    print(f"\n{'file':32} changes  killed  survived   score")
    for file in [*sorted(tried), "total"]:
        n, left = (tried.total(), alive.total()) if file == "total" else (tried[file], alive[file])
        print(f"{file:32} {n:7} {n - left:7} {left:9} {1 - left / n:7.1%}")
    print(f"\n{late} of the killed ran out of time; {(time.monotonic() - began) / 60:.0f} minutes in all")
    for why, count in sorted(Counter(m.why for m in every if m.why).items()):
        print(f"left out  {count:3}  {why}")
    print("not made: changes of annotations, docstrings, decorators, imports, messages, assertions, device=")
    return int(1 - alive.total() / tried.total() < GOAL)


if __name__ == "__main__":
    sys.exit(main())
