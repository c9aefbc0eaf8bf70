"""Checkpoints as fairseq (RoBERTa, BART) and Paddle (ERNIE) released them, translated into Hugging Face directories.

Both are pickles: another process turns them into plain tensors (sandbox.py), on an explicit word only. What is left is
names: each tensor gets the name that it has in transformers, the settings become a config.json, and the rest is
interop/huggingface.py's. The translated directory is a temporary one.

fairseq  model.pt: a table with `args` (the settings) and `model` (the tensors); dict.txt numbers GPT-2's pieces, which
         are in encoder.json and vocab.bpe beside it
Paddle   NAME.pdparams: a table of arrays, linear weights as (in, out); config.json, model_config.json or
         ernie_config.json, and vocab.txt beside it"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from ..config import JSONObject, format_value
from ..errors import Error
from . import safe_files
from .safe_files import WEIGHTS_FILE, Weights
from .sandbox import FAIRSEQ_SETTINGS_FILE, convert_in_sandbox, make_temporary_folder
from .tokenizer_files import COMPANION_FILES, decode_utf8

FAIRSEQ_FILE, FAIRSEQ_WORDS_FILE = "model.pt", "dict.txt"
PADDLE_CONFIG_FILES = ("config.json", "model_config.json", "ernie_config.json")
FAIRSEQ_TOKENS = ("<s>", "<pad>", "</s>", "<unk>")
FAIRSEQ_EPS = PADDLE_EPS = 1e-5  # the default of both libraries, which their models do not change
ACTIVATIONS = ("gelu", "relu")
# Settings of Paddle's configs that do not change the numbers; init_class names the class, as architectures does.
PADDLE_IRRELEVANT = frozenset({
    "init_class", "init_args", "paddlenlp_version", "fuse", "enable_recompute", "use_recompute", "task_id",
})  # fmt: skip
PADDLE_ALIASES = {"sent_type_vocab_size": "type_vocab_size"}  # of ERNIE 2.0's ernie_config.json
Names = Sequence[tuple[str, str]]  # pattern of a name, and what it becomes

LAYER_NAMES = (
    (r"self_attn\.out_proj\.", "attention.output.dense."),
    (r"self_attn\.q_proj\.", "attention.self.query."),
    (r"self_attn\.k_proj\.", "attention.self.key."),
    (r"self_attn\.v_proj\.", "attention.self.value."),
)
ROBERTA_NAMES: Names = (
    (r"(?:en|de)coder\.sentence_encoder\.embed_tokens\.", "roberta.embeddings.word_embeddings."),
    (r"(?:en|de)coder\.sentence_encoder\.embed_positions\.", "roberta.embeddings.position_embeddings."),
    (r"(?:en|de)coder\.sentence_encoder\.(?:emb_layer_norm|layernorm_embedding)\.", "roberta.embeddings.LayerNorm."),
    (r"(?:en|de)coder\.sentence_encoder\.layers\.(\d+)\.", r"roberta.encoder.layer.\1."),
    *LAYER_NAMES,
    (r"self_attn_layer_norm\.", "attention.output.LayerNorm."),
    (r"fc1\.", "intermediate.dense."),
    (r"fc2\.", "output.dense."),
    (r"final_layer_norm\.", "output.LayerNorm."),
    (r"(?:en|de)coder\.lm_head\.weight$", "lm_head.decoder.weight"),
    (r"(?:en|de)coder\.lm_head\.", "lm_head."),
    (r"classification_heads\.[^.]+\.", "classifier."),
)
BART_NAMES: Names = (
    (r"decoder\.output_projection\.", "lm_head."),
    (r"(en|de)coder\.", r"model.\1coder."),
    (r"classification_heads\.[^.]+\.", "classification_head."),
)
ERNIE_NAMES: Names = (
    (r"(?:ernie\.)?embeddings\.layer_norm\.", "ernie.embeddings.LayerNorm."),
    (r"(?:ernie\.)?embeddings\.", "ernie.embeddings."),
    (r"(?:ernie\.)?encoder\.layers\.(\d+)\.", r"ernie.encoder.layer.\1."),
    (r"(?:ernie\.)?pooler\.", "ernie.pooler."),
    *LAYER_NAMES,
    (r"linear1\.", "intermediate.dense."),
    (r"linear2\.", "output.dense."),
    (r"norm1\.", "attention.output.LayerNorm."),
    (r"norm2\.", "output.LayerNorm."),
    (r"cls\.predictions\.transform\.", "cls.predictions.transform.dense."),
    (r"cls\.predictions\.layer_norm\.", "cls.predictions.transform.LayerNorm."),
    (r"cls\.predictions\.decoder_weight$", "cls.predictions.decoder.weight"),
    (r"cls\.predictions\.decoder_bias$", "cls.predictions.bias"),
)
# Counters and buffers of fairseq that hold no weights.
FAIRSEQ_BUFFERS = re.compile(r".*(?:^|\.)(?:version|_float_tensor)")


@dataclass(frozen=True)
class Release:
    """A released checkpoint: which library wrote it, and its file of weights."""

    library: Literal["fairseq", "paddle"]
    file: str


def find_release(where: Path) -> Release | None:
    """Find the weights of a released checkpoint in a directory; None where it has weights in another form."""
    known = (WEIGHTS_FILE, safe_files.WEIGHTS_INDEX_FILE, safe_files.PICKLE_FILE, safe_files.PICKLE_INDEX_FILE)
    if any(safe_files.has_file(where, name) for name in known):
        return None
    if safe_files.has_file(where, FAIRSEQ_FILE):
        return Release("fairseq", FAIRSEQ_FILE)
    names = sorted(path.name for path in where.iterdir() if path.suffix == ".pdparams")
    if len(names) > 1:
        what = f"there are {len(names)} files of Paddle's weights, {names[0]!r} and {names[1]!r} first"
        raise Error(what, where=where, fix="leave the one of the model")
    return Release("paddle", names[0]) if names else None


@contextmanager
def open_release(where: Path, release: Release, pickle: bool) -> Iterator[Path]:
    """Translate a released checkpoint into a Hugging Face directory, which is removed afterwards."""
    if not pickle:
        what = f"{release.file} is a pickle, which may contain code"
        raise Error(what, where=where, fix="a pickle is read only if you say so: --pickle, or pickle=True")
    with make_temporary_folder() as folder:
        (raw := folder / "raw").mkdir()
        (translated := folder / "translated").mkdir()
        convert_in_sandbox(release.library, safe_files.resolve_file(where, release.file), raw / WEIGHTS_FILE)
        weights = Weights(raw)
        tensors = {name: weights.get_tensor(name) for name in weights}
        translate = translate_fairseq if release.library == "fairseq" else translate_paddle
        try:
            config, renamed = translate(where, raw, tensors, translated)
            groups = ({name: value} for name, value in renamed.items())
            safe_files.write_weights(translated, groups, [value.nbytes for value in renamed.values()], 2**62)
            safe_files.write_json(translated / "config.json", config)
            yield translated
        except Error as error:
            if error.where is not None and str(folder) in error.where:  # a place that is about to vanish
                raise Error(error.what, where=where, fix=error.fix) from None
            raise


def rename(names: Names, name: str) -> str:
    """Give a tensor the name that it has in transformers: from its start on, pattern after pattern."""
    done, rest = "", name
    for pattern, theirs in names:
        if (match := re.match(pattern, rest)) is not None:
            done, rest = done + match.expand(theirs), rest[match.end() :]
    return done + rest


def split_projections(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Split attention's input projection, which fairseq's first releases keep in one tensor, into three."""
    parted: dict[str, Tensor] = {}
    for name, value in tensors.items():
        if "in_proj_" not in name:
            parted[name] = value
            continue
        base, _, kind = name.partition("in_proj_")
        for letter, part in zip("qkv", value.chunk(3), strict=True):
            parted[f"{base}{letter}_proj.{kind}"] = part
    return parted


