"""Inputs of a forward pass: a caller's padded tensors are checked and packed into a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .batch import Batch
from .config import format_value, get_schema, suggest_name
from .errors import Error
from .family import Family, ModelConfig
from .nn.attention.kv_cache import KVCache
from .nn.attention.segment_memory import SegmentMemory
from .nn.recurrent.projected_lstm import LSTMState

TensorLike = Any  # dynamic: a tensor, an array, or nested lists of numbers
ModelState = KVCache | SegmentMemory | LSTMState  # what holds earlier tokens
PERMUTATION_INPUTS = ("order", "perm_mask", "target_mapping")


@dataclass(frozen=True)
class ModelInputs:
    """What a caller gives for one forward pass: padded tensors, B rows of T tokens, and what goes with them.

    `keep` and `target_keep` are bool, True at real tokens (the attention mask). `target` is the decoder's input of an
    encoder-decoder. `memory` holds earlier tokens (`Former.create_state`). `heads` masks attention heads: (layers,
    heads), or a dict of such by "encoder", "decoder", "cross". ERNIE 2.0 reads `tasks`, like segments. XLNet reads
    `order` (B, T), or `perm_mask` (B, T, T), 1 = may not see, and `target_mapping` (B, M, T), 1 = predict here."""

    ids: TensorLike  # (B, T), (B, choices, T), or (B, T, 50) characters
    keep: TensorLike = None
    segments: TensorLike = None
    target: TensorLike = None
    target_keep: TensorLike = None
    memory: ModelState | None = None
    heads: TensorLike = None
    tasks: TensorLike = None
    order: TensorLike = None
    perm_mask: TensorLike = None
    target_mapping: TensorLike = None

    @property
    def permutation(self) -> dict[str, TensorLike]:
        """The inputs of XLNet's two streams that are given."""
        arguments = {"order": self.order, "perm_mask": self.perm_mask, "target_mapping": self.target_mapping}
        return {name: value for name, value in arguments.items() if value is not None}


# What transformers calls an input; its masks are numbers, ours are bool.
INPUT_SYNONYMS = {
    "attention_mask": "keep", "token_type_ids": "segments", "decoder_input_ids": "target",
    "decoder_attention_mask": "target_keep",
}  # fmt: skip


def collect_inputs(
    method: str, tensors: tuple[TensorLike, ...], named: Mapping[str, TensorLike], without: Sequence[str]
) -> ModelInputs:
    """Make the inputs of `method` from its arguments; a name that it does not take is an Error with the nearest."""
    known = [name for name in ModelInputs.__dataclass_fields__ if name not in without]
    tables = dict(zip(known, tensors, strict=False))
    for name, value in named.items():
        ours = INPUT_SYNONYMS.get(name, name)
        if ours not in known:
            fix = "a loss is computed by an objective: formers.objectives" if name == "labels" else None
            raise Error(f"{method} does not take {name!r}", fix=fix or suggest_name(name, known))
        if tables.get(ours) is not None:
            raise Error(f"{name} and {ours} are the same input", fix="give one of them")
        is_number_mask = name.endswith("attention_mask") and value is not None
        tables[ours] = torch.as_tensor(value).bool() if is_number_mask else value
    return ModelInputs(**tables)


def get_row_shape(family: Family, ids: Tensor) -> tuple[int, ...]:
    """Return the dimensions before the tokens (and characters): (B,) or (B, choices)."""
    return tuple(ids.shape[: -2 if family.reads_characters else -1])


