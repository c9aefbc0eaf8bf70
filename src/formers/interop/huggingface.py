"""Checkpoints of Hugging Face's transformers, read and written: config, labels, tokenizer, weights; and exports for
sentence-transformers, a model without its head and with modules that pool and normalise its states."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch

from .. import config as settings
from ..atomic_files import stage_directory
from ..config import JSONObject, ProgressCallback, format_value
from ..errors import Error
from ..family import CheckpointFormat, ModelConfig
from ..former import MAX_LABELS, Former, build_empty
from ..keymap import KeyMap, LoadPlan, compile_pattern
from ..nn.head_pruning import restore_full_shapes
from ..registry import FAMILIES, FamilyEntry, find_family
from ..task import END_MARKED_HEADS, get_frame, read_mixture_tasks
from ..text.languages import find_forced_language
from ..text.tokenizer import Tokenizer
from . import safe_files, tokenizer_files
from .model_card import write_model_card
from .safe_files import Weights, check_has_weights, write_weights

# Keys of every config that do not change the numbers of these families.
IRRELEVANT_KEYS = frozenset(
    """_name_or_path name_or_path architectures model_type transformers_version torch_dtype dtype use_cache return_dict
    output_hidden_states output_attentions output_scores output_past return_dict_in_generate torchscript use_bfloat16
    tf_legacy_loss cross_attention_hidden_size is_encoder_decoder is_decoder max_length min_length max_new_tokens
    do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
    repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    num_return_sequences chunk_size_feed_forward forced_bos_token_id forced_eos_token_id remove_invalid_values
    exponential_decay_length_penalty suppress_tokens begin_suppress_tokens finetuning_task id2label label2id
    num_labels _num_labels tokenizer_class prefix bos_token_id pad_token_id eos_token_id sep_token_id
    decoder_start_token_id task_specific_params problem_type gradient_checkpointing _commit_hash
    _attn_implementation_autoset _attn_implementation attn_implementation tie_last_hidden_states""".split()  # noqa: SIM905
)
FIXED_VALUES = {"pruned_heads": ({},), "tie_encoder_decoder": (False,)}
DTYPE_NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float64: "float64"}
OWN_TASK_KEY = "formers"  # of an entry of task_specific_params: the task as formers.json has it
UNLIMITED_LENGTH = 10**9  # transformers writes 10^30 for a tokenizer that knows no limit
# Our word for a pooling, and the key of 1_Pooling/config.json (in the form that all versions read, and other servers).
POOLING_KEYS = {
    "mean": "mean_tokens", "first": "cls_token", "max": "max_tokens", "last": "lasttoken",
    "weighted": "weightedmean_tokens",
}  # fmt: skip


def read_checkpoint(
    where: Path, weights: Weights, head: str, *, family: str | None = None, ignore: Iterable[str] = (),
    labels: tuple[str, ...] = (), pickle: bool = False,
) -> tuple[Former, LoadPlan]:  # fmt: skip
    """Build a model without weights, and the plan by which they are filled in."""
    config = safe_files.read_json(where, "config.json")
    path = where / "config.json"
    one, own, architecture = identify_family(config, path, family)
    ours = convert_config(one, config, architecture, weights, path, ignore)
    check_layer_count(ours, weights, path)
    former = build_empty(one.name, ours, own if head == "auto" else head, labels or read_label_names(config, path))
    former.source_files = {"config.json": safe_files.read_bytes(where, "config.json")}
    if former.head == "lm":
        former.tasks = read_exported_tasks(config, path)
    former.tokenizer = tokenizer_files.read_tokenizer(where, former.source_files, pickle)
    drop_substitute_pad(former, config.get("pad_token_id"))
    return former, plan_weights(one, former, own, weights, where)


def identify_family(config: JSONObject, where: Path, family: str | None) -> tuple[FamilyEntry, str, str]:
    """Find the family that a config describes, the head, and the class that it names."""
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        what = f"architectures: {format_value(names)} is not a list of names"
        raise Error(what, where=where, fix="correct config.json")
    kind = family or config.get("model_type")
    if kind is None:
        formats = {name: entry.definition.hf_format for name, entry in FAMILIES.items()}
        families = [name for name, form in formats.items() if form and names and names[0] in form.architectures]
        if not families:
            raise Error("model_type is missing", where=where, fix="say the family: --family bert, or family='bert'")
        kind = families[0]
    if not isinstance(kind, str):
        raise Error(f"model_type: {format_value(kind)} is not a name", where=where, fix="correct config.json")
    try:
        one = find_family(kind)
    except Error as error:
        raise Error(f"model_type: {error.what}", where=where, fix=error.fix) from None
    if (hf := one.definition.hf_format) is None:
        raise Error(f"{one.name} has no format in transformers", where=where, fix="use a formers directory")
    if not names:
        return one, "none", ""
    if names[0] not in hf.architectures:
        what = f"architectures: {names[0]!r} is not a class of {one.name}"
        raise Error(what, where=where, fix=settings.suggest_name(names[0], hf.architectures))
    return one, hf.architectures[names[0]], names[0]


def convert_config(
    family_entry: FamilyEntry, config: JSONObject, architecture: str, weights: Weights, where: Path,
    ignore: Iterable[str],
) -> ModelConfig:  # fmt: skip
    """Translate their config into ours."""
    hf = family_entry.definition.hf_format
    assert hf is not None
    for key, allowed in FIXED_VALUES.items():
        if config.get(key) is not None and config[key] not in allowed and key not in ignore:
            what = f"{key}: formers cannot honour {format_value(config[key])}"
            raise Error(what, where=where, fix=f"pass --ignore {key} to load it all the same")
    try:
        ours = hf.config_map.read_config(
            config, where=where, ignore=ignore, irrelevant_everywhere=[*IRRELEVANT_KEYS, *FIXED_VALUES]
        )
        if hf.adjust_settings is not None:
            # types first: adjusting computes with them
            typed = settings.build_config(family_entry.definition.config_class, ours, where=where)
            declared = typed.to_settings()
            ours = hf.adjust_settings({key: declared[key] for key in ours}, architecture, weights)
        return settings.build_config(family_entry.definition.config_class, ours, where=where)
    except Error as error:
        raise hf.config_map.translate_error(error, config) from None


def check_layer_count(config: ModelConfig, weights: Weights, where: Path) -> None:
    """Refuse a config that asks for more layers than the file can fill, before they are built."""
    layers = config.layers + (config.decoder_layers or 0)
    if layers > len(weights):
        what = f"the config asks for {layers:,} layers, and there are {len(weights):,} tensors"
        raise Error(what, where=where, fix="weights and config do not belong together")


def read_label_names(config: JSONObject, where: Path) -> tuple[str, ...]:
    """Read the labels of a config, in the order of their numbers."""
    if (table := config.get("id2label")) is None:
        number = config.get("num_labels", config.get("_num_labels", 2))
        if type(number) is not int or not 1 <= number <= MAX_LABELS:
            what = f"num_labels: {format_value(number)} is not a number of labels"
            raise Error(what, where=where, fix="correct config.json")
        return tuple(f"LABEL_{i}" for i in range(number))
    try:
        numbered = {int(key): value for key, value in table.items()}
    except (AttributeError, TypeError, ValueError):
        numbered = {}
    plain = len(numbered) <= MAX_LABELS and all(isinstance(v, str | int | float) for v in numbered.values())
    if not numbered or not plain or sorted(numbered) != list(range(len(numbered))):
        what = f"id2label: {format_value(table)} does not number the labels from 0"
        raise Error(what, where=where, fix="correct config.json")
    return tuple(str(numbered[i]) for i in range(len(numbered)))


def plan_weights(family_entry: FamilyEntry, former: Former, saved_head: str, weights: Weights, where: Path) -> LoadPlan:
    """Plan which tensors go where. A head other than the file's own starts with new weights where the file has nothing
    for it; a tagger does not take over a classifier's last layer just because they share a name."""
    hf = family_entry.definition.hf_format
    assert hf is not None
    ours = [name for name, _ in former.model.named_parameters()]
    keys = hf.build_key_map(former.config, former.head)
    parts = former.model.parts
    optional = {part for part, module in parts.items() if module.spec.optional}
    names: Iterable[str] = weights
    if former.head != saved_head:
        optional |= set(parts)
        theirs = family_entry.definition.build_heads(former.config)[saved_head]
        foreign = {part for part in parts if part not in theirs and parts[part].spec.out != "vocab"}
        outputs = [name for name in ours if name.split(".")[1] in foreign and ".out." in name]
        mine = {name for move in keys.map_tensors(outputs, "") for name in move.theirs}
        patterns = {pattern for part in theirs if part not in parts for pattern in keys.heads.get(part, {})}
        claimed = [compile_pattern(pattern.replace("@", "")) for pattern in patterns]

        def is_another(name: str) -> bool:
            known = keys.normalise_name(name)
            return known in mine and any(pattern.fullmatch(known) for pattern in claimed)

        names = [name for name in weights if not is_another(name)]

    def is_optional(name: str) -> bool:
        frozen = not former.model.get_parameter(name).requires_grad
        return name.startswith("heads.") and (frozen or name.split(".")[1] in optional)

    try:
        return keys.plan_load(names, ours, optional=is_optional)
    except Error as error:
        raise Error(error.what, where=where, fix=error.fix) from None


