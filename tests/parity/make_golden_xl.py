"""Make the golden files of Transformer-XL: what transformers 4.35.2, the last release that has it in full, computes.

It wants a virtual environment of its own, beside today's transformers:

    python -m venv xl && xl/bin/pip install -c constraints.txt torch numpy safetensors
    xl/bin/pip install --no-deps transformers==4.35.2 "tokenizers<0.19" "huggingface_hub<1"
    xl/bin/pip install filelock packaging pyyaml regex requests tqdm sacremoses
    xl/bin/python tests/parity/make_golden_xl.py

For each case a directory as transformers wrote it, and one file: three segments read with one memory, from zero vectors
(its own start) and from an empty memory, with outputs, losses, gradients and what the memory holds at the end.
"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path

import torch
from safetensors.torch import save_file

GOLDEN = Path(__file__).parent / "golden"
SMALL = {
    "vocab_size": 41, "cutoffs": [9, 21], "d_model": 12, "d_embed": 12, "n_head": 3, "d_head": 5, "d_inner": 13,
    "n_layer": 2, "div_val": 2, "mem_len": 6, "clamp_len": 4, "same_length": True, "pre_lnorm": False, "dropout": 0.0,
}  # fmt: skip
CASES = {
    "LMHeadModel-plain": {},
    "LMHeadModel-pre": {
        "pre_lnorm": True, "div_val": 1, "d_embed": 10, "same_length": False, "clamp_len": -1, "untie_r": False,
        "cutoffs": [9, 30], "mem_len": 20, "layer_norm_epsilon": 1e-3,
    },
    "LMHeadModel-one": {"div_val": 1, "cutoffs": [], "mem_len": 3, "n_head": 1, "d_head": 7, "n_layer": 1},
    "LMHeadModel-wide": {"div_val": 1, "cutoffs": [20], "clamp_len": 2, "mem_len": 5, "same_length": False},
    "LMHeadModel-untied": {
        "tie_word_embeddings": False, "proj_share_all_but_first": False, "div_val": 3, "d_embed": 18, "d_model": 14,
        "n_layer": 1, "mem_len": 4,
    },
    "LMHeadModel-old": {"untie_r": False, "tie_projs": [True, False, True], "d_embed": 8, "mem_len": 7},
    "Model-deep": {"n_layer": 3, "mem_len": 4, "pre_lnorm": True},
    "ForSequenceClassification-last": {"num_labels": 3, "pad_token_id": 0, "n_layer": 1, "same_length": False},
    "LMHeadModel-alike": {"mem_len": 0},  # nothing is left to see: all tokens of a segment have the same weight
}  # fmt: skip
PIECES = (5, 3, 7)  # the last is longer than most memories


def draw_segments() -> list[torch.Tensor]:
    """Two rows of text in three pieces; no id is 0, which a classifier takes for padding."""
    return list(torch.randint(1, 41, (2, sum(PIECES)), generator=torch.Generator().manual_seed(1)).split(PIECES, 1))


def pull_outputs(outputs: list[torch.Tensor]) -> torch.Tensor:
    """One number that depends on every output; the same in the test."""
    g = torch.Generator().manual_seed(11)
    return sum((o * torch.randn(o.shape, generator=g)).sum() for o in outputs)


def read_segments(
    model: torch.nn.Module, start: list[torch.Tensor] | None
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs for each segment, and the memory that is left."""
    outputs, mems = [], start
    for ids in draw_segments():
        out = model(ids, mems=mems)
        outputs.append(out[0])
        mems = out.mems
    return outputs, mems


def compute_expected(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """All that is compared."""
    config, kept = model.config, {f"ids.{i}": ids for i, ids in enumerate(draw_segments())}
    empty = [torch.zeros(0, 2, config.d_model) for _ in range(config.n_layer)]
    for name, start in (("zeros", None), ("empty", empty)):
        outputs, mems = read_segments(model, start)
        kept |= {f"{name}.output.{i}": o.detach() for i, o in enumerate(outputs)}
        kept |= {f"{name}.memory.{i}": m.transpose(0, 1) for i, m in enumerate(mems or [])}  # none without a length
        model.zero_grad()
        pull_outputs(outputs).backward()
        kept |= {f"{name}.gradient.{n}": p.grad.clone() for n, p in model.named_parameters()}
        if hasattr(model, "crit"):
            with torch.no_grad():
                out = model(draw_segments()[2], mems=mems, labels=draw_segments()[2])
            kept |= {f"{name}.loss": out.loss, f"{name}.losses": out.losses}
    if hasattr(model, "score"):
        ids = draw_segments()[2] * (torch.arange(7) < torch.tensor([[7], [4]]))
        kept |= {"padded.ids": ids, "padded.output": model(ids).logits.detach()}
    return {name: value.contiguous() for name, value in kept.items()}


def main() -> None:
    """Write all cases."""
    import transformers

    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    for seed, (name, changes) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        ending = name.split("-")[0]
        config = transformers.TransfoXLConfig(**{**SMALL, **changes})
        model = getattr(transformers, f"TransfoXL{ending}")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.15)
        folder = GOLDEN / f"TransfoXL-{name}"
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder, safe_serialization=not name.endswith("-old"))
        save_file(
            compute_expected(model),
            folder / "segments.safetensors",
            metadata={"transformers": transformers.__version__},
        )
        print(f"{folder.name}: {sum(f.stat().st_size for f in folder.iterdir()):,} bytes, torch {torch.__version__}")


if __name__ == "__main__":
    main()
