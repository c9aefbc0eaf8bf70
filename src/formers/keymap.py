"""Two-way maps between our parameter names and another library's. One table serves both directions.

A row reads `theirs: ours`. In a name, `{i}` is a layer number, `*` stands for weight and bias, and a group
`(query|key|value)` on their side means that several of their tensors, joined along the first axis, are one of ours.
Maps know tensors, not files: tensors are fetched by name, one rule at a time, so that a model may be larger than
half of memory."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import Error

TensorTransform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TensorOp:
    """An invertible change of their tensor (joined, if several) into ours."""

    ours: str
    load: TensorTransform = lambda t: t
    save: TensorTransform = lambda t: t


def transpose_tensor(name: str) -> TensorOp:
    """Transpose: GPT-2 keeps Linear weights as (in, out)."""
    return TensorOp(name, lambda t: t.transpose(0, 1), lambda t: t.transpose(0, 1))


def deinterleave_heads(name: str, heads: int) -> TensorOp:
    """Reorder weights from [q₁ k₁ v₁ q₂ k₂ v₂ …] by head to our [q; k; v]."""

    def swap(first: int, second: int) -> TensorTransform:
        return lambda t: t.unflatten(0, (first, second, -1)).transpose(0, 1).flatten(0, 2)

    return TensorOp(name, swap(heads, 3), swap(3, heads))


@dataclass(frozen=True)
class TensorMapping:
    """One step of reading or writing: these of their tensors are this one of ours."""

    theirs: tuple[str, ...]
    ours: str
    op: TensorOp

    def load(self, get: Callable[[str], Tensor]) -> Tensor:
        """Make our tensor from theirs."""
        parts = [get(name) for name in self.theirs]
        return self.op.load(parts[0] if len(parts) == 1 else torch.cat(parts))

    def save(self, tensor: Tensor) -> dict[str, Tensor]:
        """Make their tensors from ours."""
        parts = self.op.save(tensor).chunk(len(self.theirs))
        return {name: part.contiguous() for name, part in zip(self.theirs, parts, strict=True)}


@dataclass(frozen=True)
class KeyMap:
    """A table of names for the body and one for each part of a head, both directions, strict.

    `prefix` stands before the body's names when we write (`@` puts it before a name of a head); on reading, any of
    `prefixes` may stand there or be missing. `tied` lists their copies of a tensor, `drop` their leftovers (`**`
    stands for anything), `aliases` the endings that old files spell differently, and `alternate_names` names
    that hold a tensor as well in what they write: read only if the first is missing, and written as a copy.
    `computed_tables` are tables that they keep and we compute: what a file has there must be the same."""

    body: Mapping[str, str | TensorOp]
    heads: Mapping[str, Mapping[str, str | TensorOp]] = field(default_factory=dict)
    prefix: str = ""
    prefixes: Sequence[str] = ()
    tied: Mapping[str, str] = field(default_factory=dict)  # their copy → their original
    drop: Sequence[str] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)  # old ending → today's
    alternate_names: Mapping[str, str] = field(default_factory=dict)  # their second name → their first
    computed_tables: Mapping[str, Callable[[int], Tensor]] = field(default_factory=dict)  # number of rows → table

    def map_tensors(self, ours: Iterable[str], prefix: str | None = None) -> list[TensorMapping]:
        """Return how each of our parameters is made from theirs, by the names that they write today."""
        prefix = self.prefix if prefix is None else prefix
        rules = [compile_rule(prefix + theirs, "body.", op) for theirs, op in self.body.items()]
        for part, table in self.heads.items():
            rules += [compile_rule(theirs.replace("@", prefix), f"heads.{part}.", op) for theirs, op in table.items()]
        moves = []
        for name in ours:
            for pattern, theirs, op in rules:
                if match := pattern.fullmatch(name):
                    moves.append(TensorMapping(tuple(expand_names(theirs, match.groupdict())), name, op))
                    break
            else:
                what = f"no rule for our tensor {name!r}"
                raise Error(what, fix="this is a gap in the family's key map: please report it")
        return moves

    def plan_load(
        self, names: Iterable[str], ours: Iterable[str], optional: Callable[[str], bool] = lambda name: False
    ) -> LoadPlan:
        """Plan how to fill our parameters from a file that has these names. A parameter that the file lacks is an error
        unless `optional`, an unused tensor is an error unless it is tied, a known leftover, or part of another head of
        the family."""
        there: dict[str, str] = {}  # bare name as written today → name in the file
        for name in names:
            if there.setdefault(self.normalise_name(name), name) != name:
                what = f"tensors {there[self.normalise_name(name)]!r} and {name!r} are the same thing twice"
                raise Error(what, fix="remove one of them")
        moves, fresh, used = [], [], set[str]()
        for move in self.map_tensors(ours, prefix=""):
            sources = {n: next((o for o in (n, *self.find_copies(n)) if o in there), "") for n in move.theirs}
            if all(sources.values()):
                used.update(sources.values())
                moves.append(TensorMapping(tuple(there[name] for name in sources.values()), move.ours, move.op))
            elif optional(move.ours):
                fresh.append(move.ours)
            else:
                lost = next(name for name, here in sources.items() if not here)
                what = f"tensor {lost!r} is missing"
                raise Error(what, fix="the file is incomplete, or its config belongs to another model")
        spare = [compile_pattern(name.replace("@", "")) for table in self.heads.values() for name in table]
        spare += [compile_pattern(name) for name in (*self.drop, *self.alternate_names)]
        checks = []
        tables = {there[name]: table for name, table in self.computed_tables.items() if name in there}
        for name in sorted(set(there) - used - set(self.computed_tables)):
            source = self.tied.get(name, "")
            if source in used:
                checks.append((there[name], there[source]))
            elif not source and not any(pattern.fullmatch(name) for pattern in spare):
                fix = "it belongs to another model, or the config describes a smaller one"
                raise Error(f"unknown tensor {there[name]!r}", fix=fix)
        return LoadPlan(moves, fresh, checks, tables)

    def normalise_name(self, name: str) -> str:
        """Return a file's name without prefix, as it is spelled today."""
        name = next((name.removeprefix(p) for p in self.prefixes if p and name.startswith(p)), name)
        old = next((old for old in self.aliases if name.endswith(old)), None)
        return name if old is None else name[: -len(old)] + self.aliases[old]

    def find_copies(self, name: str) -> list[str]:
        """Return the other names under which files may hold a tensor."""
        return [copy for copy, source in (*self.tied.items(), *self.alternate_names.items()) if source == name]