def to_tensor(values: TensorLike, name: str, device: torch.device | None = None, integer: bool = False) -> Tensor:
    """Convert values to a tensor on a device; integers become int64, which torch indexes with."""
    try:
        tensor = torch.as_tensor(values, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise Error(f"{name} cannot be made a tensor", fix=f"give {name} as a table of numbers") from None
    if integer and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
        raise Error(
            f"{name} must be whole numbers, got {str(tensor.dtype)[6:]}", fix=f"{name}.long(), if it is meant so"
        )
    return tensor.long() if integer else tensor


def check_shape(ids: Tensor, family: Family, config: ModelConfig, name: str) -> None:
    """Refuse a tensor that is not rows of tokens, or of words as characters."""
    slots = config.slots if family.reads_characters else None
    if slots is not None and (ids.dim() < 3 or ids.shape[-2] == 0 or ids.shape[-1] != slots):
        what = f"{name} must be (rows, words, {slots}), got {tuple(ids.shape)}"
        raise Error(what, fix="formers.text.word_level.encode_sentences makes them out of words")
    if ids.dim() < 2 or ids.shape[-1] == 0:
        what = f"{name} must be (rows, tokens), got {tuple(ids.shape)}"
        raise Error(what, fix=f"for one sequence, pass {name}[None]")


def check_length(length: int, limit: int | None) -> None:
    """Refuse more tokens than the model has positions for."""
    if limit is not None and length > limit:
        raise Error(f"{length} tokens are more than the context of {limit}", fix=f"give at most {limit} at once")


def check_ids(ids: Tensor, family: Family, config: ModelConfig, name: str, keep: Tensor | None = None) -> None:
    """Refuse real tokens that the model has no embedding for."""
    if family.reads_characters:
        return check_range(ids, config.characters, name, "characters", None if keep is None else keep[..., None])
    return check_range(ids, config.output_vocab if name == "target" else config.vocab, name, "vocabulary", keep)


def check_range(values: Tensor, size: int, name: str, what: str, keep: Tensor | None = None) -> None:
    """Refuse indices outside 0 … size - 1, naming the first; where `keep` is False anything may stand."""
    wrong = (values < 0) | (values >= size)
    wrong = wrong if keep is None else wrong & keep
    if wrong.any():
        place = wrong.nonzero()[0].tolist()
        at = ", ".join(map(str, place))
        what = f"{name}[{at}] is {int(values[tuple(place)])}, outside the {what} of {size}"
        raise Error(what, fix=f"use 0 to {size - 1}; is this the tokenizer of this model?")


def pack_padded(
    family: Family, config: ModelConfig, ids: Tensor, keep: Tensor | None,
    token_features: Mapping[str, Tensor] | None = None, name: str = "ids",
) -> Batch:  # fmt: skip
    """Pack rows of ids (…, T), or (…, T, slots) characters, with `token_features` such as segments; no row is empty."""
    token_features = token_features or {}
    check_shape(ids, family, config, name)
    rows = len(get_row_shape(family, ids))
    for other, value in {**token_features, "keep": keep}.items():
        if value is not None and value.shape != ids.shape[: rows + 1]:
            what = f"{other} {tuple(value.shape)} does not fit {name} {tuple(ids.shape)}"
            raise Error(what, fix=f"give {other} one value for each token")
    if keep is not None and keep.dtype != torch.bool:
        raise Error(f"keep must be bool, got {str(keep.dtype)[6:]}", fix="use for example keep = ids != pad")
    check_ids(ids, family, config, name, keep)
    for other, value in token_features.items():
        size = config.tasks if other == "tasks" else config.segments or config.vocab
        check_range(value, size, other, other, keep)
    flat = {other: value.flatten() if keep is None else value[keep] for other, value in token_features.items()}
    batch = Batch.from_padded(ids.flatten(0, rows - 1), None if keep is None else keep.flatten(0, -2)).replace(**flat)
    empty = batch.starts[1:] == batch.starts[:-1]
    if empty.any():
        raise Error(f"row {int(empty.nonzero()[0])} of {name} has no token at all", fix="leave empty rows out")
    return batch


def pack_target(
    family: Family, config: ModelConfig, target: Tensor, keep: Tensor | None, source: Batch, rows: tuple[int, ...]
) -> Batch:
    """Pack the decoder's input, with the source as its other side."""
    check_shape(target, family, config, "target")
    if target.shape[:-1] != rows:
        what = f"target {tuple(target.shape)} has other rows than ids {rows}"
        raise Error(what, fix="give one target row per source row")
    return pack_padded(family, config, target, keep, name="target").replace(source=source)


def list_texts(texts: object) -> list[Any]:  # dynamic: what a caller gives, checked where it is read
    """Return several texts as a list; refuse a single value or a table."""
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        what = f"{format_value(texts)} is not text, and holds none"
        raise Error(what, fix="give a string, or a list of them")
    names = getattr(texts, "column_names", None)  # dynamic: a dataset of HF, which need not be installed
    if (names := getattr(texts, "columns", names)) is not None:  # dynamic: a DataFrame
        some = ", ".join(repr(str(name)) for name in list(names)[:5])
        raise Error(f"this is a table with the columns {some}, not a list of texts", fix="give one column of it")
    return list(texts)


def get_start_token(config: ModelConfig) -> int:
    """Return the decoder's first input: `start`, else the begin mark, else the pad."""
    first = next((token for token in (config.start, config.bos, config.pad) if token is not None), None)
    if first is None:
        raise Error("the config does not say how the decoder starts", fix="set start, bos or pad")
    check_range(torch.tensor([first]), config.output_vocab, "start", "vocabulary")
    return first


def shift_source(family: Family, config: ModelConfig, source: Batch) -> Batch:
    """Make the decoder's input of a classifier from the source, shifted right (T5), after the start token or, for
    mBART, the row's own last token, which names the language."""
    layout, ids = source.layout, source.ids.roll(1)
    last = source.ids[layout.get_last_slots()]
    ids[layout.get_first_slots()] = last if family.starts_with_last_token else get_start_token(config)
    return source.replace(ids=ids, source=source)


def apply_permutation(
    family: Family, batch: Batch, shape: tuple[int, ...], given: dict[str, Tensor]
) -> tuple[Batch, dict[str, Tensor]]:
    """Add XLNet's permutation inputs, given for a padded grid of `shape`, to a packed batch; returns it with the
    arguments `visible_pairs` and `targets` of the forward pass."""
    known = {"order": shape, "perm_mask": (*shape, shape[-1]), "target_mapping": (*shape[:-1], -1, shape[-1])}
    for name, value in given.items():
        if not family.is_two_stream:
            what = f"{family.body_class.__name__} has no second stream, which {name} is for"
            raise Error(what, fix=f"leave {name} out")
        sizes = known[name]
        if value.dim() != len(sizes) or any(a != b for a, b in zip(value.shape, sizes, strict=True) if b >= 0):
            raise Error(f"{name} {tuple(value.shape)} does not fit ids {shape}", fix=f"give {name} as {sizes}")
    if "order" in given and len(given) > 1:
        raise Error("order says already who sees whom, and where", fix="leave perm_mask and target_mapping out")
    flat = {name: value.flatten(0, len(shape) - 2) for name, value in given.items()}  # (rows, …)
    rows, columns, device = batch.layout.rows, shape[-1], batch.ids.device
    keep = torch.ones(rows, columns, dtype=torch.bool, device=device) if batch.keep is None else batch.keep
    first = keep.long().argmax(1)[:, None]  # (rows, 1) the column of the first real token
    more: dict[str, Tensor] = {}
    if "order" in flat:
        return batch.replace(order=flat["order"][keep]), more
    if "perm_mask" in flat:
        at = (first + torch.arange(batch.longest, device=device)).clamp(max=columns - 1)  # (rows, longest)
        here = torch.arange(rows, device=device)[:, None, None]
        more["visible_pairs"] = flat["perm_mask"][here, at[:, :, None], at[:, None, :]] == 0
    if "target_mapping" in flat:
        places = flat["target_mapping"] != 0
        column = places.long().argmax(-1)  # (rows, M)
        is_target = places.any(-1)
        if (places.sum(-1) > 1).any() or not keep.gather(1, column)[is_target].all():
            raise Error("a row of target_mapping must name one real token", fix="one 1 in it, or none at all")
        more["targets"] = torch.where(is_target, batch.starts[:-1, None].long() + column - first, -1).flatten()
    return batch, more


def make_head_masks(
    config: ModelConfig, heads: TensorLike | dict[str, TensorLike], pair: bool, device: torch.device
) -> Tensor | dict[str, Tensor]:
    """Check masks of attention heads: one (layers, heads), or for an encoder-decoder a dict of them by stack."""
    if "heads" not in get_schema(type(config)):
        raise Error("this model has no attention heads that could be masked", fix="leave heads out")
    if isinstance(heads, dict) != pair:
        what = "a dict by encoder, decoder and cross" if pair else "one mask of shape (layers, heads)"
        raise Error(f"heads must be {what} for this model", fix="see the docstring of logits")
    decoder = config.num_decoder_layers, config.decoder_heads or config.heads
    sizes = {"encoder": (config.layers, config.heads), "decoder": decoder, "cross": decoder}
    masks = {k: to_tensor(m, "heads", device) for k, m in (heads.items() if pair else [("encoder", heads)])}
    for key, mask in masks.items():
        if key not in sizes:
            raise Error(f"there is no {key!r} with heads to mask", fix="known: " + ", ".join(sizes))
        if tuple(mask.shape) != sizes[key]:
            what = f"the mask of heads{f' of the {key}' if pair else ''} has shape {tuple(mask.shape)}"
            raise Error(what, fix=f"give (layers, heads) = {sizes[key]}")
    return masks if pair else masks["encoder"]
