"""Make the golden files: what transformers computes for some tiny models, so that parity is tested without it.

    python -m tests.parity.make_golden

For each case a Hugging Face directory as transformers wrote it, the inputs, its outputs and its gradients; and what a
published sentence model of real weights gives.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.parity.cases import Case, build_reference, draw_inputs, pull_outputs, run_transformers
from tests.parity.minilm import RECORDED_VECTORS, SENTENCES, embed_with_package

GOLDEN = Path(__file__).parent / "golden"
CASES = [
    Case("GPT2", "LMHeadModel", 0),
    Case("GPT2", "DoubleHeadsModel", 0),
    Case("GPT2", "ForSequenceClassification", 1),
    Case("Bert", "ForPreTraining", 0),
    Case("Bert", "ForMaskedLM", 1),
    Case("Bert", "ForMultipleChoice", 1),
    Case("Roberta", "ForMaskedLM", 0),
    Case("Roberta", "ForSequenceClassification", 1),
    Case("T5", "ForConditionalGeneration", 0),
    Case("T5", "ForConditionalGeneration", 1),
    Case("T5", "ForSequenceClassification", 0),
    Case("MT5", "ForQuestionAnswering", 1),
    Case("OpenAIGPT", "LMHeadModel", 0),
    Case("GPTNeo", "ForCausalLM", 0),
    Case("GPTJ", "ForCausalLM", 0),
    Case("GPTNeoX", "ForCausalLM", 0),
    Case("Bloom", "ForCausalLM", 0),
    Case("Albert", "ForPreTraining", 1),
    Case("Ernie", "ForPreTraining", 1),
    Case("Bart", "ForConditionalGeneration", 0),
    Case("MBart", "ForConditionalGeneration", 0),
    Case("Marian", "MTModel", 0),
    Case("SwitchTransformers", "ForConditionalGeneration", 1),
]


def main() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in CASES:
        folder = GOLDEN / case.name
        shutil.rmtree(folder, ignore_errors=True)
        model = build_reference(case).eval()
        model.save_pretrained(folder)
        given = draw_inputs(case)
        outputs = run_transformers(case, model, given)
        pull_outputs(outputs).backward()
        kept = {f"input.{name}": value for name, value in given.items()}
        kept |= {f"output.{name}": value.detach().contiguous() for name, value in outputs.items()}
        kept |= {f"gradient.{n}": p.grad.contiguous() for n, p in model.named_parameters() if p.grad is not None}
        save_file(kept, folder / "expected.safetensors", metadata={"transformers": transformers.__version__})
        print(f"{case.name}: {sum(f.stat().st_size for f in folder.iterdir()):,} bytes, torch {torch.__version__}")
    vectors = embed_with_package(SENTENCES)[:, :12]
    RECORDED_VECTORS.write_text(json.dumps([[round(x, 6) for x in row] for row in vectors.tolist()]) + "\n")


if __name__ == "__main__":
    main()
