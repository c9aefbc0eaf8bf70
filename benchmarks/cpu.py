"""CPU: BERT-base encoding a ragged batch, and a training step of a small GPT-2; formers and transformers in one run.

    make bench
    python -m benchmarks.cpu encode train

Training is the loop's own step, gradients clipped, on 8 x 256 tokens; the peer does not clip. Encoding is 32 texts of 6
to 128 tokens, 2,025 tokens in all; a padded batch has 3,712 places. Where a virtual machine announces AMX and
crashes on it, bf16 needs ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, for both sides alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

if subprocess.run(
    [sys.executable, "-c", "import torch; x = torch.ones(64, 64).bfloat16(); x @ x"], capture_output=True, check=False
).returncode:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import formers
from benchmarks.harness import describe_machine, exit_with_help, time_in_turns


def bench_encode() -> None:
    """BERT-base, the ragged batch of 32."""
    from transformers import BertConfig, BertModel

    g = torch.Generator().manual_seed(1)
    lengths = (torch.rand(32, generator=g) * 120).long().clamp(6, 128)
    columns = int(lengths.max())
    ids = torch.randint(5, 30000, (32, columns), generator=g)
    keep = torch.arange(columns)[None] < lengths[:, None]
    torch.manual_seed(0)
    theirs = BertModel(BertConfig(), add_pooling_layer=False).eval()
    ours = formers.build("bert", head="none")
    del ours.model.heads["pool"]
    for dtype in (torch.float32, torch.bfloat16):
        theirs.to(dtype)
        ours.to(dtype=dtype)
        with torch.inference_mode():
            time_in_turns(
                f"BERT-base encode, 32 ragged, {str(dtype)[6:]}",
                int(lengths.sum()),
                {
                    "transformers": lambda: theirs(input_ids=ids, attention_mask=keep.long()),
                    "formers": lambda: ours.hidden(ids, keep),
                },
            )


def bench_train() -> None:
    """A GPT-2 of 14 M, 8 x 256 tokens, no dropout: one step of the loop, and the peer's."""
    from transformers import GPT2Config, GPT2LMHeadModel

    from formers.batch import Batch
    from formers.objectives.causal import CausalLM
    from formers.training.train_config import Precision, TrainConfig
    from formers.training.trainer import Trainer

    torch.manual_seed(0)
    ids = torch.randint(0, 8192, (8, 256))
    quiet = {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=8192, n_positions=256, n_layer=6, n_embd=384, n_head=6, use_cache=False, **quiet)
    ).train()
    optimizer = torch.optim.AdamW(theirs.parameters(), fused=True)

    def run_peer_step() -> None:
        theirs(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    goal = CausalLM(256)
    labels = torch.cat((ids[:, 1:], torch.full((8, 1), -100)), 1).flatten()
    batch = Batch.from_padded(ids).replace(labels=labels, sample=torch.arange(8))

    def build_step(precision: Precision, compiled: bool) -> Any:
        none = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), 0.0)
        f = formers.build("gpt2", vocab=8192, context=256, layers=6, dim=384, heads=6, ff=1536, **none)
        settings = TrainConfig(batch_tokens=2048, seq_length=256, precision=precision, compile=compiled)
        made = Trainer(f.model, [goal], settings)
        return lambda: made.train_step([batch], goal)

    time_in_turns(
        "GPT-2 14M training step, 8 x 256", 2048,
        {
            "transformers, fp32": run_peer_step, "formers, fp32": build_step("fp32", False),
            "formers, bf16": build_step("bf16", False),
            "formers, fp32, compiled": build_step("fp32", True), "formers, bf16, compiled": build_step("bf16", True),
        },
    )  # fmt: skip


BENCHMARKS = {"encode": bench_encode, "train": bench_train}


def main() -> None:
    """Run the benchmarks that are named, or all."""
    exit_with_help(__doc__)
    print(json.dumps(describe_machine() | {"isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "all")}))
    for name in sys.argv[1:] or BENCHMARKS:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
