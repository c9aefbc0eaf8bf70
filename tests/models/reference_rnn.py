"""Recurrent encoder-decoders and TextCNN, one document and one word at a time, straight from the papers' equations.

Nothing of formers is used: `p` is a dict of weights by name, `c` anything that has the settings. Words are counted from
0, vectors are one-dimensional.
"""

from __future__ import annotations

import math

import torch


def run_cell(kind, p, name, x, state):
    """One step: (h,) or (h, c) → the new one. The gates' rows lie one below the other."""
    h = state[0]
    a = p[f"{name}.read.weight"] @ x + p[f"{name}.read.bias"]
    b = p[f"{name}.recall.weight"] @ h + p[f"{name}.recall.bias"]
    n = len(h)
    if kind == "rnn":  # Elman
        return (torch.tanh(a + b),)
    if kind == "gru":  # Cho et al. 2014, with the reset gate after the product
        r = torch.sigmoid(a[:n] + b[:n])
        z = torch.sigmoid(a[n : 2 * n] + b[n : 2 * n])
        new = torch.tanh(a[2 * n :] + r * b[2 * n :])
        return ((1 - z) * new + z * h,)
    s = a + b  # Hochreiter & Schmidhuber 1997, with a forget gate
    i, f, o = torch.sigmoid(s[:n]), torch.sigmoid(s[n : 2 * n]), torch.sigmoid(s[3 * n :])
    c = f * state[1] + i * torch.tanh(s[2 * n : 3 * n])
    return o * torch.tanh(c), c


def make_zeros(kind, dim):
    return tuple(torch.zeros(dim) for _ in range(2 if kind == "lstm" else 1))


def read_text(kind, p, name, xs, dim):
    """A whole text in one direction: the outputs and the last state."""
    state, ys = make_zeros(kind, dim), []
    for x in xs:
        state = run_cell(kind, p, name, x, state)
        ys.append(state[0])
    return ys, state


def run_layer(kind, p, name, xs, dim, both):
    """One layer, in one or both directions."""
    ahead, last = read_text(kind, p, f"{name}.ahead", xs, dim)
    if not both:
        return ahead, last
    behind, first = read_text(kind, p, f"{name}.behind", xs[::-1], dim)
    ys = [torch.cat(pair) for pair in zip(ahead, behind[::-1], strict=True)]
    return ys, tuple(torch.cat(pair) for pair in zip(last, first, strict=True))


def compute_softmax(scores):
    e = torch.exp(scores - scores.max())
    return e / e.sum()


def attend_to_source(p, c, s, memory, t):
    """Where a state looks: the context and the weights over the source."""
    kind = c.score if c.attention == "local" else c.attention
    name, length = "decoder.align.score", len(memory)
    if kind == "dot":
        scores = [s @ h for h in memory]
    elif kind == "general":
        scores = [s @ (p[f"{name}.memory.weight"] @ h) for h in memory]
    else:
        w = torch.cat((p[f"{name}.query.weight"], p[f"{name}.memory.weight"]), 1)  # W [s; h]
        scores = [p[f"{name}.out.weight"][0] @ torch.tanh(w @ torch.cat((s, h))) for h in memory]
    if c.attention != "local":
        weights = compute_softmax(torch.stack(scores))
        return sum(w * h for w, h in zip(weights, memory, strict=True)), weights
    if c.predict:
        inner = torch.tanh(p["decoder.align.local.inner.weight"] @ s)
        centre = length * torch.sigmoid(p["decoder.align.local.out.weight"][0] @ inner)
    else:
        centre = torch.tensor(float(min(t + 1, length)))
    window = [i for i in range(length) if abs(i + 1 - centre.item()) <= c.window]
    inside, weights = compute_softmax(torch.stack([scores[i] for i in window])), [torch.tensor(0.0)] * length
    for i, w in zip(window, inside, strict=True):
        sigma = c.window / 2
        weights[i] = w * torch.exp(-((i + 1 - centre) ** 2) / (2 * sigma**2)) if c.predict else w
    weights = torch.stack(weights)
    return sum(w * h for w, h in zip(weights, memory, strict=True)), weights