def translate_fairseq(
    where: Path, raw: Path, tensors: Mapping[str, Tensor], out: Path
) -> tuple[JSONObject, dict[str, Tensor]]:
    """Translate fairseq's RoBERTa or BART; returns config and tensors, and writes the tokenizer's files."""
    source = where / FAIRSEQ_FILE
    args = safe_files.read_json(raw, FAIRSEQ_SETTINGS_FILE)
    tensors = split_projections({n: t for n, t in tensors.items() if not FAIRSEQ_BUFFERS.fullmatch(n)})
    is_roberta = any("sentence_encoder." in name for name in tensors)
    if not is_roberta and "encoder.layernorm_embedding.weight" not in tensors:
        raise Error("is neither a RoBERTa nor a BART", where=source, fix="formers reads these two of fairseq's models")
    if odd := [name for name in tensors if re.search(r"coder\.layer_norm\.", name)]:
        what = f"{odd[0]!r} is of a model that normalises before each layer"
        raise Error(what, where=source, fix="formers reads fairseq's RoBERTa and BART, which normalise after it")
    renamed = {rename(ROBERTA_NAMES if is_roberta else BART_NAMES, name): value for name, value in tensors.items()}
    config = (build_roberta_config if is_roberta else build_bart_config)(args, renamed, source)
    write_fairseq_tokenizer(where, out, config["vocab_size"])
    return config, renamed


def get_setting(args: JSONObject, name: str, kind: type, where: Path) -> object:
    """Return one of fairseq's settings."""
    value = args.get(name)
    if type(value) is not kind:
        raise Error(f"args: {name} is {format_value(value)}", where=where, fix="this is not what fairseq writes")
    return value