def write_checkpoint(
    former: Former, out: str | Path, *, dtype: torch.dtype | None = None, shard: int = 5 * 10**9,
    tell: ProgressCallback | None = None, language: str | None = None,
    write_extra_files: Callable[[Path], None] | None = None,
) -> None:  # fmt: skip
    """Write a directory that transformers' from_pretrained opens, with a model card. `language` (en, ko) is that of the
    model's text; by default the tokenizer's vocabulary tells. `write_extra_files` writes more files into the same
    directory before it appears."""
    form = find_format(former)
    check_has_weights(former.model)
    former = prepare_for_export(former)
    check_expressible(former)
    if form.unsupported_reason:
        warnings.warn(form.unsupported_reason, stacklevel=3)
    if former.tokenizer is not None and former.tokenizer.has_morphemes:
        note = "the tokenizer cuts Korean at morphemes first, which other libraries do not do: their tokens will differ"
        warnings.warn(note, stacklevel=3)
    parameters = restore_full_shapes(former.model.body, dict(former.model.named_parameters()))
    keys = form.build_key_map(former.config, former.head)
    moves = keys.map_tensors(parameters)

    def iterate_tensors() -> Iterator[dict[str, torch.Tensor]]:
        for move in moves:
            tensor = parameters[move.ours].detach()
            group = move.save(tensor if dtype is None else tensor.to(dtype))
            again = [(p + copy, p + first) for copy, first in keys.alternate_names.items() for p in {"", keys.prefix}]
            yield group | {copy: group[first].clone() for copy, first in again if first in group}

    size = (dtype or former.dtype).itemsize
    with stage_directory(out) as folder:
        write_weights(folder, iterate_tensors(), [parameters[m.ours].numel() * size for m in moves], shard, tell)
        safe_files.write_json(folder / "config.json", build_hf_config(former, dtype or former.dtype))
        for name, data in former.source_files.items():
            if name in tokenizer_files.COMPANION_FILES:
                (folder / name).write_bytes(data)
        if former.tokenizer is not None:
            former.tokenizer.save(folder / "tokenizer.json")
            if (options := build_tokenizer_config(former)) is not None:
                safe_files.write_json(folder / "tokenizer_config.json", options)
        languages = find_generation_languages(former)
        if can_generate(former) and (languages or "generation_config.json" not in former.source_files):
            name = "generation_config.json"
            original = former.source_files.get(name)
            own_config = safe_files.parse_json(original, Path(name)) if original else build_generation_config(former)
            safe_files.write_json(folder / name, {**own_config, **languages})
        write_model_card(folder, former, find_architecture(former), language, dtype=dtype)
        if write_extra_files is not None:
            write_extra_files(folder)


