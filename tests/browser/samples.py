"""View documents with made-up numbers in every part of the format, so that the page is tested without a model."""

# ruff: noqa: E501, RUF005, SIM905
from __future__ import annotations

import base64
import functools
from typing import Any

import numpy as np

NOTE = "Attention shows where a model reads, not why it decides: alone it is not an explanation."
ENGLISH = "The old bank by the river lent money to the fishermen , and they paid it back ."
KOREAN = "한국어 모델 은 형태소 를 나누어 읽고 , 다음 에 올 단어 를 예측 합니다 🙂 ."
GUESSES = ["the", "river", "bank", "money", "fish", "water", "boat", "and"]


def pack_whole(values: np.ndarray, power: int = 1) -> dict[str, Any]:
    scale = float(values.max()) or 1.0
    data = np.round((values / scale) ** (1 / power) * 255).astype(np.uint8)
    shape = list(values.shape)
    return {"shape": shape, "encoding": "u8", "power": power, "scale": scale, "data": encode(data)}


def pack_top(values: np.ndarray, k: int) -> dict[str, Any]:
    index = np.argsort(-values, axis=-1, kind="stable")[..., :k]
    kept = np.take_along_axis(values, index, -1)
    scale = float(values.max()) or 1.0
    data = np.round(np.sqrt(kept / scale) * 255).astype(np.uint8)
    return {
        "shape": list(values.shape), "encoding": "top", "k": k, "power": 2, "scale": scale,
        "index": encode(index.astype("<u2")), "data": encode(data),
    }  # fmt: skip


def pack_floats(values: np.ndarray) -> dict[str, Any]:
    return {"shape": list(values.shape), "encoding": "f32", "data": encode(values.astype("<f4"))}