def get_tensor_shape(tensors: Mapping[str, Tensor], name: str, where: Path) -> Sequence[int]:
    """Return the shape of a matrix that must be there."""
    if name not in tensors or tensors[name].dim() != 2:
        raise Error(f"tensor {name!r} is missing", where=where, fix="the file is incomplete")
    return tensors[name].shape


def get_activation_name(args: JSONObject, where: Path) -> str:
    """Return the activation, which both libraries must compute alike."""
    name = args.get("activation_fn", "relu")
    if name not in ACTIVATIONS:
        what = f"args: activation_fn {format_value(name)} is not supported"
        raise Error(what, where=where, fix="formers reads " + " and ".join(ACTIVATIONS))
    return str(name)


def count_layers(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """Count the layers that tensors are of."""
    return len({match[1] for name in tensors if (match := re.match(pattern, name))})


def build_class_labels(tensors: dict[str, Tensor], head: str) -> JSONObject:
    """Return num_labels if there is a classifier; the language model's own layers are left out then."""
    out = tensors.get(f"{head}.out_proj.weight")
    if out is None:
        return {}
    for name in [name for name in tensors if name.startswith("lm_head.")]:
        del tensors[name]
    return {"num_labels": out.shape[0]}


def build_roberta_config(args: JSONObject, tensors: dict[str, Tensor], where: Path) -> JSONObject:
    """Build RoBERTa's config.json. fairseq has no segments; in transformers there is one, whose vector is zero."""
    rows, dim = get_tensor_shape(tensors, "roberta.embeddings.word_embeddings.weight", where)
    labels = build_class_labels(tensors, "classifier")
    table = tensors["roberta.embeddings.word_embeddings.weight"]
    tensors["roberta.embeddings.token_type_embeddings.weight"] = table.new_zeros(1, dim)
    return {
        "model_type": "roberta",
        "architectures": ["RobertaForSequenceClassification" if labels else "RobertaForMaskedLM"],
        "vocab_size": rows, "hidden_size": dim, "type_vocab_size": 1, "layer_norm_eps": FAIRSEQ_EPS,
        "num_hidden_layers": count_layers(tensors, r"roberta\.encoder\.layer\.(\d+)\."),
        "num_attention_heads": get_setting(args, "encoder_attention_heads", int, where),
        "intermediate_size": get_tensor_shape(tensors, "roberta.encoder.layer.0.intermediate.dense.weight", where)[0],
        "max_position_embeddings": get_tensor_shape(tensors, "roberta.embeddings.position_embeddings.weight", where)[0],
        "hidden_act": get_activation_name(args, where), "hidden_dropout_prob": args.get("dropout", 0.1),
        "attention_probs_dropout_prob": args.get("attention_dropout", 0.1),
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, **labels,
    }  # fmt: skip


def build_bart_config(args: JSONObject, tensors: dict[str, Tensor], where: Path) -> JSONObject:
    """Build BART's config.json. Both sides share one table, which transformers also keeps by a name of its own."""
    rows, dim = get_tensor_shape(tensors, "model.encoder.embed_tokens.weight", where)
    labels = build_class_labels(tensors, "classification_head")
    tensors["model.shared.weight"] = tensors["model.encoder.embed_tokens.weight"].clone()
    sides: JSONObject = {}
    for side in ("encoder", "decoder"):
        sides |= {
            f"{side}_layers": count_layers(tensors, rf"model\.{side}\.layers\.(\d+)\."),
            f"{side}_attention_heads": get_setting(args, f"{side}_attention_heads", int, where),
            f"{side}_ffn_dim": get_tensor_shape(tensors, f"model.{side}.layers.0.fc1.weight", where)[0],
        }
    return {
        "model_type": "bart",
        "architectures": ["BartForSequenceClassification" if labels else "BartForConditionalGeneration"],
        "vocab_size": rows, "d_model": dim, **sides,
        "max_position_embeddings": get_tensor_shape(tensors, "model.encoder.embed_positions.weight", where)[0] - 2,
        "scale_embedding": not get_setting(args, "no_scale_embedding", bool, where),
        "activation_function": get_activation_name(args, where), "dropout": args.get("dropout", 0.1),
        "attention_dropout": args.get("attention_dropout", 0.0),
        "activation_dropout": args.get("activation_dropout", args.get("relu_dropout", 0.0)),
        "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, **labels,
    }  # fmt: skip


def write_fairseq_tokenizer(where: Path, out: Path, size: int) -> None:
    """Write vocab.json and merges.txt with fairseq's numbers: its own four tokens, the pieces in the order of dict.txt,
    and <mask> where the table has one more row. Without the three files there is no tokenizer."""
    names = (FAIRSEQ_WORDS_FILE, "encoder.json", "vocab.bpe")
    if not all(safe_files.has_file(where, name) for name in names):
        return
    words, pieces, merges = (decode_utf8(safe_files.read_bytes(where, name), where / name) for name in names)
    numbered = safe_files.parse_json(pieces.encode(), where / "encoder.json")
    by_number = {str(number): piece for piece, number in numbered.items()}
    vocab = {token: number for number, token in enumerate(FAIRSEQ_TOKENS)}
    for line, text in enumerate(words.splitlines(), 1):
        word = text.rpartition(" ")[0]
        piece = word if word.startswith("madeupword") else by_number.get(word)
        if piece is None or piece in vocab:
            what = f"{format_value(text)} is not the number of another piece of encoder.json, and its count"
            raise Error(what, where=f"{where / FAIRSEQ_WORDS_FILE}, line {line:,}", fix="fetch it again")
        vocab[piece] = len(vocab)
    if len(vocab) < size:
        vocab["<mask>"] = len(vocab)
    if len(vocab) > size:
        what = f"{len(vocab):,} pieces do not fit into the {size:,} rows of {FAIRSEQ_FILE}"
        raise Error(what, where=where / FAIRSEQ_WORDS_FILE, fix="dict.txt belongs to another model")
    (out / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False), encoding="utf-8")
    (out / "merges.txt").write_text(merges, encoding="utf-8")


