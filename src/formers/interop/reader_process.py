"""The process in which another library opens an export: it is handed cases, and writes down what it computed.

    python -m formers.interop.reader_process FOLDER

FOLDER/request.json names the reader, the exported directory and the cases; the answers go to FOLDER/answers.json and
FOLDER/answers.safetensors. Nothing else of formers imports transformers, sentence-transformers, ONNX Runtime,
CTranslate2 or vLLM.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import JSONObject, Settings
from ..errors import Error
from . import safe_files
from .onnx_export import ABOUT_FILE, ONNX_FILE
from .safe_files import Weights
from .sandbox import INHERITED_VARIABLES

READER_NAMES = {
    "transformers": "transformers", "sentence-transformers": "sentence-transformers", "vllm": "vLLM",
    "tei": "text-embeddings-inference", "ctranslate2": "CTranslate2", "onnx": "ONNX Runtime",
}  # fmt: skip
TIMEOUT_SECONDS = 600  # for a library to open a model and read three texts
# Outputs of transformers' models that are compared, and the inputs that are copied into the answers.
OUTPUT_KEYS = (
    "logits", "prediction_logits", "seq_relationship_logits", "sop_logits", "start_logits", "end_logits", "mc_logits",
    "last_hidden_state",
)  # fmt: skip
INPUT_KEYS = ("input_ids", "token_type_ids", "attention_mask")
MULTIPLE_CHOICE_CLASSES = ("ForMultipleChoice", "DoubleHeadsModel")  # classes that read several texts for each answer

ReaderAnswers = tuple[JSONObject, dict[str, Tensor]]  # facts, and tensors by "CASE.NAME"


def run_worker(
    reader: str, where: Path, cases: list[JSONObject], folder: Path, seconds: int = TIMEOUT_SECONDS
) -> tuple[JSONObject, dict[str, Tensor]]:
    """Run this module in a process of its own, offline and with a time limit; returns its facts and tensors."""
    title = READER_NAMES[reader.removesuffix("-converter")]
    plain = [{key: value for key, value in case.items() if key != "ours"} for case in cases]
    safe_files.write_json(folder / "request.json", {"target": reader, "where": str(where.resolve()), "cases": plain})
    inherited = (*INHERITED_VARIABLES, "HOME", "USERPROFILE")
    environment = {name: os.environ[name] for name in inherited if name in os.environ} | {
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }  # fmt: skip
    try:
        done = subprocess.run(
            [sys.executable, "-m", "formers.interop.reader_process", str(folder)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=seconds, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        what = f"{title} did not open it within {seconds} s"
        raise Error(what, where=where, fix="try again on a faster machine") from None
    if not safe_files.has_file(folder, "answers.json"):
        lines = done.stderr.strip().splitlines()
        why = lines[-1][:200] if lines else f"its process ended with code {done.returncode}"
        raise Error(f"no, {title} cannot open it: {why}", fix="is the installation whole? python -m pip check tells")
    facts = safe_files.read_json(folder, "answers.json")
    if "error" in facts:
        what = f"no, {title} cannot open it: {facts['error']}"
        raise Error(what, fix="please report it with the family and its settings")
    answers = Weights(folder, "answers")
    return facts, {name: answers.get_tensor(name) for name in answers}


def run_transformers(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
    """Open a directory by AutoConfig, AutoTokenizer and the class that it names, and read the cases with it.

    A case has a `name` and a `text` (and a `pair`), or `ids` where there is no tokenizer, and `decoder`, the decoder's
    input, where a model needs one.
    """
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
        facts["generation"] = {"bos": known.bos_token_id, "eos": known.eos_token_id, "pad": known.pad_token_id}
    tensors: dict[str, Tensor] = {}
    for case in cases:
        if "ids" in case:
            arguments = {"input_ids": torch.tensor([case["ids"]])}
        else:
            arguments = dict(tokenizer(case["text"], case.get("pair"), truncation=True, return_tensors="pt"))
        read = {key: value for key, value in arguments.items() if key in INPUT_KEYS}
        if name.endswith(MULTIPLE_CHOICE_CLASSES):
            arguments = {key: value[:, None] for key, value in arguments.items()}
        if case.get("decoder"):
            arguments["decoder_input_ids"] = torch.tensor([case["decoder"]])
        with torch.inference_mode():
            out = model(**arguments)
        outputs = {key: out[key] for key in OUTPUT_KEYS if key in out and torch.is_tensor(out[key])}
        tensors |= {f"{case['name']}.{key}": value.contiguous() for key, value in {**read, **outputs}.items()}
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


# What CTranslate2's converter reads of transformers' classes, and transformers 5 has left out or renamed.
LEGACY_ATTRIBUTES: dict[str, dict[str, object]] = {
    "BertConfig": {"position_embedding_type": "absolute"},
    "RobertaConfig": {"position_embedding_type": "absolute"},
    "BartConfig": {"normalize_before": False},
    "MBartConfig": {"normalize_before": True},
    "GPTNeoXConfig": {
        "rotary_pct": property(lambda config: (config.rope_parameters or {}).get("partial_rotary_factor", 1.0)),
    },
    "GPTNeoXForCausalLM": {"embed_out": property(lambda model: model.lm_head)},
}


def convert_for_ctranslate2(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
    """Convert a directory of transformers with CTranslate2's own converter, into the `out` of the one case."""
    import ctranslate2
    import transformers
    from ctranslate2.converters import TransformersConverter

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name, values in LEGACY_ATTRIBUTES.items():
        one = getattr(transformers, name)  # dynamic: a table names the class
        for key, value in values.items():
            if not hasattr(one, key):  # dynamic: other versions have it
                setattr(one, key, value)
    TransformersConverter(where).convert(cases[0]["out"], force=True)
    path = Path(cases[0]["out"]) / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    for key in ("bos_token", "unk_token"):  # its runtime reads no null: a token that there is not is the end token
        if key in config and config[key] is None:
            config[key] = config.get("eos_token") or ""
    path.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return {"version": ctranslate2.__version__}, {}


