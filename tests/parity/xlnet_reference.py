"""XLNet as transformers builds it, of odd shapes and with weights that are nowhere zero."""

from __future__ import annotations

import random

import torch

VOCAB = 61


def build_reference(ending, seed, **more):
    """Build transformers' model of an odd shape, with weights that are nowhere zero."""
    import transformers

    r = random.Random(seed)
    n_head, d_head = [(3, 4), (1, 6), (5, 2)][seed]
    given = {
        "vocab_size": VOCAB, "d_model": n_head * d_head, "n_layer": [2, 3, 1][seed], "n_head": n_head,
        "d_inner": r.choice([13, 30]), "ff_activation": r.choice(["gelu", "relu", "silu"]),
        "layer_norm_eps": [1e-12, 1e-3, 1e-5][seed], "clamp_len": [-1, 3, -1][seed], "dropout": 0.0,
        "summary_last_dropout": 0.0, "summary_type": ["last", "cls_index", "first"][seed],
        "summary_use_proj": seed != 1, "summary_activation": ["tanh", "", "gelu_new"][seed],
        "tie_word_embeddings": seed != 1, "start_n_top": 3, "end_n_top": 2, "mem_len": 6,
        "num_labels": 2 if ending == "ForQuestionAnsweringSimple" else 5, "use_mems_train": True, **more,
    }  # fmt: skip
    model = getattr(transformers, "XLNet" + ending)(transformers.XLNetConfig(**given)).eval()
    generator = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) * 0.25 + float(p.dim() == 1 and p.mean() > 0.5))
    return model
