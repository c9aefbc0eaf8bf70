"""Checking an export: it is opened in the library that it is for, in a process of its own, and its numbers compared.

What is known of libraries that are not here (their classes, the settings that they insist on) is said as such.

    python -m formers.interop.export_check FOLDER

is that process: FOLDER/request.json names the reader, the exported directory and the cases; the answers go to
FOLDER/answers.json and FOLDER/answers.safetensors. Nothing else of formers imports transformers or
sentence-transformers.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import JSONObject
from ..errors import Error
from ..former import Former
from ..inputs import TensorLike
from ..model import pool_vectors
from ..registry import FAMILIES, FamilyEntry, find_family
from ..task import END_MARKED_HEADS, get_frame
from ..text.tokenizer import Tokenizer
from . import huggingface, safe_files
from .huggingface import build_hf_config, check_expressible, extract_encoder, find_architecture, find_format
from .safe_files import Weights
from .sandbox import INHERITED_VARIABLES, make_temporary_folder

# Who reads exports, their full names, and the Python package of each.
READER_NAMES = {
    "transformers": "transformers", "sentence-transformers": "sentence-transformers", "vllm": "vLLM",
    "tei": "text-embeddings-inference",
}  # fmt: skip
READER_PACKAGES = {
    "transformers": "transformers", "sentence-transformers": "sentence_transformers", "vllm": "vllm", "tei": "",
}  # fmt: skip
TIMEOUT_SECONDS = 600  # for a library to open a model and read three texts
TOLERANCE = 1e-3  # of the largest number: more than rounding, less than any mistake
SAMPLE_TEXT = "The cat sat on the mat. 한국어 문장도 읽습니다."
SAMPLE_PAIR = "It was 7 o'clock, and nobody came. 아무도 오지 않았다."
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


# Outputs of transformers' models that are compared, and the inputs that are copied into the answers.
OUTPUT_KEYS = (
    "logits", "prediction_logits", "seq_relationship_logits", "sop_logits", "start_logits", "end_logits", "mc_logits",
    "last_hidden_state",
)  # fmt: skip
INPUT_KEYS = ("input_ids", "token_type_ids", "attention_mask")
MULTIPLE_CHOICE_CLASSES = ("ForMultipleChoice", "DoubleHeadsModel")  # classes that read several texts for each answer

ReaderAnswers = tuple[JSONObject, dict[str, Tensor]]  # facts, and tensors by "CASE.NAME"


def check_export(
    former: Former, reader: str, where: Path | None = None, *, pool: str = "mean", normalise: bool = False,
    dtype: torch.dtype | None = None, seconds: int = TIMEOUT_SECONDS,
) -> str:  # fmt: skip
    """Open an export of this model in a reader, and compare tokens and numbers with ours: what was found, in a line.

    `where` is the exported directory (None: one is made for the check and removed), `dtype` the type that it was
    exported with, `pool` and `normalise` those of an export to sentence-transformers. A reader that is not installed
    is not checked, and the answer says so. An Error says why the reader cannot open it, or what it computes otherwise.
    """
    check_reader_support(former, reader)
    if reader in ("vllm", "tei"):
        known = {"vllm": check_vllm_support, "tei": check_tei_support}[reader](former)
        here = bool(READER_PACKAGES[reader]) and importlib.util.find_spec(READER_PACKAGES[reader]) is not None
        why = f"formers does not start {READER_NAMES[reader]}" if here else f"{READER_NAMES[reader]} is not installed"
        return f"not checked: {why}; it has a class for this model: {known}"
    if importlib.util.find_spec(READER_PACKAGES[reader]) is None:
        return f"not checked: {READER_NAMES[reader]} is not installed"
    with make_temporary_folder() as folder:
        if where is None:
            where = folder / "export"
            if reader == "transformers":
                huggingface.write_checkpoint(former, where, dtype=dtype)
            else:
                huggingface.write_sentence_encoder(former, where, pool=pool, normalise=normalise, dtype=dtype)
        if dtype is not None:
            former.to(dtype=dtype)
        former.to("cpu", torch.float32)
        cases = make_cases(former)
        facts, tensors = run_worker(reader, Path(where), cases, folder, seconds)
        if reader == "transformers":
            worst = compare_outputs(former, cases, facts, tensors)
        else:
            worst = compare_embeddings(former, cases, tensors, pool, normalise)
    read = ", ".join({"text": "a text", "pair": "a pair", "long": "an over-long text"}[case["name"]] for case in cases)
    rest = f"the same tokens and numbers for {read}; the largest difference is {worst:.0e}"
    return f"yes: {facts['architecture']} opens in {READER_NAMES[reader]} {facts['version']}: {rest}"


def check_reader_support(former: Former, reader: str) -> None:
    """Refuse, before anything is written, a model that a reader has no way to open."""
    try:
        gone = find_format(former).unsupported_reason
        check_expressible(former)
        if reader == "sentence-transformers":
            extract_encoder(former)
    except Error as error:
        raise make_refusal(reader, error.what, error.fix) from None
    if gone:
        raise make_refusal(reader, gone, "open it with that version, or keep it as a formers directory")


def make_refusal(reader: str, why: str, fix: str | None) -> Error:
    """Build the error that says no, with the reason."""
    return Error(f"no, {READER_NAMES[reader]} cannot open it: {why}", fix=fix)


def make_cases(former: Former) -> list[JSONObject]:
    """Return what both sides read: a text, a pair and a text that is too long, or ids where there is no tokenizer.

    `ids` and `segments` of our own reading stand beside the text under "ours".
    """
    limit = former.context
    start = next((i for i in (vars(former.config).get(n) for n in ("start", "bos", "pad")) if i is not None), 0)
    vocab = former.output_vocab
    first = [start, *(i % vocab for i in range(7, 12))]
    needs_decoder = former.is_encoder_decoder and former.head in ("lm", "none")
    more: JSONObject = {"decoder": first[:limit]} if needs_decoder else {}
    if former.tokenizer is None:
        ids = [(7 * i + 3) % former.config.vocab for i in range(min(limit or 12, 12))]
        return [{"name": "text", "ids": ids, "ours": (ids, None), **more}]
    long = " ".join([SAMPLE_TEXT, SAMPLE_PAIR] * (1 if limit is None else limit // 4 + 1))
    rows = [("text", SAMPLE_TEXT, None), ("pair", SAMPLE_TEXT[:23], SAMPLE_PAIR[:18]), ("long", long, None)]
    kept = rows[:2] if limit is None else rows
    cases: list[JSONObject] = [{"name": name, "text": text, "pair": pair} for name, text, pair in kept]
    return [{**case, "ours": encode_case(former, case["text"], case["pair"]), **more} for case in cases]


def encode_case(former: Former, text: str, pair: str | None) -> tuple[list[int], list[int] | None]:
    """Encode a text or a pair as formers reads it, cut to the model's context, with its segments if it has any."""
    assert former.tokenizer is not None
    find_frame = get_frame if former.head in END_MARKED_HEADS else Tokenizer.get_template
    frame = find_frame(former.tokenizer, pair is not None)
    one = former.tokenizer.encode(text, special=False)
    two = [] if pair is None else former.tokenizer.encode(pair, special=False)
    marks = len(frame.before) + len(frame.between) * (pair is not None) + len(frame.after)
    limit = former.context
    if limit is not None and marks + len(one) + len(two) > limit:
        left, right = truncate_lengths(len(one), len(two), limit - marks)
        one, two = one[:left], two[:right]
    before, a, between, b, after = frame.segments
    middle, middle_kinds = ([], []) if pair is None else (frame.between, between)
    ids = [*frame.before, *one, *middle, *two, *frame.after]
    kinds = [*before, *[a] * len(one), *middle_kinds, *[b] * len(two), *after]
    return ids, kinds if former.can_read_segments else None


