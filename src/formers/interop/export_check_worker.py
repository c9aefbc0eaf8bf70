"""The program that export_check.py runs in a process of its own: it opens an exported directory in the library that it
was exported for, and writes down what that library makes of some texts.

    python -m formers.interop.export_check_worker FOLDER

FOLDER/request.json names the target, the exported directory and the cases; the answers go to FOLDER/answers.json and
FOLDER/answers.safetensors. Nothing else of formers imports transformers or sentence-transformers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Outputs of transformers' models that are compared, and the inputs that are copied into the answers.
OUTPUT_KEYS = (
    "logits", "prediction_logits", "seq_relationship_logits", "sop_logits", "start_logits", "end_logits", "mc_logits",
    "last_hidden_state",
)  # fmt: skip
INPUT_KEYS = ("input_ids", "token_type_ids", "attention_mask")
MULTIPLE_CHOICE_CLASSES = ("ForMultipleChoice", "DoubleHeadsModel")  # classes that read several texts for each answer

ReaderAnswers = tuple[dict[str, Any], dict[str, Any]]  # facts, and tensors by "CASE.NAME"


def run_transformers(where: str, cases: Sequence[Mapping[str, Any]]) -> ReaderAnswers:
    """Open a directory by AutoConfig, AutoTokenizer and the class that it names, and read the cases with it.

    A case has a `name` and a `text` (and a `pair`), or `ids` where there is no tokenizer, and `decoder`, the decoder's
    input, where a model needs one.
    """
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    local = {"local_files_only": True, "trust_remote_code": False}
    config = transformers.AutoConfig.from_pretrained(where, **local)
    name = config.architectures[0]
    kind = getattr(transformers, name)
    model, info = kind.from_pretrained(where, dtype=torch.float32, output_loading_info=True, local_files_only=True)
    model.eval()
    tokenizer: Any = None
    if (Path(where) / "tokenizer.json").is_file():
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **local)
    facts: dict[str, Any] = {
        "version": transformers.__version__,
        "architecture": name,
        "missing": sorted(key for key in info["missing_keys"] if "embed_positions" not in key),  # Marian computes them
        "unexpected": sorted(info["unexpected_keys"]),
        "mismatched": sorted(str(key) for key in info["mismatched_keys"]),
    }
    if tokenizer is not None:
        facts["limit"] = tokenizer.model_max_length
        facts["pads"] = tokenizer.pad_token_id is not None
        if name.endswith("ForSequenceClassification"):  # the padding decides which token is read
            rows = [cases[0]["text"], 2 * cases[0]["text"]]
            batch = tokenizer(rows, padding=True, truncation=True, return_tensors="pt")
            with torch.inference_mode():
                facts["padded"] = model(**batch).logits[0].tolist()
    if model.can_generate():
        known = model.generation_config
        facts["generation"] = {role: getattr(known, f"{role}_token_id") for role in ("bos", "eos", "pad")}
    tensors: dict[str, Any] = {}
    for case in cases:
        if "ids" in case:
            given = {"input_ids": torch.tensor([case["ids"]])}
        else:
            given = dict(tokenizer(case["text"], case.get("pair"), truncation=True, return_tensors="pt"))
        read = {key: value for key, value in given.items() if key in INPUT_KEYS}
        if name.endswith(MULTIPLE_CHOICE_CLASSES):
            given = {key: value[:, None] for key, value in given.items()}
        if case.get("decoder"):
            given["decoder_input_ids"] = torch.tensor([case["decoder"]])
        with torch.inference_mode():
            out = model(**given)
        found = {key: out[key] for key in OUTPUT_KEYS if key in out and torch.is_tensor(out[key])}
        tensors |= {f"{case['name']}.{key}": value.contiguous() for key, value in {**read, **found}.items()}
    return facts, tensors


def run_sentence_transformers(where: str, cases: Sequence[Mapping[str, Any]]) -> ReaderAnswers:
    """Open a directory by SentenceTransformer and encode the texts of the cases, all in one batch."""
    import sentence_transformers
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = sentence_transformers.SentenceTransformer(
        where, device="cpu", local_files_only=True, trust_remote_code=False
    )
    vectors = model.encode([case["text"] for case in cases], convert_to_tensor=True, show_progress_bar=False)
    tensors = {f"{case['name']}.vector": row.float().contiguous() for case, row in zip(cases, vectors, strict=True)}
    facts = {"version": sentence_transformers.__version__, "architecture": "SentenceTransformer"}
    return facts | {"limit": model.max_seq_length}, tensors


READER_RUNNERS = {"transformers": run_transformers, "sentence-transformers": run_sentence_transformers}


def main(folder: str) -> None:
    """Answer the request of a folder; an exception is the answer that it cannot be opened."""
    from safetensors.torch import save_file

    where = Path(folder)
    request = json.loads((where / "request.json").read_text(encoding="utf-8"))
    try:
        facts, tensors = READER_RUNNERS[request["target"]](request["where"], request["cases"])
        save_file(tensors, where / "answers.safetensors")
    except Exception as error:
        facts = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    (where / "answers.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