def translate_paddle(
    where: Path, raw: Path, tensors: Mapping[str, Tensor], out: Path
) -> tuple[JSONObject, dict[str, Tensor]]:
    """Translate Paddle's ERNIE; returns config and tensors, and copies the tokenizer's files."""
    renamed: dict[str, Tensor] = {}
    for name, value in tensors.items():
        is_table = "embeddings." in name or name.endswith("decoder_weight")
        renamed[rename(ERNIE_NAMES, name)] = value if is_table or value.dim() != 2 else value.t().contiguous()
    config = build_ernie_config(where, renamed)
    if config["architectures"] == ["ErnieForQuestionAnswering"]:
        renamed = {re.sub(r"^classifier\.", "qa_outputs.", name): value for name, value in renamed.items()}
    for name in COMPANION_FILES:
        if safe_files.has_file(where, name):
            (out / name).write_bytes(safe_files.read_bytes(where, name))
    return config, renamed


def build_ernie_config(where: Path, tensors: Mapping[str, Tensor]) -> JSONObject:
    """Build ERNIE's config.json out of Paddle's settings, whose keys are transformers' for the most part."""
    file = next((name for name in PADDLE_CONFIG_FILES if safe_files.has_file(where, name)), None)
    if file is None:
        what = "there is no " + " and no ".join(PADDLE_CONFIG_FILES)
        raise Error(what, where=where, fix="put the settings beside the weights")
    stated = safe_files.read_json(where, file)
    inner = stated.get("init_args")  # a task's class holds the arguments of the model inside it
    inner = inner[0] if isinstance(inner, list) and inner and isinstance(inner[0], dict) else {}
    stated = {**inner, **stated}
    classes = stated.get("architectures") or [stated.get("init_class")]
    settings = {PADDLE_ALIASES.get(key, key): value for key, value in stated.items() if key not in PADDLE_IRRELEVANT}
    layer = "ernie.encoder.layer.0.intermediate.dense.weight"
    table = "ernie.embeddings.task_type_embeddings.weight"
    # What Paddle leaves out has its own default, or follows from the tensors.
    sizes: JSONObject = {"intermediate_size": len(tensors[layer])} if layer in tensors else {}
    sizes |= {"task_type_vocab_size": len(tensors[table]), "use_task_id": True} if table in tensors else {}
    kind = choose_ernie_class(classes[0] if isinstance(classes, list) else None, tensors)
    defaults = {"layer_norm_eps": PADDLE_EPS, "pad_token_id": 0, **sizes}
    return defaults | settings | {"model_type": "ernie", "architectures": [kind]}


def choose_ernie_class(stated: object, tensors: Mapping[str, Tensor]) -> str:
    """Choose the class in transformers: the stated one, whose spelling may differ, or what the tensors are of."""
    known = {name.lower(): name for name in (
        "ErnieModel", "ErnieForPreTraining", "ErnieForMaskedLM", "ErnieForSequenceClassification",
        "ErnieForTokenClassification", "ErnieForQuestionAnswering", "ErnieForMultipleChoice",
    )}  # fmt: skip
    has_words = any(name.startswith("cls.predictions.") for name in tensors)
    if has_words:  # files of the bare model may keep the layers of its pretraining
        has_pairs = any(name.startswith("cls.seq_relationship.") for name in tensors)
        return "ErnieForPreTraining" if has_pairs else "ErnieForMaskedLM"
    has_head = any(not name.startswith("ernie.") for name in tensors)
    return known.get(str(stated).lower(), "ErnieModel") if has_head else "ErnieModel"
