"""CPU: BERT-base encoding a ragged batch, formers and transformers in one run, fp32 and bf16.

    make bench
    python -m benchmarks.cpu encode

The work is 32 texts of 6 to 128 tokens, 2,025 tokens in all; a padded batch has 3,712 places. Where a virtual machine
announces AMX and crashes on it, bf16 needs ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16, for both sides alike.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

if subprocess.run(
    [sys.executable, "-c", "import torch; x = torch.ones(64, 64).bfloat16(); x @ x"], capture_output=True, check=False
).returncode:
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import formers
from benchmarks.harness import in_turns, machine


def encode() -> None:
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
            in_turns(
                f"BERT-base encode, 32 ragged, {str(dtype)[6:]}",
                int(lengths.sum()),
                {
                    "transformers": lambda: theirs(input_ids=ids, attention_mask=keep.long()),
                    "formers": lambda: ours.hidden(ids, keep),
                },
            )


WORKS = {"encode": encode}


def main() -> None:
    """Run the works that are named, or all."""
    print(json.dumps(machine() | {"isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "all")}))
    for name in sys.argv[1:] or WORKS:
        WORKS[name]()


if __name__ == "__main__":
    main()