def run_ctranslate2(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
    """Open a directory as a generator, translator or encoder of CTranslate2, and read the ids of the cases."""
    import ctranslate2

    how: Settings = {"device": "cpu", "compute_type": "float32", "intra_threads": 1}
    tensors: dict[str, Tensor] = {}
    if cases[0]["role"] != "generate":
        kind: Any = ctranslate2.Encoder(where, **how)  # dynamic: one of three classes of CTranslate2
        for case in cases:
            states = kind.forward_batch([case["ids"]]).last_hidden_state
            tensors[f"{case['name']}.last_hidden_state"] = to_tensor(states)[0]
    elif "decoder" in cases[0]:
        kind = ctranslate2.Translator(where, **how)
        names = {side: read_ctranslate2_tokens(Path(where), side) for side in ("source", "target")}
        config = json.loads((Path(where) / "config.json").read_text(encoding="utf-8"))
        named = int(config["decoder_start_token"] is None)  # mBART: what a text starts with is given with each
        for case in cases:
            source = [names["source"][i] for i in case["ids"]]
            target = [names["target"][i] for i in case["decoder"][1 - named :]]
            scores = kind.score_batch([source], [target])[0].log_probs
            tensors[f"{case['name']}.logprobs"] = torch.tensor(scores[: len(case["decoder"]) - 1])
            most = {"max_decoding_length": case["greedy_tokens"] + named, "min_decoding_length": 0, "beam_size": 1}
            prefix = [target[:1]] if named else None
            written = kind.translate_batch([source], prefix, max_input_length=0, **most)[0].hypotheses[0][named:]
            numbers = {token: number for number, token in enumerate(names["target"])}
            tensors[f"{case['name']}.greedy"] = torch.tensor([numbers[token] for token in written], dtype=torch.long)
    else:
        kind = ctranslate2.Generator(where, **how)
        names = {"target": read_ctranslate2_tokens(Path(where), "target")}
        for case in cases:
            log_probs = to_tensor(kind.forward_batch([case["ids"]]))[0].log_softmax(-1)[:-1]
            tensors[f"{case['name']}.logprobs"] = log_probs.gather(1, torch.tensor(case["ids"][1:])[:, None])[:, 0]
            prompt = [names["target"][i] for i in case["ids"]]
            most = {"max_length": case["greedy_tokens"], "sampling_topk": 1, "include_prompt_in_result": False}
            written = kind.generate_batch([prompt], **most)[0].sequences_ids[0]
            tensors[f"{case['name']}.greedy"] = torch.tensor(written, dtype=torch.long)
    facts = {"version": ctranslate2.__version__, "architecture": f"ctranslate2.{type(kind).__name__}"}
    return facts, {name: value.contiguous() for name, value in tensors.items()}


def to_tensor(storage: Any) -> Tensor:  # dynamic: a class of CTranslate2
    """Copy a StorageView of CTranslate2 into a tensor."""
    numpy = importlib.import_module("numpy")
    return torch.from_numpy(numpy.array(storage, dtype=numpy.float32))


def read_ctranslate2_tokens(where: Path, side: str) -> list[str]:
    """Read the tokens of one side of a converted model, in the order of their ids."""
    names = [f"{side}_vocabulary.json", "shared_vocabulary.json", "vocabulary.json"]
    path = next(where / name for name in names if (where / name).is_file())
    return json.loads(path.read_text(encoding="utf-8"))


def run_onnx(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
    """Open model.onnx with ONNX Runtime and read all cases in one padded batch, encoded by the tokenizers library."""
    import onnxruntime
    import tokenizers

    folder = Path(where)
    about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = torch.get_num_threads(), 3
    session = onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"])
    rows: list[dict[str, list[int]]] = []
    if "ids" in cases[0]:
        rows = [{"input_ids": case["ids"], "token_type_ids": [0] * len(case["ids"])} for case in cases]
    else:
        tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        if about["context"] is not None:
            tokenizer.enable_truncation(about["context"])
        for case in cases:
            encoding = tokenizer.encode(case["text"], case.get("pair"))
            rows.append({"input_ids": encoding.ids, "token_type_ids": encoding.type_ids})
    lengths = [len(row["input_ids"]) for row in rows]
    for row, length in zip(rows, lengths, strict=True):
        row["attention_mask"] = [1] * length
        if "decoder_input_ids" in about["inputs"]:
            row["decoder_input_ids"] = cases[0]["decoder"]
    arrays = {name: pad_rows([row[name] for row in rows]).numpy() for name in about["inputs"]}
    outputs = dict(zip(about["outputs"], session.run(about["outputs"], arrays), strict=True))
    tensors: dict[str, Tensor] = {}
    for number, (case, row, length) in enumerate(zip(cases, rows, lengths, strict=True)):
        read = {key: torch.tensor([row[key]]) for key in about["inputs"] if key in INPUT_KEYS}
        case_tensors = {key: torch.from_numpy(value[number]) for key, value in outputs.items()}
        cut = {key: value if is_whole(key, about) else value[:length] for key, value in case_tensors.items()}
        tensors |= {f"{case['name']}.{key}": value.contiguous().clone() for key, value in {**read, **cut}.items()}
    return {"version": onnxruntime.__version__, "architecture": ONNX_FILE}, tensors


def is_whole(output: str, about: JSONObject) -> bool:
    """Return whether an output of a graph has no padding: one answer for each text, or the decoder's tokens."""
    return output in about["pooled_outputs"] or "decoder_input_ids" in about["inputs"]


def pad_rows(rows: Sequence[Sequence[int]]) -> Tensor:
    """Pad rows with 0 on the right."""
    most = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (most - len(row))] for row in rows])


