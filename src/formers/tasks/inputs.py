"""Padded tensors from a caller: checked, and packed into a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..config import suggest
from ..errors import Error


def check_ids(ids: Tensor, config: Any, name: str, past: int = 0) -> None:
    """Refuse ids that the model has no embedding or no position for."""
    if ids.dim() < 2 or ids.shape[-1] == 0 or ids.is_floating_point() or ids.dtype == torch.bool:
        what = f"{name} must be whole numbers of shape (rows, tokens), got {str(ids.dtype)[6:]} {tuple(ids.shape)}"
        raise Error(what, fix="for one sequence, pass ids[None]")
    other = getattr(config, "target_vocab", None) if name == "target" else None
    check_range(ids, other or config.vocab, name, "vocabulary")
    limit, length = getattr(config, "context", None), past + ids.shape[-1]
    if limit is not None and length > limit:
        raise Error(
            f"{length} tokens are more than the context of {limit}", fix=f"cut the text, or use windows of {limit}"
        )


def check_range(values: Tensor, size: int, name: str, what: str) -> None:
    """Refuse indices outside 0 … size - 1, naming the first."""
    wrong = (values < 0) | (values >= size)
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        at = ", ".join(map(str, place))
        what = f"{name}[{at}] is {int(values[tuple(place)])}, outside the {what} of {size}"
        raise Error(what, fix=f"use 0 to {size - 1}; is this the tokenizer of this model?")


def pack(config: Any, ids: Tensor, keep: Tensor | None, segments: Tensor | None, past: int = 0) -> Batch:
    """Rows of ids (…, T) as a batch; every row must have a token."""
    check_ids(ids, config, "ids", past)
    if segments is not None:
        size = getattr(config, "segments", None)
        check_range(segments, config.vocab if size is None else size, "segments", "segments")
    for name, other in (("keep", keep), ("segments", segments)):
        if other is not None and other.shape != ids.shape:
            what = f"{name} {tuple(other.shape)} does not fit ids {tuple(ids.shape)}"
            raise Error(what, fix=f"give {name} the shape of ids")
    keep, segments = (t if t is None else t.flatten(0, -2) for t in (keep, segments))
    batch = Batch.of(ids.flatten(0, -2), keep, segments)
    empty = batch.starts[1:] == batch.starts[:-1]
    if empty.any():
        raise Error(f"row {int(empty.nonzero()[0])} of ids has no token at all", fix="leave empty rows out")
    return batch


def target_batch(config: Any, target: Tensor, keep: Tensor | None, source: Batch, rows: tuple[int, ...]) -> Batch:
    """The decoder's side of a pair."""
    check_ids(target, config, "target")
    if target.shape[:-1] != rows:
        what = f"target {tuple(target.shape)} has other rows than ids {rows}"
        raise Error(what, fix="give one target row per source row")
    return Batch.of(target.flatten(0, -2), None if keep is None else keep.flatten(0, -2), source=source)


def shifted(config: Any, source: Batch) -> Batch:
    """The source once more as the decoder's input, one to the right, as T5's classifiers take it."""
    first = torch.zeros_like(source.ids, dtype=torch.bool)
    first[source.layout.first()] = True
    start = config.pad if config.start is None else config.start
    return source.replace(ids=torch.where(first, start, source.ids.roll(1)), source=source)


def permuted(body: Any, batch: Batch, shape: tuple[int, ...], given: dict[str, Tensor]) -> tuple[Batch, dict[str, Any]]:
    """What XLNet's two streams are told, for the rows of a padded grid of this shape: in the packed batch, and beside
    it the arguments `see` and `targets` of the forward pass."""
    known = {"order": shape, "perm_mask": (*shape, shape[-1]), "target_mapping": (*shape[:-1], -1, shape[-1])}
    for name, value in given.items():
        if name not in known:
            raise Error(f"logits does not take {name!r}", fix=suggest(name, known))
        if not hasattr(body, "blank"):
            raise Error(f"{type(body).__name__} has no second stream, which {name} is for", fix=f"leave {name} out")
        wanted = known[name]
        if value.dim() != len(wanted) or any(a != b for a, b in zip(value.shape, wanted, strict=True) if b >= 0):
            raise Error(f"{name} {tuple(value.shape)} does not fit ids {shape}", fix=f"give {name} as {wanted}")
    if "order" in given and len(given) > 1:
        raise Error("order says already who sees whom, and where", fix="leave perm_mask and target_mapping out")
    flat = {name: value.flatten(0, len(shape) - 2) for name, value in given.items()}  # (rows, …)
    rows, columns = batch.layout.rows, shape[-1]
    device = batch.ids.device
    keep = torch.ones(rows, columns, dtype=torch.bool, device=device) if batch.keep is None else batch.keep
    first = keep.long().argmax(1)[:, None]  # (rows, 1) the column of the first real token
    more: dict[str, Any] = {}
    if "order" in flat:
        return batch.replace(order=flat["order"][keep]), more
    if "perm_mask" in flat:
        at = (first + torch.arange(batch.longest, device=device)).clamp(max=columns - 1)  # (rows, longest)
        here = torch.arange(rows, device=device)[:, None, None]
        more["see"] = flat["perm_mask"][here, at[:, :, None], at[:, None, :]] == 0
    if "target_mapping" in flat:
        places = flat["target_mapping"] != 0
        column = places.long().argmax(-1)  # (rows, M)
        asked = places.any(-1)
        if (places.sum(-1) > 1).any() or not keep.gather(1, column)[asked].all():
            raise Error("a row of target_mapping must name one real token", fix="one 1 in it, or none at all")
        more["targets"] = torch.where(asked, batch.starts[:-1, None].long() + column - first, -1).flatten()
    return batch, more


def head_masks(config: Any, heads: Any, pair: bool, device: Any) -> Any:
    """Masks of attention heads: one (layers, heads), or for an encoder-decoder a dict of them by stack."""
    if not hasattr(config, "heads"):
        raise Error("this model has no attention heads that could be masked", fix="leave heads out")
    if isinstance(heads, dict) != pair:
        what = "a dict by encoder, decoder and cross" if pair else "one mask of shape (layers, heads)"
        raise Error(f"heads must be {what} for this model", fix="see the docstring of logits")
    depth = getattr(config, "depth", 0)
    inner = getattr(config, "decoder_heads", None) or config.heads
    sizes = {
        "encoder": (config.layers, config.heads),
        "decoder": (depth, inner),
        "cross": (depth, inner),
    }
    masks = {k: torch.as_tensor(m, device=device) for k, m in (heads.items() if pair else [("encoder", heads)])}
    for key, mask in masks.items():
        if key not in sizes:
            raise Error(f"there is no {key!r} with heads to mask", fix="known: " + ", ".join(sizes))
        if tuple(mask.shape) != sizes[key]:
            what = f"the {key} mask of heads has shape {tuple(mask.shape)}"
            raise Error(what, fix=f"give (layers, heads) = {sizes[key]}")
    return masks if pair else masks["encoder"]