def find_format(former: Former) -> CheckpointFormat:
    """Return the format of a model's family in transformers, or raise an Error that says what is possible instead."""
    family = former.definition
    if family.hf_format is None:
        what = f"{former.family} has no format in transformers"
        raise Error(what, fix=family.export_remedy or "keep the formers directory")
    return family.hf_format


def check_expressible(former: Former) -> None:
    """Refuse a model of which transformers' config.json cannot say everything: it would compute other numbers."""
    form, family = find_format(former), former.definition
    config = build_hf_config(former, former.dtype)
    rules = {**form.config_map.rules, **form.config_map.legacy_rules}
    known = {key: value for key, value in config.items() if key in rules}
    expressed = form.config_map.read_config(known, where="config.json")
    if form.adjust_settings is not None:
        names = ExportedNames(former, form.build_key_map(former.config, former.head))
        expressed = form.adjust_settings(expressed, config["architectures"][0], names)
    again = settings.build_config(family.config_class, expressed, where="config.json").to_settings()
    for name, value in former.config.to_settings().items():  # what the file leaves out must have its default
        if name not in (*expressed, "pruned") and value != again[name]:  # pruned heads come back empty
            what = f"transformers has no word for {name} = {format_value(value)} in a {form.model_type}"
            raise Error(what, fix=f"train with --model.{name} {again[name]}, or keep it as a formers directory")