def truncate_lengths(one: int, two: int, room: int) -> tuple[int, int]:
    """Shorten two texts to fit into `room`: the longer one is cut first, as in the tokenizers library."""
    short, long = sorted((one, two))
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (long, short) if one > two else (short, long)


def run_worker(
    reader: str, where: Path, cases: list[JSONObject], folder: Path, seconds: int
) -> tuple[JSONObject, dict[str, Tensor]]:
    """Run this module in a process of its own, without a network and with a time limit; its answers."""
    plain = [{key: value for key, value in case.items() if key != "ours"} for case in cases]
    safe_files.write_json(folder / "request.json", {"target": reader, "where": str(where.resolve()), "cases": plain})
    inherited = (*INHERITED_VARIABLES, "HOME", "USERPROFILE")
    environment = {name: os.environ[name] for name in inherited if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-m", "formers.interop.export_check", str(folder)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=seconds, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        what = f"{READER_NAMES[reader]} did not open it within {seconds} s"
        raise Error(what, where=where, fix="try again on a faster machine") from None
    if not safe_files.has_file(folder, "answers.json"):
        lines = done.stderr.strip().splitlines()
        why = lines[-1][:200] if lines else f"its process ended with code {done.returncode}"
        raise make_refusal(reader, why, "is the installation whole? python -m pip check tells")
    facts = safe_files.read_json(folder, "answers.json")
    if "error" in facts:
        raise make_refusal(reader, facts["error"], "please report it with the family and its settings")
    answers = Weights(folder, "answers")
    return facts, {name: answers.get_tensor(name) for name in answers}


def compare_outputs(former: Former, cases: list[JSONObject], facts: JSONObject, tensors: Mapping[str, Tensor]) -> float:
    """Compare what transformers read and computed with ours: the largest difference, or an Error that names the first
    thing that is not the same."""
    for kind in ("missing", "unexpected", "mismatched"):
        if facts[kind]:
            raise make_refusal("transformers", f"tensor {facts[kind][0]} is {kind}", "please report it")
    if former.tokenizer is not None and not facts["pads"]:
        why = "there is no token to fill up a batch with"
        raise make_refusal("transformers", why, "give the tokenizer a pad token")
    if "padded" in facts:
        away = (torch.tensor(facts["padded"]) - tensors[f"{cases[0]['name']}.logits"][0]).abs().max().item()
        if not away <= TOLERANCE:
            what = f"in a batch with a longer one, the answer to the text differs by {away:.2g}"
            raise Error(f"no, transformers computes something else: {what}", fix="please report it")
    worst = 0.0
    for case in cases:
        name, (ids, segments) = case["name"], case["ours"]
        inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": [1] * len(ids)}
        for key, row in inputs.items():
            theirs = tensors.get(f"{name}.{key}")
            if row is None or (theirs is None and "ids" in case):
                continue
            got = [] if theirs is None else theirs[0].tolist()
            if got != row:
                pairs = enumerate(zip(got, row, strict=False))
                at = next((i for i, (x, y) in pairs if x != y), min(len(got), len(row)))
                what = f"the {key} of the {name} " + (f"differ from ours at token {at}" if got else "are not there")
                raise Error(f"no, transformers reads something else: {what}", fix="please report it")
        for key, ours in compute_outputs(former, ids, segments, case.get("decoder")).items():
            if (theirs := tensors.get(f"{name}.{key}")) is None:
                raise make_refusal("transformers", f"it gives no {key}", "please report it")
            away = (theirs.float().reshape(ours.shape) - ours).abs().max().item()
            worst = max(worst, away)
            if not away <= TOLERANCE * max(1.0, ours.abs().max().item()):
                what = f"{key} of the {name} differ by {away:.2g}"
                raise Error(f"no, transformers computes something else: {what}", fix="please report it")
    return worst


# Our name of a head's part, and of the output that holds it in transformers where it is not "logits".
OUTPUT_NAMES = {"nsp": "seq_relationship_logits", "sop": "sop_logits", "choose": "mc_logits"}


@torch.inference_mode()
def compute_outputs(
    former: Former, ids: list[int], segments: list[int] | None, decoder: list[int] | None
) -> dict[str, Tensor]:
    """Compute our outputs for one text, under the names that transformers has for them."""
    shape = (1, 1, -1) if former.head in ("choose", "double") else (1, -1)
    given: dict[str, TensorLike] = {"ids": torch.tensor(ids).view(shape)}
    if segments is not None:
        given["segments"] = torch.tensor(segments).view(shape)
    if decoder is not None:
        given["target"] = torch.tensor([decoder])
    if former.head in ("none", "beam"):
        return {} if former.head == "beam" else {"last_hidden_state": former.hidden(**given)}
    found = former.logits(**given)
    if former.head == "answer":
        return {"start_logits": found[..., 0], "end_logits": found[..., 1]}
    if not isinstance(found, dict):
        return {"logits": found}
    usual = "prediction_logits" if former.head == "pretraining" else "logits"
    return {OUTPUT_NAMES.get(name, usual): value for name, value in found.items()}


@torch.inference_mode()
def compare_embeddings(
    former: Former, cases: list[JSONObject], tensors: Mapping[str, Tensor], pool: str, normalise: bool
) -> float:
    """Compare the vectors of sentence-transformers with ours: the largest difference, or an Error."""
    worst = 0.0
    for case in cases:
        ids, segments = case["ours"]
        if case["pair"] is not None:  # it encodes the first text alone
            ids, segments = encode_case(former, case["text"], None)
        kinds: dict[str, TensorLike] = {} if segments is None else {"segments": torch.tensor([segments])}
        ours = pool_vectors(former.hidden(torch.tensor([ids]), **kinds)[0], pool)
        ours = torch.nn.functional.normalize(ours, dim=-1) if normalise else ours
        away = (tensors[f"{case['name']}.vector"] - ours).abs().max().item()
        worst = max(worst, away)
        if not away <= TOLERANCE * max(1.0, ours.abs().max().item()):
            what = f"the vector of the {case['name']} differs by {away:.2g}"
            raise Error(f"no, sentence-transformers computes something else: {what}", fix="please report it")
    return worst


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


def run_transformers(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
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
    kind = getattr(transformers, name)  # dynamic: the file names its class
    model, info = kind.from_pretrained(where, dtype=torch.float32, output_loading_info=True, local_files_only=True)
    model.eval()
    tokenizer: Any = None  # dynamic: a class of transformers
    if (Path(where) / "tokenizer.json").is_file():
        tokenizer = transformers.AutoTokenizer.from_pretrained(where, **local)
    facts: JSONObject = {
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
        facts["generation"] = {
            "bos": known.bos_token_id, "eos": known.eos_token_id, "pad": known.pad_token_id,
        }  # fmt: skip
    tensors: dict[str, Tensor] = {}
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


def run_sentence_transformers(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
    """Open a directory by SentenceTransformer and encode the texts of the cases, all in one batch."""
    import sentence_transformers
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    open_model = sentence_transformers.SentenceTransformer
    model = open_model(where, device="cpu", local_files_only=True, trust_remote_code=False)
    vectors = model.encode([case["text"] for case in cases], convert_to_tensor=True, show_progress_bar=False)
    tensors = {f"{case['name']}.vector": row.float().contiguous() for case, row in zip(cases, vectors, strict=True)}
    facts = {"version": sentence_transformers.__version__, "architecture": "SentenceTransformer"}
    return facts | {"limit": model.max_seq_length}, tensors


READER_RUNNERS = {"transformers": run_transformers, "sentence-transformers": run_sentence_transformers}


def answer_request(folder: str) -> None:
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
    answer_request(sys.argv[1])
