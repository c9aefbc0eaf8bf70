"""ELMo word by word and step by step, straight from the equations, over tensors named as in bilm-tf's files.

Kim et al. 2016 §2.2 (filters, max over time), Srivastava et al. 2015 eq. 3 (highway), Sak et al. 2014 eq. 1-7 (LSTM
with projection, no peepholes, clipped), Peters et al. 2018 §3 (two directions, layers, mix). Slow and readable; nothing
of formers is used.
"""

from __future__ import annotations

import torch


def embed_word(w, options, ids):
    """The vector of one word out of its character ids (slots,)."""
    cnn = options["char_cnn"]
    table = torch.cat((torch.zeros_like(w["char_embed"][:1]), w["char_embed"]))  # id 0 is no character
    characters = [table[i] for i in ids]
    features = []
    for number, (width, count) in enumerate(cnn["filters"]):
        kernel, bias = w[f"CNN/W_cnn_{number}"][0], w[f"CNN/b_cnn_{number}"]  # (width, dim, count)
        windows = []
        for start in range(len(characters) - width + 1):
            total = bias
            for offset in range(width):
                total = total + characters[start + offset] @ kernel[offset]
            windows.append(total)
        best = torch.stack(windows).max(0).values
        assert best.shape == (count,)
        features.append(torch.relu(best))
    y = torch.cat(features)
    for number in range(cnn["n_highway"]):
        name = f"CNN_high_{number}"
        gate = torch.sigmoid(y @ w[f"{name}/W_carry"] + w[f"{name}/b_carry"])
        changed = torch.relu(y @ w[f"{name}/W_transform"] + w[f"{name}/b_transform"])
        y = gate * changed + (1 - gate) * y
    return y @ w["CNN_proj/W_proj"] + w["CNN_proj/b_proj"]


def run_step(w, options, name, x, h, c):
    """One step of one LSTM; the weights hold the gates in the order i, j, f, o."""
    lstm = options["lstm"]
    i, j, f, o = (torch.cat((x, h)) @ w[f"{name}/W_0"] + w[f"{name}/B"]).chunk(4)
    c = torch.sigmoid(f + 1) * c + torch.sigmoid(i) * torch.tanh(j)
    c = c.clamp(-lstm["cell_clip"], lstm["cell_clip"])
    h = (torch.sigmoid(o) * torch.tanh(c)) @ w[f"{name}/W_P_0"]
    return h.clamp(-lstm["proj_clip"], lstm["proj_clip"]), c


def read_sentence(w, options, ids, state=None):
    """Character ids (T, slots) → hidden states (layers + 1, T, 2 · projection), and the state after the sentence.

    The state is a dict (direction, layer) → (h, c); the next sentence may begin with it.
    """
    lstm, state = options["lstm"], dict(state or {})
    words = [embed_word(w, options, row) for row in ids]
    layers = [[torch.cat((x, x)) for x in words]]
    outputs = {}
    for direction in (0, 1):
        inputs = words if direction == 0 else words[::-1]
        for layer in range(lstm["n_layers"]):
            zero = words[0].new_zeros
            h, c = state.get((direction, layer), (zero(lstm["projection_dim"]), zero(lstm["dim"])))
            found = []
            for x in inputs:
                h, c = run_step(w, options, f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell", x, h, c)
                found.append(h + x if layer > 0 and lstm["use_skip_connections"] else h)
            state[direction, layer] = h, c
            outputs[direction, layer] = found if direction == 0 else found[::-1]
            inputs = found
    for layer in range(lstm["n_layers"]):
        pairs = zip(outputs[0, layer], outputs[1, layer], strict=True)
        layers.append([torch.cat(pair) for pair in pairs])
    return torch.stack([torch.stack(layer) for layer in layers]), state


def mix_layers(layers, s, gamma):
    """Eq. 1: the task's own weighting of all layers."""
    weights = torch.exp(s) / torch.exp(s).sum()
    return gamma * sum(weights[i] * layers[i] for i in range(len(layers)))