def explain_export_limits(former: Former) -> str | None:
    """Say what of a model cannot be exported, before it is trained; None if all of it can be."""
    if former.definition.bilm_format is not None:
        return None
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            check_expressible(former)
        except Error as error:
            return str(error)
    reasons = dict.fromkeys([*(str(note.message) for note in notes), find_format(former).unsupported_reason])
    return "; ".join(reason for reason in reasons if reason) or None


class ExportedNames:
    """The names of the tensors that an export writes, for a config map to look at: no tensor is read."""

    def __init__(self, former: Former, keys: KeyMap):
        names = [name for name, _ in former.model.named_parameters()]
        self.source_parameters = {name: move.ours for move in keys.map_tensors(names) for name in move.theirs}

    def __iter__(self) -> Iterator[str]:
        return iter(self.source_parameters)

    def is_equal(self, one: str, other: str) -> bool:
        """Return whether both are written from one parameter."""
        return self.source_parameters[one] == self.source_parameters[other]


def build_hf_config(former: Former, dtype: torch.dtype) -> JSONObject:
    """Build config.json: the original's values where they still hold, ours for the rest."""
    hf = find_format(former)
    original: JSONObject = {}
    if "config.json" in former.source_files:
        original = safe_files.parse_json(former.source_files["config.json"], Path("config.json"))
    config = hf.config_map.write_config(former.config, original)
    config |= {"model_type": hf.model_type, "architectures": [find_architecture(former)]}
    config["torch_dtype" if "torch_dtype" in config else "dtype"] = DTYPE_NAMES[dtype]
    if not original:
        config |= hf.config_defaults
    if former.labels:
        names = {str(i): label for i, label in enumerate(former.labels)}
        config |= {"id2label": names, "label2id": {label: i for i, label in enumerate(former.labels)}}
    if former.tasks:  # as T5's published config.json names its tasks, with all that formers knows of them
        config["task_specific_params"] = {
            name: {"prefix": task["prefix"], OWN_TASK_KEY: task} for name, task in former.tasks.items()
        }
    return config


def read_exported_tasks(config: JSONObject, where: Path) -> dict[str, JSONObject]:
    """Read the tasks of a mixture that formers exported with a model; those of other libraries say too little."""
    tables = config.get("task_specific_params")
    if not isinstance(tables, dict):
        return {}
    own = {
        name: table[OWN_TASK_KEY] for name, table in tables.items() if isinstance(table, dict) and OWN_TASK_KEY in table
    }
    return read_mixture_tasks(own, where)


def find_architecture(former: Former) -> str:
    """Find the class of transformers that holds this model with its head."""
    form = find_format(former)
    name = form.choose_architecture(former.config, former.head) if form.choose_architecture else None
    name = name or next((theirs for theirs, ours in form.architectures.items() if ours == former.head), None)
    if name is None:
        own = " (its layers, pooling or encoder were chosen)" if "@" in former.head else ""
        what = f"transformers has no class for {former.family} with the head {former.head!r}{own}"
        raise Error(what, fix="keep it as a formers directory; --head none exports the model without its head")
    return name


