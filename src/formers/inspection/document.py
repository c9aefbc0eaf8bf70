"""The view document: a view as JSON that a page can draw, and one head's weights as a picture.

Arrays are bytes in base64, so that a text of 512 tokens stays small: of long texts the strongest weights of each row,
and the chosen head whole.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..config import JSONObject, JSONValue
from .attention import AttentionMap, NeuronView

FORMAT = 1
MAX_WEIGHT_BYTES = 2_400_000  # of all attention weights of a document, in base64
MAX_ROLLOUT_BYTES = 400_000
SIGNIFICANT_DIGITS = 4
MIN_TOP, MAX_TOP = 4, 48  # weights of a row that are always there, and that are enough
ENTRY_BYTES = 4  # of one strongest weight: two for its place, one for its value, in base64
CELL_PIXELS = 8


def round_floats(values: JSONValue) -> JSONValue:
    """Round numbers, of a tensor or of nested lists, to a few significant digits; what is not finite becomes None."""
    if type(values) is float:
        return float(f"{values:.{SIGNIFICANT_DIGITS}g}") if math.isfinite(values) else None
    if isinstance(values, Tensor):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return [round_floats(value) for value in values]
    return values if isinstance(values, bool | int) or values is None else round_floats(float(values))


def encode_bytes(data: bytes) -> str:
    """Encode bytes in base64."""
    return base64.b64encode(data).decode("ascii")


def encode_floats(x: Tensor) -> JSONObject:
    """Encode a small array of signed numbers as little-endian float32."""
    data = x.detach().float().cpu().contiguous().numpy().astype("<f4").tobytes()
    return {"shape": list(x.shape), "encoding": "f32", "data": encode_bytes(data)}


def quantise(x: Tensor) -> tuple[Tensor, float]:
    """Quantise numbers that are not negative to bytes: (byte / 255)² · scale, so that small ones keep their order."""
    scale = float(x.max()) if x.numel() else 0.0
    if scale <= 0:
        return torch.zeros_like(x, dtype=torch.uint8), 1.0
    return (x / scale).clamp(min=0).sqrt().mul(255).round().to(torch.uint8), scale


def encode_weights(x: Tensor | Sequence[Tensor], max_bytes: int | None = None) -> JSONObject:
    """Encode numbers that are not negative, of a tensor or of layers of one shape, as bytes; where they would take more
    than `max_bytes`, the strongest of each row."""
    layers = [one.detach().float().cpu() for one in ([x] if isinstance(x, Tensor) else x)]
    shape = list(layers[0].shape) if isinstance(x, Tensor) else [len(layers), *layers[0].shape]
    numbers, width = math.prod(shape), shape[-1] if shape else 1
    if max_bytes is None or 4 * math.ceil(numbers / 3) <= max_bytes:
        data, scale = quantise(layers[0] if isinstance(x, Tensor) else torch.stack(layers))
        values = encode_bytes(data.contiguous().numpy().tobytes())
        return {"shape": shape, "encoding": "u8", "power": 2, "scale": scale, "data": values}
    rows = max(1, numbers // max(1, width))
    count = min(width, MAX_TOP, max(MIN_TOP, max_bytes // (rows * ENTRY_BYTES)))
    best = [one.topk(count, -1) for one in layers]
    strongest, places = torch.stack([one.values for one in best]), torch.stack([one.indices for one in best])
    data, scale = quantise(strongest)
    return {
        "shape": shape, "encoding": "top", "k": count, "power": 2, "scale": scale,
        "index": encode_bytes(places.to(torch.int32).contiguous().numpy().astype("<u2").tobytes()),
        "data": encode_bytes(data.contiguous().numpy().tobytes()),
    }  # fmt: skip


def describe_attention(maps: dict[str, AttentionMap], chosen: tuple[str, int, int] | None) -> JSONObject:
    """Describe attention by kind; `chosen` is a kind, layer and head that is there whole, however long the text."""
    numbers = sum(math.prod(one.shape) for one in maps.values())
    document: JSONObject = {}
    for kind, one in maps.items():
        layers, heads = one.shape[:2]
        share = math.prod(one.shape) / max(1, numbers)
        weights = encode_weights(one.layers, int(MAX_WEIGHT_BYTES * share))
        whole = None
        if weights["encoding"] == "top" and chosen is not None and chosen[0] == kind:
            _, layer, head = chosen
            whole = {"layer": layer, "head": head, "weights": encode_weights(one.layers[layer][head])}
        rollout, distance = one.rollout, one.distance
        document[kind] = {
            "queries": one.queries, "keys": one.keys, "layers": layers, "heads": heads, "memory": one.memory,
            "weights": weights, "whole": whole,
            "value_norms": None if one.value_norms is None else encode_weights(one.value_norms),
            "rollout": None if rollout is None else encode_weights(rollout, int(MAX_ROLLOUT_BYTES * share)),
            "entropy": round_floats(one.entropy), "distance": None if distance is None else round_floats(distance),
        }  # fmt: skip
    return document


def describe_neurons(view: NeuronView) -> JSONObject:
    """Describe the queries and keys of one head."""
    return {
        "layer": view.layer, "head": view.head, "scale": view.scale, "q": encode_floats(view.queries),
        "k": encode_floats(view.keys),
    }  # fmt: skip


def draw_png(weights: Tensor, cell: int = CELL_PIXELS) -> bytes:
    """Draw one head's weights (queries, keys) as a PNG, a square for each; darker is stronger."""
    strength = weights.float().clamp(0, 1).sqrt()
    low, high = torch.tensor([255.0, 255.0, 255.0]), torch.tensor([12.0, 44.0, 132.0])
    pixels = (low + strength[..., None] * (high - low)).round().to(torch.uint8)
    pixels = pixels.repeat_interleave(cell, 0).repeat_interleave(cell, 1)
    height, width = pixels.shape[:2]
    lines = b"".join(b"\0" + row.contiguous().numpy().tobytes() for row in pixels)

    def make_chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = make_chunk(b"IHDR", header), make_chunk(b"IDAT", zlib.compress(lines, 9)), make_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def name_tokens(pieces: Sequence[str]) -> list[str]:
    """Return names of tokens for a picture: a space shows as a mark, a piece inside a character as a dot."""
    return [piece.replace(" ", "␣") if piece.strip() else "␣" if piece else "·" for piece in pieces]
