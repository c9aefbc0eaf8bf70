"""Tokenizers in directories: found in whichever form they were published, and written so that others read them; and
formers.prepare, which makes a token store with one of them. Torch is imported only to read a published tokenizer whose
special tokens no file names: the styles that it may have are declared in the model files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from ..atomic_files import replace_folder, stage_directory
from ..config import JSONObject, suggest_name
from ..data.preparation.pipeline import prepare as build_store
from ..data.preparation.pipeline import resolve_rank
from ..data.store import STORE_FOLDER, Store
from ..errors import Error
from ..registry import list_tokenizer_styles
from ..text import published_files
from ..text.tokenizer import SPECIAL_ROLES, Tokenizer
from ..text.tokenizer_kinds import SENTENCEPIECE_FILES
from . import safe_files
from .sandbox import convert_in_sandbox, make_temporary_folder

COMPANION_FILES = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "spiece.model", "sentencepiece.bpe.model", "source.spm", "target.spm", "encoder.json", "vocab.bpe",
    "generation_config.json",
)  # fmt: skip
TEXT_FILES = ("vocab.txt", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe")
TARGET_TOKENIZER_FILE = "tokenizer.target.json"  # Marian's other side, in a formers directory
WORD_PICKLE_FILE = "vocab.pkl"  # Transformer-XL's words
PAD_TOKEN = "<|padding|>"  # the pad token of tokenizers that have none, where one is needed


def load_tokenizer(where: str | Path) -> Tokenizer:
    """Load the tokenizer of a directory (formers' own or published), or a tokenizer.json, vocab.txt or spiece.model."""
    path = Path(where).expanduser()
    if path.is_file():
        known = ("tokenizer.json", "vocab.txt", *SENTENCEPIECE_FILES)
        if path.name not in known and path.suffix != ".json":
            raise Error(f"{path.name} is not a tokenizer's file", where=path, fix=suggest_name(path.name, known))
        if path.suffix == ".json" and path.name not in ("tokenizer.json", "vocab.json", "encoder.json"):
            text = decode_utf8(safe_files.read_bytes(path.parent, path.name), path)
            return Tokenizer(text, published_files.guess_special_tokens(text, list_tokenizer_styles()), where=path)
        path = path.parent
    folder = safe_files.find_model_folder(path)
    for name in ("formers.json", "store.json"):  # ours name the special tokens by role
        if safe_files.has_file(folder, name) and safe_files.has_file(folder, "tokenizer.json"):
            special = safe_files.read_json(folder, name).get("special")
            return load_own_tokenizer(folder, special if isinstance(special, dict) else {})
    if (tokenizer := read_tokenizer(folder, {})) is None:
        what = "there is no tokenizer here"
        raise Error(what, where=folder, fix="a tokenizer.json, vocab.txt or spiece.model is one")
    return tokenizer


def load_own_tokenizer(where: Path, special: JSONObject, limit: int = safe_files.MAX_FILE_BYTES) -> Tokenizer:
    """Load the tokenizer of a formers directory, with that of the other language where there are two."""
    named = {k: v for k, v in special.items() if isinstance(v, str)}

    def load_file(name: str) -> Tokenizer:
        text = decode_utf8(safe_files.read_bytes(where, name, limit), where / name)
        return Tokenizer(text, named, where=where / name)

    tokenizer = load_file("tokenizer.json")
    tokenizer.target = load_file(TARGET_TOKENIZER_FILE) if safe_files.has_file(where, TARGET_TOKENIZER_FILE) else None
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, where: str | Path, overwrite: bool = False) -> Path:
    """Write a directory with tokenizer.json and tokenizer_config.json, which transformers opens as well."""
    with safe_files.replace_directory(where, overwrite) as place, stage_directory(place) as folder:
        tokenizer.save(folder / "tokenizer.json")
        safe_files.write_json(folder / "tokenizer_config.json", build_tokenizer_options(tokenizer))
    return Path(where)


def build_tokenizer_options(tokenizer: Tokenizer) -> JSONObject:
    """Build tokenizer_config.json; segments are asked for where the template of a pair has them."""
    side = {"padding_side": "left"} if tokenizer.is_left_padded else {}
    frame = tokenizer.get_template(pair=True)
    typed = (frame.before or frame.after) and frame.segments[1] != frame.segments[3]
    names = ["input_ids", *(["token_type_ids"] if typed else []), "attention_mask"]
    named = {f"{role}_token": token for role, token in get_special_tokens(tokenizer).items()}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": names, **side, **named}


def add_end_template(text: str, token: str, index: int) -> str:
    """Add a template to a tokenizer.json that puts an end token after each text; other post-processing stays."""
    about = json.loads(text)
    mark = {"SpecialToken": {"id": token, "type_id": 0}}
    parts = [{"Sequence": {"id": "A", "type_id": 0}}, mark]
    again = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": token, "type_id": 1}}]
    known = {token: {"id": token, "ids": [index], "tokens": [token]}}
    template = {"type": "TemplateProcessing", "single": parts, "pair": parts + again, "special_tokens": known}
    before = about.get("post_processor")
    both = {"type": "Sequence", "processors": [before, template]}
    return json.dumps(about | {"post_processor": template if before is None else both}, ensure_ascii=False)