def build_tokenizer_config(former: Former) -> JSONObject | None:
    """Build tokenizer_config.json, new or completed; None where an imported one needs no change. Without
    model_input_names, transformers would give both texts of a pair the same segment; without model_max_length,
    `truncation=True` would cut nothing; without a pad token, it could not make a batch."""
    assert former.tokenizer is not None
    name = "tokenizer_config.json"
    limit = former.context
    needed: JSONObject = {} if limit is None else {"model_max_length": limit}
    if name in former.source_files:
        options = safe_files.parse_json(former.source_files[name], Path(name))
        length = options.get("model_max_length")
        missing = needed and (not isinstance(length, int) or length > UNLIMITED_LENGTH)
        return options | needed if missing else None
    names = ["input_ids", *(["token_type_ids"] if former.can_read_segments else []), "attention_mask"]
    options = tokenizer_files.build_tokenizer_options(former.tokenizer) | {"model_input_names": names} | needed
    if (filler := find_pad_token(former.tokenizer)) is not None:
        options.setdefault("pad_token", filler)
    return options


def prepare_for_export(former: Former) -> Former:
    """Give a model with a task's head a tokenizer that reads texts as the task did, also where formers adds the marks.

    Where a tokenizer has no template (GPT-2), the heads of tasks read an end mark after each text: the written
    template has it too. A classifier reads the last token that is not padding: where the end mark would have to be the
    padding as well, the vocabulary gets a pad token of its own."""
    tokenizer, c = former.tokenizer, former.config
    if tokenizer is None or former.head not in END_MARKED_HEADS or "tokenizer_config.json" in former.source_files:
        return former
    text, special, eos = tokenizer.json_text, dict(tokenizer.special), tokenizer.special.get("eos")
    if get_frame(tokenizer, False) != tokenizer.get_template() and eos is not None:
        text = tokenizer_files.add_end_template(text, eos, tokenizer.backend.token_to_id(eos))
    vocab, pad = c.vocab, c.pad
    if former.head == "classify" and "pad" not in special:
        special["pad"] = special["unk"] if special.get("unk") not in (None, eos) else tokenizer_files.PAD_TOKEN
        if special["pad"] == tokenizer_files.PAD_TOKEN:
            text = tokenizer_files.add_special_token(text, tokenizer_files.PAD_TOKEN, len(tokenizer))
            vocab = max(vocab, len(tokenizer) + 1)
    if text == tokenizer.json_text and special == tokenizer.special:
        return former
    exported_tokenizer = Tokenizer(text, special)
    pad = exported_tokenizer.id("pad") if former.head == "classify" else pad
    other = build_empty(former.family, dataclasses.replace(c, vocab=vocab, pad=pad), former.head, former.labels)
    state = dict(former.model.state_dict())
    table = state["body.embed.token.weight"]
    if vocab > c.vocab:
        state["body.embed.token.weight"] = torch.cat((table, table.new_zeros(vocab - c.vocab, table.shape[1])))
    other.model.load_state_dict(state, assign=True)
    return dataclasses.replace(former, config=other.config, model=other.model, tokenizer=exported_tokenizer)


def find_pad_token(tokenizer: Tokenizer) -> str | None:
    """Find a special token to pad batches with, also in a tokenizer without a pad token (GPT-2)."""
    return next((tokenizer.special[role] for role in ("pad", "eos", "unk") if role in tokenizer.special), None)


def drop_substitute_pad(former: Former, pad: int | None) -> None:
    """Take the role of padding from a token that only stands in for it, where config.json names no pad token."""
    special = {} if former.tokenizer is None else former.tokenizer.special
    if pad is None and special.get("pad") in (special.get("eos"), special.get("unk")):
        special.pop("pad", None)


def can_generate(former: Former) -> bool:
    """Return whether a model generates text, so that generation_config.json belongs to it."""
    causal = former.definition.pretraining_head == "lm" or (former.definition.can_be_causal and former.config.causal)
    return former.head == "lm" and causal


def find_generation_languages(former: Former) -> JSONObject:
    """Return what generation_config.json says of the target language of a fine-tuned mBART; empty for other models."""
    code, tokenizer = str(former.task.get("target_language", "")), former.output_tokenizer
    if not code or tokenizer is None:
        return {}
    start = former.config.start
    return {
        "decoder_start_token_id": start, "forced_bos_token_id": find_forced_language(tokenizer, code, start),
    }  # fmt: skip


