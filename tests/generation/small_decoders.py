"""Small decoders and encoder-decoders whose tokens differ clearly in probability."""

from __future__ import annotations

import formers

SHARED_SIZES = {"vocab": 50, "dim": 16, "layers": 2, "heads": 2}
SIZES = {
    "gpt2": {"context": 40, "init": 0.3}, "bloom": {"init": 0.3}, "gpt_neox": {"ff": 24, "context": 40, "init": 0.3},
    "gpt_neo": {"context": 40, "window": 3, "init": 0.3}, "bart": {"ff": 24, "context": 40, "init": 0.3},
    "t5": {"ff": 24, "head_dim": 8, "buckets": 8, "far": 10, "init": 1.0}, "seq2seq": {"init": 0.3},
}  # fmt: skip
SOURCES = [[7, 3, 1], [9, 1, 4, 4, 2]]  # of two texts, for encoder-decoders


def build_decoder(family, **more):
    """Build a model of a family that decodes, an encoder-decoder too."""
    sizes = {k: v for k, v in SHARED_SIZES.items() if family != "seq2seq" or k != "heads"}
    return formers.build(family, head="lm", seed=1, **sizes, **SIZES[family], **more)