@dataclass(frozen=True)
class LoadPlan:
    """How to load a file: mappings, parameters it lacks, tied pairs that must be equal, tables that must be ours."""

    mappings: list[TensorMapping]
    missing_parameters: list[str]
    tied_pairs: list[tuple[str, str]]
    computed_tables: Mapping[str, Callable[[int], Tensor]] = field(default_factory=dict)


def compile_rule(theirs: str, scope: str, op: str | TensorOp) -> tuple[re.Pattern[str], str, TensorOp]:
    """Compile one row of a table, to be matched against our full names."""
    op = op if isinstance(op, TensorOp) else TensorOp(op)
    return compile_pattern(scope + op.ours), theirs, op


@functools.cache
def compile_pattern(name: str) -> re.Pattern[str]:
    """Compile a name with {i}, *, ** and (a|b) to a pattern."""
    text = re.escape(name).replace(r"\*\*", ".*").replace(r"\*", "(?P<p>weight|bias)").replace(r"\{i\}", r"(?P<i>\d+)")
    return re.compile(text.replace(r"\(", "(?:").replace(r"\)", ")").replace(r"\|", "|"))


def expand_names(name: str, fields: Mapping[str, str]) -> Iterator[str]:
    """Yield a name with its fields filled in, once for each member of its group."""
    for key, value in fields.items():
        name = name.replace("*" if key == "p" else f"{{{key}}}", value)
    group = re.search(r"\(([^)]*)\)", name)
    for member in group.group(1).split("|") if group else [""]:
        yield name[: group.start()] + member + name[group.end() :] if group else name