def run_vllm(where: str, cases: Sequence[JSONObject]) -> ReaderAnswers:
    """Open a directory with vLLM's LLM class, in this process, and read the ids of the cases."""
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm

    role = cases[0]["role"]
    has_tokenizer = (Path(where) / "tokenizer.json").is_file()
    how: Settings = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": not has_tokenizer}
    model = vllm.LLM(where, runner="generate" if role == "generate" else "pooling", **how)
    prompts: list[JSONObject] = [{"prompt_token_ids": case["ids"]} for case in cases]
    tensors: dict[str, Tensor] = {}
    if role == "generate":
        tokens = cases[0]["greedy_tokens"]
        options = vllm.SamplingParams(temperature=0.0, max_tokens=tokens, prompt_logprobs=1, ignore_eos=True)
        for case, output in zip(cases, model.generate(prompts, options, use_tqdm=False), strict=True):
            pairs = zip(case["ids"][1:], output.prompt_logprobs[1:], strict=True)
            tensors[f"{case['name']}.logprobs"] = torch.tensor([choices[token].logprob for token, choices in pairs])
            tensors[f"{case['name']}.greedy"] = torch.tensor(list(output.outputs[0].token_ids))
    elif role == "classify":
        for case, output in zip(cases, model.classify(prompts, use_tqdm=False), strict=True):
            tensors[f"{case['name']}.probabilities"] = torch.tensor(output.outputs.probs)
    else:
        for case, output in zip(cases, model.embed(prompts, use_tqdm=False), strict=True):
            tensors[f"{case['name']}.vector"] = torch.tensor(output.outputs.embedding)
    return {"version": vllm.__version__, "architecture": "it"}, tensors


READER_RUNNERS: dict[str, Callable[[str, Sequence[JSONObject]], ReaderAnswers]] = {
    "transformers": run_transformers, "sentence-transformers": run_sentence_transformers, "onnx": run_onnx,
    "ctranslate2": run_ctranslate2, "ctranslate2-converter": convert_for_ctranslate2, "vllm": run_vllm,
}  # fmt: skip


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