def encode(values: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()


def make_tokens(words: list[str], specials: set[str]) -> tuple[str, list[dict[str, Any]]]:
    text, tokens = "", []
    for word in words:
        special = word in specials
        start = len(text)
        if not special:
            text += (" " if text else "") + word
        tokens.append({
            "id": abs(hash(word)) % 30000, "text": word, "piece": word, "start": start, "end": len(text),
            "special": special, "joined": False,
        })  # fmt: skip
    return text, tokens


def make_side(words: list[str], specials: set[str] = frozenset(), memory: int = 0) -> dict[str, Any]:
    text, tokens = make_tokens(words, set(specials))
    side: dict[str, Any] = {"text": text, "segments": None, "memory": memory, "tokens": tokens}
    if memory:
        side["memory_tokens"] = make_tokens([f"earlier{i}" for i in range(memory)], set())[1]
    return side


def make_weights(rng, layers: int, heads: int, queries: int, keys: int, causal: bool, memory: int = 0) -> np.ndarray:
    """Softmax of random scores with some structure: near tokens, one strong column, one diagonal a head."""
    place = (
        np.arange(keys)[None, :]
        - memory
        - np.arange(queries)[:, None] * (1 if causal or queries == keys else keys / queries)
    )
    out = np.empty((layers, heads, queries, keys), np.float32)
    for layer in range(layers):
        for head in range(heads):
            offset = [-1, 0, 1, -3][head % 4]
            scores = rng.normal(0, 1, (queries, keys)) - 0.5 * (1 + head % 3) * np.abs(place - offset)
            scores[:, (head * 5) % keys] += 3 * ((layer + head) % 3)
            if causal:
                scores[place > 0] = -np.inf
            scores -= scores.max(-1, keepdims=True)
            weights = np.exp(scores)
            out[layer, head] = weights / weights.sum(-1, keepdims=True)
    return out


def make_attention(
    rng, queries: str, keys: str, size: tuple[int, int, int, int], causal=False, memory=0, top=0
) -> dict:
    weights = make_weights(rng, *size, causal, memory)
    layers, heads, q, k = size
    rollout = np.empty((layers, q, k), np.float32)
    for layer in range(layers):
        mean = weights[: layer + 1].mean((0, 1))
        rollout[layer] = mean / mean.sum(-1, keepdims=True)
    entropy = -(weights * np.log2(np.maximum(weights, 1e-9))).sum(-1).mean(-1)
    distance = (weights * np.abs(np.arange(k)[None] - memory - np.arange(q)[:, None])).sum(-1).mean(-1)
    whole = {"layer": 0, "head": 0, "weights": pack_whole(weights[0, 0], 2)} if top else None
    return {
        "queries": queries, "keys": keys, "layers": layers, "heads": heads, "memory": memory,
        "weights": pack_top(weights, top) if top else pack_whole(weights, 2), "whole": whole,
        "value_norms": pack_whole(rng.gamma(4, 0.5, (layers, heads, k)).astype(np.float32)),
        "rollout": pack_top(rollout, top) if top else pack_whole(rollout, 2),
        "entropy": entropy.round(3).tolist(), "distance": distance.round(2).tolist(),
    }  # fmt: skip


def make_top(rng, words: list[str], target: str | None = None) -> tuple[list[dict[str, Any]], float]:
    p = np.sort(rng.dirichlet([0.4] * 8))[::-1] * 0.95
    names = list(rng.permutation(words))[:8]
    own = 0.0
    if target is not None and rng.random() < 0.6:
        names[int(rng.integers(3))] = target
        own = float(p[names.index(target)])
    return [
        {"text": str(name), "id": i, "p": float(q)} for i, (name, q) in enumerate(zip(names, p, strict=False))
    ], own or 0.01


def make_prediction(rng, side: str, tokens: list[dict[str, Any]], method: str, layers: int) -> dict[str, Any]:
    words = [token["text"] for token in tokens]
    pool = list(dict.fromkeys(words + GUESSES))
    shift = 1 if method == "causal" else 0
    targets = [i for i, token in enumerate(tokens) if i >= shift and not (token["special"] and shift == 0)]
    picked = [make_top(rng, pool, words[i]) for i in targets]
    rows = []
    for layer in range(layers + 1):
        tops = [
            make_top(rng, pool, words[i])[0] if rng.random() > layer / layers else picked[n][0]
            for n, i in enumerate(targets)
        ]
        changed = [bool(rows) and rows[-1]["top"][n][0]["text"] != top[0]["text"] for n, top in enumerate(tops)]
        kl = [round(float(rng.gamma(1, (layers - layer) + 0.05)), 3) for _ in targets]
        own = [
            next((one["p"] for one in top if one["text"] == words[i]), 0.001)
            for top, i in zip(tops, targets, strict=True)
        ]
        rows.append({"layer": layer, "top": tops, "probability": own, "kl_to_final": kl, "changed": changed})
    found = {
        "side": side, "method": method, "positions": [i - shift for i in targets], "targets": targets,
        "probability": [own for _, own in picked], "surprisal": [float(-np.log2(own)) for _, own in picked],
        "top": [top for top, _ in picked], "layers": rows,
    }  # fmt: skip
    return {**found, "next": make_top(rng, pool)[0]} if method == "causal" else found


def make_attribution(rng, sides: dict[str, Any], side: str) -> dict[str, Any]:
    methods = {}
    for name in ("input_x_gradient", "integrated_gradients", "occlusion", "value_zeroing"):
        shares = np.linspace(0, 1, 11)
        strength = rng.uniform(1.5, 4)
        methods[name] = {
            "sides": {key: rng.normal(0.1, 0.6, len(one["tokens"])).tolist() for key, one in sides.items()},
            "gap": 0.004 if name == "integrated_gradients" else None,
            "deletion": {
                "shares": shares.tolist(), "score": (6 * np.exp(-strength * shares) - 1).tolist(),
                "random": (6 * (1 - shares) ** 1.1 - 1).tolist(),
            },
        }  # fmt: skip
    target = {
        "side": side, "position": 5, "text": "river", "id": 7, "contrast": {"text": "street", "id": 9}, "value": 4.97,
        "baseline": -1.02, "replacement": "[PAD]",
    }  # fmt: skip
    return {"target": target, "methods": methods}


def make_states(rng, side: str, words: list[str], layers: int) -> dict[str, Any]:
    base = rng.normal(0, 1, (len(words), 2))
    rows = []
    for layer in range(layers + 1):
        pca = base + rng.normal(0, 0.3, base.shape) * layer
        gaps = ((pca[:, None] - pca[None]) ** 2).sum(-1)
        near = np.argsort(gaps, -1)[:, 1:6]
        neighbours = [
            [{"index": int(j), "text": words[j], "cosine": float(np.exp(-gaps[i, j] / 8))} for j in row]
            for i, row in enumerate(near)
        ]
        rows.append({"layer": layer, "pca": pca.tolist(), "explained": [0.41, 0.22], "neighbours": neighbours})
    return {"side": side, "layers": rows}


def make_objectives(words: list[str]) -> list[dict[str, Any]]:
    def keep(items, special=()):
        return [{"text": word, "state": "special" if word in special else "kept"} for word in items]

    frame = ["[CLS]", *words, "[SEP]"]
    plain = keep(frame, {"[CLS]", "[SEP]"})
    chosen = {3, 6, 11} & set(range(len(frame) - 1))
    picked = [{**token, "state": "target"} if i in chosen else token for i, token in enumerate(plain)]
    masked = [
        {"text": "[MASK]", "state": "masked"}
        if i in chosen and i != 6
        else {"text": "boat", "state": "random"}
        if i == 6
        else token
        for i, token in enumerate(plain)
    ]
    mlm = [
        {"title": "The sentence as tokens", "tokens": plain, "note": "Special tokens are never hidden."},
        {"title": "15 % are chosen", "tokens": picked, "note": "An exact count, drawn at random."},
        {"title": "80 % become [MASK], 10 % a random token", "tokens": masked, "note": "10 % stay as they are."},
    ]
    spans = (
        keep(words[:3])
        + [{"text": "<0>", "state": "sentinel"}]
        + keep(words[6:10])
        + [{"text": "<1>", "state": "sentinel"}]
        + keep(words[12:])
    )
    answer = [
        {"text": "<0>", "state": "sentinel"},
        *({"text": w, "state": "target"} for w in words[3:6]),
        {"text": "<1>", "state": "sentinel"},
        *({"text": w, "state": "target"} for w in words[10:12]),
    ]
    t5 = [
        {"title": "The sentence as tokens", "tokens": keep(words), "note": ""},
        {"title": "Spans become sentinels: the encoder's input", "tokens": spans, "note": "One sentinel a span."},
        {"title": "The decoder writes what is missing", "tokens": answer, "note": ""},
    ]
    half = len(words) // 2
    bart = [
        {"title": "Two sentences", "tokens": keep(words), "note": ""},
        {
            "title": "Sentences are permuted",
            "tokens": [{"text": w, "state": "moved"} for w in words[half:]] + keep(words[:half]),
            "note": "",
        },
        {
            "title": "Spans become one mask",
            "tokens": keep(words[half:-2]) + [{"text": "<mask>", "state": "masked"}] + keep(words[:half]),
            "note": "Lengths follow a Poisson distribution.",
        },
    ]
    return [
        {"name": "mlm", "family": "bert", "help": "Masked language modelling.", "tokenizer": "model", "steps": mlm},
        {"name": "span-corruption", "family": "t5", "help": "Span corruption.", "tokenizer": "small", "steps": t5},
        {"name": "denoising", "family": "bart", "help": "Denoising.", "tokenizer": "small", "steps": bart},
    ]


def make_model(name: str, family: str, kind: str, layers: int, heads: int) -> dict[str, Any]:
    return {
        "name": name, "family": family, "head": "lm", "kind": kind, "layers": layers, "heads": heads, "dim": 64 * heads,
        "vocab": 30522, "parameters": 109_482_240,
    }  # fmt: skip


def make_encoder(
    text: str = ENGLISH, layers: int = 6, heads: int = 8, name: str = "bert-mini", seed: int = 0
) -> dict[str, Any]:
    """An encoder with every part that one may have."""
    rng = np.random.default_rng(seed)
    words = ["[CLS]", *text.split(), "[SEP]"]
    side = make_side(words, {"[CLS]", "[SEP]"})
    size = (layers, heads, len(words), len(words))
    dim = 32
    return {
        "format": 1, "model": make_model(name, "bert", "encoder", layers, heads), "note": NOTE, "sides": {"text": side},
        "attention": {"encoder": make_attention(rng, "text", "text", size)},
        "neuron": {"encoder": {
            "layer": 1, "head": 2, "scale": dim**-0.5, "q": pack_floats(rng.normal(0, 1, (len(words), dim))),
            "k": pack_floats(rng.normal(0, 1, (len(words), dim))),
        }},
        "prediction": make_prediction(rng, "text", side["tokens"], "masked", layers),
        "attribution": make_attribution(rng, {"text": side}, "text"),
        "heads": {
            "encoder": {"cost": rng.normal(0.05, 0.12, (layers, heads)).round(4).tolist()}, "baseline": 3.21,
            "prune": {"encoder": {str(i): list(range(i % 2, heads, 2)) for i in range(layers)}},
        },
        "states": make_states(rng, "text", words, layers), "objectives": make_objectives(text.split()),
        "extra": {"positions": [{
            "side": "text", "kind": "similarity", "name": "learned",
            "values": pack_floats(np.exp(-np.abs(np.arange(24)[:, None] - np.arange(24)[None]) / 4)),
        }]},
    }  # fmt: skip


def make_decoder(
    text: str = ENGLISH, layers: int = 4, heads: int = 4, memory: int = 4, seed: int = 1
) -> dict[str, Any]:
    """A decoder that carries a memory of earlier tokens."""
    rng = np.random.default_rng(seed)
    words = text.split()
    side = make_side(words, memory=memory)
    size = (layers, heads, len(words), len(words) + memory)
    distances = list(range(-16, 1))
    bias = -np.array([2.0 ** -(h + 1) for h in range(heads)])[None, :, None] * -np.array(distances)[None, None]
    return {
        "format": 1, "model": make_model("transformer-xl-mini", "transformer_xl", "decoder", layers, heads), "note": NOTE,
        "sides": {"text": side}, "attention": {"decoder": make_attention(rng, "text", "text", size, True, memory)},
        "prediction": make_prediction(rng, "text", side["tokens"], "causal", layers),
        "extra": {"positions": [{"side": "text", "kind": "bias", "name": "AlibiBias", "distances": distances, "values": pack_floats(bias)}]},
    }  # fmt: skip


def make_pair(layers: int = 3, heads: int = 4, seed: int = 2) -> dict[str, Any]:
    """An encoder-decoder with experts."""
    rng = np.random.default_rng(seed)
    source = make_side(["The", "river", "is", "deep", ".", "</s>"], {"</s>"})
    target = make_side(["<s>", "강은", "깊", "습니다", ".", "</s>"], {"<s>", "</s>"})
    s, t = len(source["tokens"]), len(target["tokens"])
    routing = [
        {
            "side": side, "layer": layer, "experts": 8, "expert": rng.integers(0, 8, count).tolist(),
            "probability": rng.uniform(0.2, 1, count).tolist(), "dropped": (rng.random(count) < 0.1).tolist(),
        }
        for side, count in (("source", s), ("target", t)) for layer in (1, 3)
    ]  # fmt: skip
    sides = {"source": source, "target": target}
    return {
        "format": 1, "model": make_model("switch-mini", "switch", "encoder-decoder", layers, heads), "note": NOTE, "sides": sides,
        "attention": {
            "encoder": make_attention(rng, "source", "source", (layers, heads, s, s)),
            "decoder": make_attention(rng, "target", "target", (layers, heads, t, t), True),
            "cross": make_attention(rng, "target", "source", (layers, heads, t, s)),
        },
        "prediction": make_prediction(rng, "target", target["tokens"], "causal", layers),
        "attribution": make_attribution(rng, sides, "target"), "extra": {"routing": routing},
    }  # fmt: skip


def make_convolution(seed: int = 3) -> dict[str, Any]:
    """A classifier without attention: n-grams and labels."""
    rng = np.random.default_rng(seed)
    words = "a warm , funny and quietly moving film".split()
    side = make_side(words)
    ngrams = [
        {
            "filter": int(rng.integers(100)), "width": w, "text": " ".join(words[i : i + w]), "start": 0, "end": 5, "first": i,
            "last": i + w - 1, "score": float(3 - 0.3 * n), "contribution": float(rng.normal(0.3, 0.3)),
        }
        for n, (i, w) in enumerate([(3, 3), (5, 3), (1, 3), (0, 4), (4, 4), (3, 5)])
    ]  # fmt: skip
    return {
        "format": 1, "model": make_model("textcnn-mini", "textcnn", "convolution", 1, 0), "note": NOTE, "sides": {"text": side},
        "prediction": {"side": "text", "method": "labels", "labels": [{"text": "positive", "p": 0.93}, {"text": "negative", "p": 0.07}]},
        "extra": {"ngrams": ngrams, "mix": [{"layer": 0, "weight": 0.2}, {"layer": 1, "weight": 0.5}, {"layer": 2, "weight": 0.3}]},
    }  # fmt: skip


def make_comparison() -> dict[str, Any]:
    """A document that compares two models on one text."""
    first, second = (
        make_encoder(layers=4, heads=4, name="bert-a"),
        make_encoder(layers=4, heads=4, name="bert-b", seed=5),
    )
    count = len(first["sides"]["text"]["tokens"])
    rng = np.random.default_rng(9)
    changes = {
        "side": "text", "pairs": [[i, i] for i in range(count)],
        "cosine": (1 - rng.gamma(1, 0.05, (5, count)) * np.arange(5)[:, None]).tolist(),
        "surprisal": rng.normal(0, 2, count).tolist(),
    }  # fmt: skip
    return {"format": 1, "compare": [first, second], "changes": changes}


@functools.cache
def make_long(tokens: int = 512, layers: int = 12, heads: int = 12, top: int = 16) -> dict[str, Any]:
    """The largest page: BERT-base's heads on 512 tokens."""
    rng = np.random.default_rng(4)
    words = (ENGLISH.split() * (tokens // 10))[:tokens]
    side = make_side(words)
    size = (layers, heads, tokens, tokens)
    return {
        "format": 1, "model": make_model("bert-base", "bert", "encoder", layers, heads), "note": NOTE, "sides": {"text": side},
        "attention": {"encoder": make_attention(rng, "text", "text", size, top=top)},
        "prediction": make_prediction(rng, "text", side["tokens"], "masked", layers),
    }  # fmt: skip