def build_generation_config(former: Former) -> JSONObject:
    """Build generation_config.json: the tokens that begin and end a text, and the one that pads a batch."""
    c, tokenizer = former.config, former.tokenizer
    eos = list(c.eos) if isinstance(c.eos, tuple) else c.eos
    pad = c.pad
    if pad is None and tokenizer is not None and (filler := find_pad_token(tokenizer)) is not None:
        pad = tokenizer.backend.token_to_id(filler)
    file_settings = {"bos_token_id": c.bos, "eos_token_id": eos, "pad_token_id": pad}
    if former.is_encoder_decoder:
        file_settings["decoder_start_token_id"] = next((i for i in (c.start, c.bos, c.pad) if i is not None), None)
    written: JSONObject = {key: value for key, value in file_settings.items() if value is not None}
    if former.definition.never_writes_pad and pad is not None and pad != eos:
        written["bad_words_ids"] = [[pad]]  # as generation here: it begins with it, and never writes it
    return written


def write_sentence_encoder(
    former: Former, out: str | Path, *, pool: str = "mean", normalise: bool = False, dtype: torch.dtype | None = None,
    shard: int = 5 * 10**9, tell: ProgressCallback | None = None, language: str | None = None,
) -> None:  # fmt: skip
    """Write a directory that SentenceTransformer(path) opens; its encode gives what formers.embed gives. `pool` and
    `normalise` are those of formers.embed. A text that is longer than the model's context is cut there; formers.embed
    reads it in windows."""
    if pool not in POOLING_KEYS:
        raise Error(f"sentence-transformers has no pooling {pool!r}", fix="choose " + ", ".join(POOLING_KEYS))
    if former.tokenizer is None:
        raise Error("sentence-transformers needs a tokenizer", fix="put its tokenizer.json beside the model")
    bare = extract_encoder(former)

    def write_extra_files(folder: Path) -> None:
        write_modules(folder, bare, pool, normalise)
        write_model_card(folder, bare, find_architecture(bare), language, for_sentences=True, dtype=dtype)

    write_checkpoint(
        bare, out, dtype=dtype, shard=shard, tell=tell, language=language, write_extra_files=write_extra_files
    )


def write_modules(folder: Path, former: Former, pool: str, normalise: bool) -> None:
    """Write modules.json and the settings of each module."""
    steps = [("", "Transformer"), ("1_Pooling", "Pooling"), *([("2_Normalize", "Normalize")] if normalise else [])]
    kinds = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in steps]
    modules = [{"idx": i, "name": str(i), **kind} for i, kind in enumerate(kinds)]
    safe_files.write_json(folder / "modules.json", modules)
    limit = former.context
    safe_files.write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit, "do_lower_case": False})
    chosen = {f"pooling_mode_{name}": ours == pool for ours, name in POOLING_KEYS.items()}
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": former.config.dim, **chosen, "pooling_mode_mean_sqrt_len_tokens": False}
    safe_files.write_json(folder / "1_Pooling" / "config.json", pooling)
    if normalise:
        (folder / "2_Normalize").mkdir()
        safe_files.write_json(folder / "2_Normalize" / "config.json", {})


def extract_encoder(former: Former) -> Former:
    """Return the model without its head, and of T5 without its decoder; the weights are the same tensors."""
    form = find_format(former)
    config = former.config
    if former.is_encoder_decoder:
        if not form.has_encoder_model:
            what = f"sentence-transformers would read the decoder of a {former.family}, and formers.embed the encoder"
            others = "bert, roberta, albert, ernie, xlnet, t5 and the GPTs"
            raise Error(what, fix=f"keep the formers directory, or take one of {others}")
        config = dataclasses.replace(config, decoder_layers=0)
    encoder = build_empty(former.family, config, "none")
    own = dict(former.model.named_parameters())
    before = {move.theirs: move.ours for move in form.build_key_map(former.config, former.head).map_tensors(own, "")}
    new = [name for name, _ in encoder.model.named_parameters()]
    sources = {move.ours: before.get(move.theirs) for move in form.build_key_map(config, "none").map_tensors(new, "")}
    for part in list(encoder.model.heads):
        if any(source is None for name, source in sources.items() if name.startswith(f"heads.{part}.")):
            del encoder.model.heads[part]  # a pooler that this head does not have
    left = [name for name, _ in encoder.model.named_parameters()]
    encoder.model.load_state_dict({name: own[sources[name] or ""] for name in left}, strict=False, assign=True)
    encoder.tokenizer, encoder.training_info, encoder.source_files = (
        former.tokenizer,
        former.training_info,
        former.source_files,
    )
    return encoder
