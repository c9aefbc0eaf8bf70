"""The libraries that open exports: which models each of them serves, and directories written for each.

What is known of a library without starting it (its classes, the settings that it insists on) is said as such; whether
its numbers are ours, a check says (export_check.py).
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal

import torch

from ..atomic_files import stage_directory
from ..config import ProgressCallback, Settings
from ..errors import Error
from ..former import Former
from ..registry import FAMILIES, FamilyEntry, find_family
from . import huggingface
from .huggingface import build_hf_config, check_expressible, extract_encoder, find_architecture, find_format
from .model_card import write_licence_note
from .onnx_export import check_onnx_support, write_onnx
from .reader_process import READER_NAMES, run_worker
from .sandbox import make_temporary_folder

# The Python packages that each reader needs, and how to install them.
READER_PACKAGES: dict[str, tuple[str, ...]] = {
    "transformers": ("transformers",), "sentence-transformers": ("sentence_transformers",), "vllm": ("vllm",),
    "tei": (), "ctranslate2": ("ctranslate2", "transformers"), "onnx": ("onnxruntime",),
}  # fmt: skip
INSTALL_HINTS = {
    "transformers": "pip install transformers", "sentence-transformers": "pip install sentence-transformers",
    "vllm": "pip install vllm, in an environment of its own", "ctranslate2": "pip install 'formers[ctranslate2]'",
    "onnx": "pip install 'formers[onnx]'", "tei": "its releases are container images, no Python package",
}  # fmt: skip
SERVING_TARGETS = ("vllm", "tei", "ctranslate2", "onnx")
Role = Literal["generate", "embed", "classify", "outputs"]  # what a server does with a model, and what is compared
# vLLM's own registry of classes, and as what it serves them.
VLLM_CLASSES = {
    **dict.fromkeys(
        ("GPT2LMHeadModel", "GPTJForCausalLM", "GPTNeoXForCausalLM", "BloomForCausalLM"), "it generates text"
    ),
    **dict.fromkeys(("BertModel", "RobertaModel"), "it gives embeddings"),
    "RobertaForMaskedLM": "it gives embeddings; the head is passed over",
    **dict.fromkeys(
        ("GPT2ForSequenceClassification", "BertForSequenceClassification", "RobertaForSequenceClassification"),
        "it classifies texts",
    ),
    "BertForTokenClassification": "it classifies tokens, in newer versions",
}
VLLM_REMOVED = ("BartModel", "BartForConditionalGeneration", "MBartForConditionalGeneration")  # after vLLM 0.10.2
# Values that vLLM's classes insist on, or take for granted.
VLLM_REQUIRED_VALUES: dict[str, tuple[str, bool]] = {
    "scale_attn_by_inverse_layer_idx": ("GPT2", False),
    "scale_attn_weights": ("GPT2", True),
    "tie_word_embeddings": ("GPTJ", False),
}
TEI_ACTIVATIONS = ("gelu", "relu", "silu")
TEI_HEADS = {
    "none": "it gives embeddings (start it with --pooling mean or cls)",
    "classify": "it classifies texts",
    "mlm": "it gives embeddings (--pooling mean, cls or splade)",
    "pretraining": "it gives embeddings (--pooling mean or cls); the head is passed over",
    "nsp": "it gives embeddings (--pooling mean or cls); the head is passed over",
}

# The classes that CTranslate2's converter has a loader for, and whether it runs them as a decoder, encoder or both.
CTRANSLATE2_CLASSES = {
    **dict.fromkeys(
        ("GPT2LMHeadModel", "GPTJForCausalLM", "GPTNeoXForCausalLM", "BloomForCausalLM"),
        "it generates text (ctranslate2.Generator)",
    ),
    **dict.fromkeys(
        ("T5ForConditionalGeneration", "MT5ForConditionalGeneration", "BartForConditionalGeneration",
         "MBartForConditionalGeneration", "MarianMTModel"),
        "it generates text from a source (ctranslate2.Translator)",
    ),
    **dict.fromkeys(("BertModel", "RobertaModel"), "it gives hidden states (ctranslate2.Encoder)"),
}  # fmt: skip
CTRANSLATE2_ACTIVATIONS = (
    "relu", "gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "quick_gelu", "silu", "swish",
)  # fmt: skip


def make_refusal(reader: str, why: str, fix: str | None) -> Error:
    """Build the error that says no, with the reason."""
    return Error(f"no, {READER_NAMES[reader]} cannot open it: {why}", fix=fix)


def check_vllm_support(former: Former) -> str:
    """Return the class by which vLLM serves this model; an Error if it has none."""
    one, config = find_family(former.family), build_hf_config(former, former.dtype)
    name = find_architecture(former)
    if name in VLLM_REMOVED:
        why = f"{name} was taken out of it; versions up to 0.10.2 have it"
        raise make_refusal("vllm", why, "take an older version")
    if name not in VLLM_CLASSES:
        raise make_refusal("vllm", f"it has no {name}", suggest_heads(one, VLLM_CLASSES))
    for key, (prefix, value) in VLLM_REQUIRED_VALUES.items():
        if name.startswith(prefix) and config.get(key, value) != value:
            why = f"it knows {name} with {key} = {value} only"
            raise make_refusal("vllm", why, "serve it with formers or transformers")
    note = "" if former.tokenizer is not None else "; without a tokenizer only by --skip-tokenizer-init"
    return f"{name}, {VLLM_CLASSES[name]}{note}"


def check_tei_support(former: Former) -> str:
    """Return how text-embeddings-inference serves this model; an Error where it does not."""
    config = build_hf_config(former, former.dtype)
    if not former.definition.is_served_by_tei:
        known = " and ".join(name for name, member in FAMILIES.items() if member.definition.is_served_by_tei)
        why = f"of this family it serves {known}, not {former.family}"
        raise make_refusal("tei", why, "serve it with formers")
    if former.head not in TEI_HEADS:
        raise make_refusal("tei", f"it has no head {former.head}", "--head none exports the encoder alone")
    if config["hidden_act"] not in TEI_ACTIVATIONS:
        known = ", ".join(TEI_ACTIVATIONS)
        raise make_refusal("tei", f"hidden_act {config['hidden_act']} is not one of {known}", "serve it with formers")
    if former.tokenizer is None:
        raise make_refusal("tei", "it needs a tokenizer.json", "put the tokenizer beside the model and export again")
    return f"{find_architecture(former)}, {TEI_HEADS[former.head]}"


def suggest_heads(one: FamilyEntry, known: dict[str, str]) -> str:
    """Suggest heads of the same family that the reader supports."""
    assert one.definition.hf_format is not None
    heads = [head for name, head in one.definition.hf_format.architectures.items() if name in known]
    return f"it would with --head {', '.join(heads)}" if heads else "serve it with formers or transformers"


def check_ctranslate2_support(former: Former) -> str:
    """Return how CTranslate2 runs this model; an Error where it does not."""
    one, name = find_family(former.family), find_architecture(former)
    config = build_hf_config(former, former.dtype)
    if name not in CTRANSLATE2_CLASSES:
        raise make_refusal("ctranslate2", f"it has no {name}", suggest_heads(one, CTRANSLATE2_CLASSES))
    if former.tokenizer is None:
        fix = "put the tokenizer beside the model and export again"
        raise make_refusal("ctranslate2", "it needs the tokens of a tokenizer.json", fix)
    keys = ("activation_function", "hidden_act", "dense_act_fn")
    act = next((config[key] for key in keys if key in config), "gelu")
    if act not in CTRANSLATE2_ACTIVATIONS:
        why = f"it does not know the activation {act}"
        raise make_refusal("ctranslate2", why, "serve it with formers serve")
    if name == "MarianMTModel" and former.config.pad != former.config.vocab - 1:
        why = "of a Marian model it takes the last token for the padding, and here that is another one"
        raise make_refusal("ctranslate2", why, "serve it with formers serve")
    if config.get("apply_residual_connection_post_layernorm"):
        why = "it takes the residual connections of a BLOOM from before the norms, and here they come after"
        raise make_refusal("ctranslate2", why, "serve it with formers serve")
    return f"{name}, {CTRANSLATE2_CLASSES[name]}"


SUPPORT_CHECKS = {
    "vllm": check_vllm_support, "tei": check_tei_support, "ctranslate2": check_ctranslate2_support,
    "onnx": check_onnx_support,
}  # fmt: skip


def check_reader_support(former: Former, reader: str) -> str:
    """Refuse, before anything is written, a model that a reader has no way to open; of servers, return how they run
    it."""
    if reader == "onnx":
        return check_onnx_support(former)
    try:
        gone = find_format(former).unsupported_reason
        check_expressible(former)
        if reader == "sentence-transformers":
            extract_encoder(former)
    except Error as error:
        raise make_refusal(reader, error.what, error.fix) from None
    if gone:
        raise make_refusal(reader, gone, "open it with that version, or keep it as a formers directory")
    return SUPPORT_CHECKS[reader](former) if reader in SUPPORT_CHECKS else ""


def get_role(former: Former, reader: str) -> Role:
    """Return what a server does with a model, and so what of it is compared."""
    if reader == "onnx":
        return "outputs"
    return "generate" if former.head == "lm" else "classify" if former.head == "classify" else "embed"


def find_missing_packages(reader: str) -> list[str]:
    """Return the packages of a reader that are not installed."""
    return [name for name in READER_PACKAGES[reader] if importlib.util.find_spec(name) is None]


def write_serving_export(
    former: Former, out: Path, target: str, *, pool: str = "mean", normalise: bool = False,
    dtype: torch.dtype | None = None, shard: int = 5 * 10**9, language: str | None = None,
    tell: ProgressCallback | None = None,
) -> None:  # fmt: skip
    """Write a directory that a server opens: vllm, tei, ctranslate2 or onnx.

    vLLM and text-embeddings-inference read transformers' files, and of an encoder how its vectors are pooled
    (`pool`, `normalise`), as sentence-transformers writes it. CTranslate2's own converter, in a process of its own,
    makes its files of such an export.
    """
    check_reader_support(former, target)
    how: Settings = {"dtype": dtype, "shard": shard, "language": language, "tell": tell}
    if target == "onnx":
        write_onnx(former, out, dtype)
    elif target == "ctranslate2":
        write_ctranslate2(former, out, **how)
    elif get_role(former, target) == "embed" and former.head != "tag" and former.tokenizer is not None:
        huggingface.write_sentence_encoder(former, out, pool=pool, normalise=normalise, **how)
    else:
        huggingface.write_checkpoint(former, out, **how)


def write_ctranslate2(former: Former, out: Path, **how: Any) -> None:  # dynamic: the options of write_checkpoint
    """Write a directory for CTranslate2, with the tokenizer that its tokens come from."""
    if missing := find_missing_packages("ctranslate2"):
        what = f"an export for CTranslate2 needs its converter, and {' and '.join(missing)} is not installed"
        raise Error(what, fix=INSTALL_HINTS["ctranslate2"])
    with make_temporary_folder() as place:
        huggingface.write_checkpoint(former, place / "transformers", **how)
        with stage_directory(out) as folder:
            case = {"name": "conversion", "out": str(folder.resolve())}
            run_worker("ctranslate2-converter", place / "transformers", [case], place)
            assert former.tokenizer is not None
            former.tokenizer.save(folder / "tokenizer.json")
            write_licence_note(folder, former)