def add_special_token(text: str, token: str, index: int) -> str:
    """Add a special token to a tokenizer.json that no text contains."""
    about = json.loads(text)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added = [*about.get("added_tokens", []), {"id": index, "content": token, **flags}]
    return json.dumps(about | {"added_tokens": added}, ensure_ascii=False)


def get_special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the special tokens by role, in a fixed order, wherever the tokenizer came from."""
    return {role: tokenizer.special[role] for role in SPECIAL_ROLES if role in tokenizer.special}


def read_tokenizer(where: Path, files: dict[str, bytes], pickle: bool = False) -> Tokenizer | None:
    """Read the tokenizer of a directory, if there is one in a supported format; its files are kept for export. With
    `pickle`, also Transformer-XL's vocab.pkl, which is not kept."""
    for name in COMPANION_FILES:
        if safe_files.has_file(where, name):
            files[name] = safe_files.read_bytes(where, name)
    options: JSONObject = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        if name in files:
            options |= safe_files.parse_json(files[name], where / name)
    if "tokenizer_class" not in options and safe_files.has_file(where, "config.json"):  # mBART-50 names it there
        named_class = safe_files.read_json(where, "config.json").get("tokenizer_class")
        options |= {"tokenizer_class": named_class} if isinstance(named_class, str) else {}
    if safe_files.has_file(where, "tokenizer.json"):
        whole = decode_utf8(safe_files.read_bytes(where, "tokenizer.json"), where / "tokenizer.json")
        named = any(f"{role}_token" in options for role in SPECIAL_ROLES)
        usual = {} if named else published_files.guess_special_tokens(whole, list_tokenizer_styles())
        special = published_files.resolve_special_tokens(options, usual)
        return Tokenizer(whole, special, where=where / "tokenizer.json")
    text = {n: decode_utf8(files[n], where / n) for n in TEXT_FILES if n in files}
    styles = list_tokenizer_styles() if files else []
    if {"source.spm", "target.spm", "vocab.json"} <= files.keys():
        both = files["source.spm"], files["target.spm"]
        return published_files.from_marian(*both, text["vocab.json"], options, styles, where / "source.spm")
    for vocab, merges in (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe")):
        if vocab in text and merges in text:
            return published_files.from_merges(text[vocab], text[merges], options, styles, where / merges)
    for name in SENTENCEPIECE_FILES:
        if name in files:
            return published_files.from_spm(files[name], options, styles, where / name, name)
    if "vocab.txt" in text:
        return published_files.from_vocab_txt(text["vocab.txt"], options, styles, where / "vocab.txt")
    if safe_files.has_file(where, WORD_PICKLE_FILE):
        if pickle:
            return read_pickled_words(where, options)
        note = f"{where / WORD_PICKLE_FILE} is a pickle and was not read: there is no tokenizer; pickle=True reads it"
        warnings.warn(note, stacklevel=3)
    return None


def read_pickled_words(where: Path, options: JSONObject) -> Tokenizer:
    """Read Transformer-XL's vocab.pkl: another process turns it into JSON, and nothing that it names is called."""
    with make_temporary_folder() as folder:
        convert_in_sandbox("vocabulary", safe_files.resolve_file(where, WORD_PICKLE_FILE), folder / "vocabulary.json")
        data = safe_files.read_bytes(folder, "vocabulary.json", safe_files.MAX_VOCAB_BYTES)
    about = safe_files.parse_json(data, where / WORD_PICKLE_FILE)
    styles = list_tokenizer_styles()
    lower = bool(options.get("lower_case", about["lower_case"]))
    return published_files.from_symbols(about["symbols"], lower, options, styles, where / WORD_PICKLE_FILE)


def decode_utf8(data: bytes, where: Path) -> str:
    """Decode the bytes of a text file."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise Error("not UTF-8 text", where=where, fix="the file is damaged: fetch it again") from None


def prepare(
    source: object, tokenizer: Tokenizer | str | Path, out: str | Path, *, overwrite: bool = False,
    **options: Any,  # dynamic: those of the pipeline's prepare, which checks them
) -> Store | None:  # fmt: skip
    """Make a token store of files, or of a list, DataFrame or dataset of documents, or finish one that was interrupted.

    `tokenizer` may be a tokenizer, a file of one, or the directory of a model, a store or a Hugging Face checkpoint.
    The options are those of formers.data.preparation.pipeline.prepare: unit, column, encoding, skip, delimiter, header,
    workers, splitter, units, validation, deduplicate, tests, tests_column, drop_tests, shard, rank, ranks, tell,
    phrases."""
    pieces = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    if overwrite and resolve_rank(options.get("rank"), options.get("ranks"))[1] > 1:
        raise Error("several processes cannot replace a store together", where=out, fix="remove it first")
    inputs = (source, tokenizer, options.get("tests"), options.get("units"))
    with replace_folder(Path(out), STORE_FOLDER, overwrite, inputs):
        return build_store(source, pieces, out, **options)