def apply_linear(p, name, x):
    y = p[f"{name}.weight"] @ x
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def apply_maxout(p, *parts):
    y = apply_linear(p, "decoder.readout", torch.cat(parts))
    return torch.stack([torch.maximum(y[2 * i], y[2 * i + 1]) for i in range(len(y) // 2)])


def get_embeddings(p, c, target):
    name = "embed" if c.shared or not target else "target"
    return p[f"{name}.token.weight"]


def run_seq2seq(p, c, source, target):
    """What goes into the output layer at each target word, and the weights over the source."""
    xs = [get_embeddings(p, c, False)[i] for i in source]
    memory, lasts = xs[::-1] if c.reverse else xs, []
    for i in range(c.layers):
        memory, last = run_layer(c.cell, p, f"encoder.layers.{i}", memory, c.dim, c.bidirectional)
        lasts.append(last)
    memory = memory[::-1] if c.reverse else memory
    cho = c.attention == "none" and c.feed
    parts = len(lasts[0])
    if cho:
        fixed = torch.tanh(apply_linear(p, "decoder.context", lasts[-1][0]))
        lasts = [(fixed,) * parts for _ in lasts]
    elif c.attention == "additive" and c.bidirectional:
        lasts = [tuple(s[c.dim :] for s in last) for last in lasts]
    states = [
        tuple(
            torch.tanh(apply_linear(p, f"decoder.bridge.{i * parts + k}", s)) if cho or c.bidirectional else s
            for k, s in enumerate(last)
        )
        for i, last in enumerate(lasts)
    ]
    fed, hidden, seen = torch.zeros(c.dim), [], []
    for t, word in enumerate(target):
        x = get_embeddings(p, c, True)[word]
        inner, context, weights = x, None, None
        if cho:
            inner = torch.cat((x, fixed))
        elif c.attention == "additive":
            context, weights = attend_to_source(p, c, states[-1][0], memory, t)
            inner = torch.cat((x, context))
        elif c.feed:
            inner = torch.cat((x, fed))
        for i in range(c.layers):
            states[i] = run_cell(c.cell, p, f"decoder.layers.{i}.ahead", inner, states[i])
            inner = states[i][0]
        if cho:
            out = apply_maxout(p, inner, x, fixed)
        elif c.attention == "additive":
            out = apply_maxout(p, inner, x, context)
        elif c.attention == "none":
            out = inner
        else:
            context, weights = attend_to_source(p, c, inner, memory, t)
            out = fed = torch.tanh(apply_linear(p, "decoder.readout", torch.cat((context, inner))))
        hidden.append(out)
        seen.append(weights)
    return torch.stack(hidden), seen


def run_gnmt(p, c, source, target):
    """Wu et al. 2016, §3: residual connections from the third layer on, the context for every decoder layer."""
    xs = [get_embeddings(p, c, False)[i] for i in source]
    for i in range(c.layers):
        ys, _ = run_layer("lstm", p, f"encoder.layers.{i}", xs, c.dim, both=i == 0)
        xs = [x + y for x, y in zip(xs, ys, strict=True)] if i >= 2 else ys
    memory, hidden, seen = xs, [], []
    names = ["decoder.bottom.ahead", *(f"decoder.layers.{i}.ahead" for i in range(c.num_decoder_layers - 1))]
    states = [make_zeros("lstm", c.dim) for _ in names]
    for word in target:
        score = "decoder.align.score"
        scores = [
            p[f"{score}.out.weight"][0]
            @ torch.tanh(p[f"{score}.query.weight"] @ states[0][0] + p[f"{score}.memory.weight"] @ h)
            for h in memory
        ]
        weights = compute_softmax(torch.stack(scores))
        context = sum(w * h for w, h in zip(weights, memory, strict=True))
        x = get_embeddings(p, c, True)[word]
        for i, name in enumerate(names):
            states[i] = run_cell("lstm", p, name, torch.cat((x, context)), states[i])
            x = x + states[i][0] if i >= 2 else states[i][0]
        hidden.append(x)
        seen.append(weights)
    return torch.stack(hidden), seen


def run_textcnn(p, c, words):
    """Kim 2014, eq. 2 to 4: the largest value of each filter."""
    found = []
    for number, h in enumerate(c.widths):
        w, b = p[f"convolutions.filters.{number}.weight"], p[f"convolutions.filters.{number}.bias"]
        channels = ["embed.token.weight", *(["fixed.token.weight"] if c.channels == "both" else [])]
        length = max(len(words), h)
        for f in range(c.filters):
            values = []
            for start in range(length - h + 1):
                total = b[f]
                for j in range(h):
                    if start + j < len(words):
                        for channel in channels:
                            total = total + w[f, :, j] @ p[channel][words[start + j]]
                values.append(total.relu() if c.act == "relu" else torch.tanh(total))
            found.append(torch.stack(values).max())
    return torch.stack(found)


def max_norm(rows, most):
    """Rows longer than `most` are scaled to it."""
    out = []
    for row in rows.tolist():
        length = math.sqrt(sum(x * x for x in row))
        out.append([x * most / length for x in row] if length > most else row)
    return torch.tensor(out)


def draw_large_weights(f, seed=0, scale=0.5):
    """Draw weights large enough that a wrong term shows; return the model."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in f.model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return f


def copy_weights(f):
    """Return the weights by name, as the functions here take them."""
    return {name.removeprefix("body."): w.detach().clone().requires_grad_() for name, w in f.model.named_parameters()}
