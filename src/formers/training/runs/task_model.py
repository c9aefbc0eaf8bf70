"""The model that learns a task: a checkpoint with a new head or a new model, its tokenizer, and which of its weights
learn. Settings that contradict each other, or would do nothing for a task and a model, are refused: none is ignored."""

from __future__ import annotations

import dataclasses
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch import nn

from ...config import ProgressCallback, Settings, count_noun, format_value, get_schema
from ...errors import Error, UnsupportedTask
from ...family import Family, ModelConfig
from ...former import Former, build, build_empty
from ...interop.model_directory import load, read_checkpoint_info
from ...interop.tokenizer_files import load_tokenizer, save_tokenizer
from ...model import Model, format_head, get_init_rules
from ...nn.experts import Experts
from ...nn.layers import Dropout, OutputLayer, initialise_weights
from ...nn.lora import add_adapters, get_adapter_tensors, remove_adapters
from ...objectives.scheduled_sampling import ONLY_RECURRENT, ONLY_TARGET, SAMPLING_OPTIONS
from ...objectives.seq2seq import DecoderEnds
from ...protocols import Listener
from ...registry import find_family
from ...task import SCORE_LABEL, TASKS, Task, choose_length, find_head, list_tasks
from ...tasks.examples import Examples
from ...tasks.tagging import find_detached, find_mark_words
from ...text.languages import find_template_language, get_language_code, get_language_id, swap_template_language
from ...text.tokenizer import Tokenizer
from ...text.tokenizer_kinds import train_by_kind
from ..config_merge import SMOOTHABLE_KINDS, FinetuneSettings, ModelChoice, TuneConfig
from ..distributed.process_group import ProcessGroup
from ..run_folder import has_run
from .vocab_transfer import resize_vocabulary

ExampleRows = Sequence[Settings]
CLASS_KINDS = ("class", "many", "tags")
TEXT_LEVEL_KINDS = ("class", "many", "number", "choice")  # one answer to a whole text


def get_labels(settings: FinetuneSettings, examples: Examples) -> tuple[str, ...]:
    """Return the labels of the training examples, in order."""
    if settings.task == "regress":
        return (SCORE_LABEL,)
    if settings.task not in ("classify", "tag"):
        return ()
    if len(examples.labels) < 2:
        only = f" ({examples.labels[0]!r})" if examples.labels else ""
        count = count_noun(len(examples.labels), "label")
        raise Error(f"the training examples have {count}{only}", fix="give two or more")
    return examples.labels


def build_task(settings: FinetuneSettings, examples: Examples) -> Task:
    """Build the task from the examples and the settings; the model limits its length."""
    t, kind = settings.tune, TASKS[settings.task][0][0]
    many = examples.multilabel if t.multilabel is None else t.multilabel
    if settings.task == "classify" and many:
        kind = "many"
    abstains = settings.task == "answer" and any(not row["possible"] for row in examples.rows)
    pairs = (
        {row.get("other") is not None for row in examples.rows} if settings.task in ("classify", "regress") else set()
    )
    characters = settings.task == "tag" and all(len(word) == 1 for row in examples.rows for word in row["words"])
    tagged = [row["words"] for row in examples.rows] if settings.task == "tag" else []
    detached = find_detached(tagged) if settings.task == "tag" else None
    both = t.both_orders
    if both is None:  # a score says how similar two texts are, whichever comes first
        both = settings.task == "regress" and find_family(settings.family).definition.reads_both_orders
    prefix, words = t.prefix, t.label_as_text and settings.task == "classify"
    return Task(
        name=settings.task, kind="text" if words else kind, length=t.seq_length or 512, long=t.long_texts,
        stride=t.stride, both_orders=both, prefix=prefix, label_as_text=words,
        max_answer_tokens=t.max_answer_tokens, max_output_tokens=t.max_output_tokens, allows_no_answer=abstains,
        tags_characters=characters, takes_pairs=pairs.pop() if len(pairs) == 1 else None, detached_marks=detached,
        mark_words=find_mark_words(tagged),
    )  # fmt: skip


def check_task_support(family: Family, config: ModelConfig, task: Task, name: str) -> None:
    """Refuse a task that a family has no head for, and say what it can do."""
    heads = family.build_heads(config)
    pair = family.is_encoder_decoder
    can = list_tasks(family, config)
    if task.label_as_text and pair and "lm" in heads:
        return
    if task.name in can and not task.label_as_text:
        return
    fix = f"it can learn: {', '.join(can)}" if can else "it has no head for any task; its vectors can go into another"
    if task.name == "classify" and not task.label_as_text and pair and "lm" in heads:
        fix += "; with --tune.label_as_text true it writes a label as a word"
    way = " by writing labels" if task.label_as_text else ""
    raise UnsupportedTask(f"{name} cannot learn to {task.name}{way}", fix=fix)


def build_task_model(
    settings: FinetuneSettings, task: Task, labels: tuple[str, ...], rows: ExampleRows, folder: Path,
    world: ProcessGroup, tell: ProgressCallback, say: Callable[[str], None],
) -> tuple[Former, Task, FinetuneSettings]:  # fmt: skip
    """Build the model to train; returns it, the task with the length that it takes, and the settings with the width of
    word vectors that are its embeddings."""
    contradictions = find_contradictions(ModelChoice(settings.family, settings.source), settings.tune)
    refuse_first((*contradictions, *find_unused_settings(settings, task)))
    tune, declared = settings.tune, find_family(settings.family).definition
    head = find_head(declared.build_heads(declared.config_class()), task.head)
    if tune.lm_loss_weight and head in ("classify", "choose"):
        head += "+lm"
    view = None if tune.features == "no" else "plain" if tune.features == "mix" else tune.features
    head = format_head(head, view, tune.pool, None if tune.head == "linear" else tune.head)
    resumed = has_run(folder.parent)  # the checkpoint has the embeddings
    vectors = None if tune.vectors is None or resumed else load_word_vectors(tune.vectors, tell)
    fits = settings.source is None and "embed" in get_schema(declared.config_class)
    if vectors is not None and fits and "embed" not in settings.model_overrides:
        settings = dataclasses.replace(settings, model={**settings.model, "embed": vectors.config.dim})
    if settings.source is None:
        config = declared.config_class(**settings.model)
        check_task_support(declared, config, task, settings.family)
        tokenizer = world.broadcast_from_main(lambda: load_or_train_task_tokenizer(settings, rows, folder, tell))
        former = build_from_scratch(settings, head, labels, tokenizer)
    else:
        former = load_with_task_head(settings, head, labels, task)
    has_experts = any(isinstance(part, Experts) for part in former.model.modules())
    if has_experts or tune.expert_dropout != declared.finetune_recipe.tune.get("expert_dropout"):  # given, not Switch's
        set_expert_dropout(former, tune.expert_dropout)
    check_length(former, tune.seq_length)
    length = min(task.length, choose_length(former.context, tune.seq_length or 512))
    task = dataclasses.replace(task, length=length, labels=labels if task.label_as_text else ())
    if tune.vectors is not None:
        initialise_embeddings(former, vectors, tune.vectors_frozen, say)
    task = set_task_languages(former, task, tune)
    former.task, former.tasks = task.to_dict(), {}
    return former, task, settings


def set_task_languages(former: Former, task: Task, tune: TuneConfig) -> Task:
    """Return the task with the languages of its texts, for an mBART, whose decoder gets the start token that belongs to
    them. A target that is not said to be in another language is in the one that the checkpoint's decoder starts with,
    or else in the source's."""
    own = "" if former.tokenizer is None else find_template_language(former.tokenizer)
    if not (former.definition.has_language_codes and own) or former.tokenizer is None:
        if code := tune.source_language or tune.target_language:
            what = f"this {former.family} has no language codes, and does not take {format_value(code)}"
            raise Error(what, fix="leave tune.source_language and tune.target_language out")
        return task
    source = tune.source_language or own
    if task.kind != "text":
        get_language_id(former.tokenizer, source)
        return dataclasses.replace(task, source_language=source)
    target = tune.target_language or get_language_code(former.tokenizer, former.config.start) or source
    if target == source and task.name == "translate":
        what = f"sources and targets are both marked as {source}"
        warnings.warn(f"{what}: tune.source_language and tune.target_language set these", stacklevel=2)
    frame = swap_template_language(former.tokenizer, former.tokenizer.get_template(), target)
    get_language_id(former.tokenizer, source)
    former.config = dataclasses.replace(former.config, start=frame.after[-1])  # a target, shifted right, wraps around
    return dataclasses.replace(task, source_language=source, target_language=target)


def set_expert_dropout(former: Former, rate: float | None) -> None:
    """Set the dropout of the experts of a Switch Transformer (§2.4)."""
    if rate is None:
        return
    experts = [part for part in former.model.modules() if isinstance(part, Experts)]
    if not experts:
        raise Error(f"a {former.family} has no experts", fix="leave tune.expert_dropout out")
    for part in experts:
        part.dropout = Dropout(rate)


def load_with_task_head(settings: FinetuneSettings, head: str, labels: tuple[str, ...], task: Task) -> Former:
    """Load a checkpoint with the head of the task; one that has it already for other labels gets a new one."""
    assert settings.source is not None
    info = read_checkpoint_info(settings.source)
    if info.is_own and info.family is not None:
        config = find_family(info.family).definition.config_class(**(info.settings or {}))
        check_task_support(find_family(settings.family).definition, config, task, settings.family)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "new, untrained")  # as it should be
        return attach_task_head(settings, head, labels, info.head)


def attach_task_head(settings: FinetuneSettings, head: str, labels: tuple[str, ...], own: str | None) -> Former:
    """Load the checkpoint, whose own head is `own`, with the head of the task."""
    assert settings.source is not None
    if "@" in head and own == head:
        former = load(settings.source)
        return replace_head(former, head, labels, settings.seed) if labels and former.labels != labels else former
    if settings.tune.features != "no":  # what a pooler has learned is of no use to a head that reads other layers
        return replace_head(load(settings.source, head="none"), head, labels, settings.seed)
    if find_family(settings.family).definition.adds_task_tokens and head != "lm":
        former = load(settings.source, head="lm")
        if former.tokenizer is not None and former.tokenizer.id("cls") is None:
            return replace_head(add_task_tokens(former), head, labels, settings.seed)
    if "@" in head:
        return replace_head(load(settings.source, head="none"), head, labels, settings.seed)
    if own is not None and own.partition("+")[0] == head.partition("+")[0]:  # with or without a language model
        former = load(settings.source)
        if labels and former.labels != labels:
            return replace_head(former, head, labels, settings.seed)
        if own == head:
            return former
    return load(settings.source, head=head, labels=list(labels) or None)


def replace_head(former: Former, head: str, labels: tuple[str, ...], seed: int) -> Former:
    """Keep the body and build another head, or a head for other labels."""
    new = build_empty(former.family, former.config, head, labels)
    new.model.to_empty(device="cpu")
    initialise_weights(new.model, get_init_rules(new.definition, new.config), seed)
    old = dict(former.model.named_parameters())
    with torch.no_grad():
        for name, weight in new.model.named_parameters():
            if name in old and old[name].shape == weight.shape and ".out." not in name:
                weight.copy_(old[name])
    new.tokenizer = former.tokenizer
    return new


def add_task_tokens(former: Former) -> Former:
    """Add the tokens that fine-tuning needs to the vocabulary: start, delimiter and extract of GPT (§3.3)."""
    old = former.tokenizer
    assert old is not None
    rust = tokenizers.Tokenizer.from_str(old.json_text)
    style = former.definition.tokenizer_style
    rust.add_special_tokens(list(style.last_tokens))
    style.add_to_backend(rust, {token: rust.token_to_id(token) or 0 for token in style.last_tokens})
    roles = {role: token for role, token in style.special.items() if token in style.last_tokens}
    return resize_vocabulary(former, old, Tokenizer(rust.to_str(), {**old.special, **roles}), {})


def read_checkpoint_family(source: str) -> str:
    """Return the family of a checkpoint; one whose files do not say it, or that lies on the hub, is loaded."""
    return read_checkpoint_info(source).family or load(source).family


def build_from_scratch(settings: FinetuneSettings, head: str, labels: tuple[str, ...], tokenizer: Tokenizer) -> Former:
    """Build a new model that fits a tokenizer."""
    declared = find_family(settings.family).definition
    known = get_schema(declared.config_class)
    sizes: Settings = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")} | {"vocab": len(tokenizer)}
    if "start" in known:
        sizes["start"] = DecoderEnds.from_tokenizer(tokenizer, ("bos", "pad", "cls", "eos")).start
    values = {**settings.model, **{key: value for key, value in sizes.items() if key in known}}
    if settings.tune.seq_length and "context" in known and "context" not in settings.model_overrides:
        values["context"] = max(values.get("context") or 0, settings.tune.seq_length)
    former = build(settings.family, head=head, seed=settings.seed, labels=list(labels) or None, **values)
    former.tokenizer = tokenizer
    return former


def load_or_train_task_tokenizer(
    settings: FinetuneSettings, rows: ExampleRows, folder: Path, tell: ProgressCallback
) -> Tokenizer:
    """Return the tokenizer that was asked for, the run's own, or one trained now."""
    if settings.data.tokenizer is not None:
        return load_tokenizer(settings.data.tokenizer)
    kept = folder / "tokenizer"
    if kept.is_dir() and has_run(folder.parent):
        return load_tokenizer(kept)
    declared = find_family(settings.family).definition
    kind = settings.data.tokenizer_kind or declared.tokenizer
    tell("tokenizer", 0, 1, f"{kind}, {settings.data.vocab_size:,} pieces")
    lines = [line for row in rows for line in collect_row_texts(row)]
    pieces = settings.data.vocab_size
    if kind in ("wordpiece", "unigram"):  # pieces made of characters must hold the script as well
        pieces = max(pieces, 2 * len(set().union(*lines)))
    options = dict(declared.task_tokenizer_options) if kind == declared.tokenizer else {}
    if "min_count" in options and settings.tune.vectors is not None:
        options["min_count"] = 1  # a word that is seen once may have a vector
    tokenizer = train_by_kind(kind, lines, pieces, style=declared.tokenizer_style, **options)
    shutil.rmtree(kept, ignore_errors=True)  # of a try that was refused, perhaps with other examples
    save_tokenizer(tokenizer, kept)
    tell("tokenizer", 1, 1, f"{kind}, {len(tokenizer):,} pieces")
    return tokenizer


def collect_row_texts(row: Settings) -> list[str]:
    """Return all texts of a row, for the tokenizer."""
    texts = [row.get(key) for key in ("text", "other", "target", "question", "context")]
    return [str(t) for t in (*texts, *row.get("choices", ()), " ".join(row.get("words", ()))) if t]


def load_word_vectors(source: str, tell: ProgressCallback) -> Former:
    """Load word vectors: a formers directory, a run that made one, or a published file (GloVe, word2vec, fastText)."""
    from ...interop.word_vectors import read_word_vectors

    vectors = read_word_vectors(source, tell=tell) if Path(source).expanduser().is_file() else load(source)
    if not vectors.definition.is_static:
        raise Error(
            f"is a {vectors.family}, not word vectors", where=source, fix="formers pretrain word2vec makes them"
        )
    return vectors


def initialise_embeddings(former: Former, vectors: Former | None, frozen: bool, say: Callable[[str], None]) -> None:
    """Make word vectors the embeddings, in both channels of a TextCNN that has two; `frozen` ones do not learn. None
    leaves the embeddings to the checkpoint of a resumed run."""
    from ...tasks.word_vectors import fill_embedding

    body = former.model.body
    embed = dict(body.named_modules()).get("embed.token")
    if not isinstance(embed, nn.Embedding) or former.tokenizer is None:
        raise Error(f"a {former.family} does not take word vectors", fix="leave --vectors out")
    learns = embed.weight.requires_grad and not frozen
    if vectors is not None:
        count = fill_embedding(embed, former.tokenizer, vectors)
        if not count.num_found:
            what = f"none of the {count.total:,} words of the examples has a vector (for example {count.missing[0]!r})"
            raise Error(what, fix="take vectors of the same language, split into words in the same way")
        if (load_own := former.definition.load_word_vectors) is not None:
            load_own(body, embed.weight.detach().clone(), count.known_rows)
        say(f"vectors: {count}")
    embed.weight.requires_grad_(learns)


def refuse_first(problems: Iterable[tuple[bool, str, str]]) -> None:
    """Raise the first problem that holds, out of (holds, message, remedy)."""
    for wrong, what, fix in problems:
        if wrong:
            raise Error(what, fix=fix)


def find_contradictions(model: ModelChoice, t: TuneConfig) -> Iterator[tuple[bool, str, str]]:
    """Yield (holds, message, remedy) for settings that contradict each other about the same weights."""
    features = t.features != "no"
    both = "tune.lora trains adapters in layers that tune.features freezes"
    yield bool(t.lora and features), both, "give one of them"
    yield bool(t.lora and t.freeze), "with tune.lora all weights are frozen already", "leave tune.freeze out"
    yield features and t.freeze > 0, "with tune.features all layers are frozen already", "leave tune.freeze out"
    yield t.freeze < -1, f"{t.freeze} layers cannot be frozen", "give a number of layers, or -1 for all of them"
    helps = "tune.lm_loss_weight has no effect on layers that tune.features freezes"
    yield bool(t.lm_loss_weight and features), helps, "leave tune.lm_loss_weight or tune.features out"
    unused = "tune.vectors_frozen has no vectors to freeze"
    yield bool(t.vectors_frozen and t.vectors is None), unused, "give --vectors PATH"
    own = f"the checkpoint {model.source} has embeddings of its own, which --vectors would replace"
    fix = "leave --vectors out, or begin with the name of a family, such as textcnn"
    yield model.source is not None and t.vectors is not None, own, fix
    both = f"tune.lm_loss_weight cannot be combined with tune.head {t.head}"
    yield bool(t.lm_loss_weight) and t.head != "linear", both, "leave tune.lm_loss_weight or tune.head out"
    scratch = features and model.source is None
    fix = f"pretrain it first (formers pretrain {model.family}), or leave tune.features out"
    yield scratch, "a model from scratch has no features to read yet", fix


def find_unused_settings(settings: FinetuneSettings, task: Task) -> Iterator[tuple[bool, str, str]]:
    """Yield (is given, message, remedy) for settings that this task or family ignores."""
    t, name = settings.tune, task.name
    classes = f"there are no classes to balance in {name}"
    yield t.balance and task.kind not in CLASS_KINDS, classes, "leave tune.balance out"
    subject = "several labels are" if task.kind == "many" else f"{name} is"
    smooth = f"tune.label_smoothing does not apply where {subject} learned"
    yield bool(t.label_smoothing) and task.kind not in SMOOTHABLE_KINDS, smooth, "leave it out"
    cut = f"{name} reads long texts in windows, or refuses them"
    yield task.long == "cut" and task.kind in ("tags", "span"), cut, "take tune.long_texts windows or error"
    words = f"tune.label_as_text does not apply to {name}, which has no labels to write"
    yield t.label_as_text and name != "classify", words, "leave it out"
    pools = f"tune.pool does not apply to {name}, which does not read one vector of a text"
    yield t.pool is not None and task.kind not in TEXT_LEVEL_KINDS, pools, "leave tune.pool out"
    writes = f"tune.head {t.head} does not apply to {name}, whose answer the decoder writes"
    yield t.head != "linear" and task.kind == "text", writes, "leave tune.head out"
    no_text = f"does not apply to {name}: the model writes no text for it"
    is_given = t.target_language is not None and task.kind != "text"
    yield is_given, f"tune.target_language {no_text}", "leave tune.target_language out"
    sees = f"the first token of a {settings.family} sees none of the text after it"
    is_causal = find_family(settings.family).definition.objective == "causal"
    yield t.pool == "first" and t.head != "bilstm" and is_causal, sees, "take tune.pool last, mean, max or attention"
    has_recurrent_decoder = find_family(settings.family).definition.has_recurrent_decoder
    for key in SAMPLING_OPTIONS:
        is_given, fix = vars(t.sampling)[key] != vars(ONLY_TARGET)[key], f"leave out tune.{key}"  # dynamic: by name
        yield is_given and task.kind != "text", f"tune.{key} {no_text}", fix
        what = f"tune.{key} does not apply to {settings.family}: {ONLY_RECURRENT}"
        yield is_given and not has_recurrent_decoder, what, f"{fix}, or train seq2seq or gnmt"
    is_unused = t.sampled_token != ONLY_TARGET.sampled_token and not t.should_sample_inputs
    what = "tune.sampled_token has no effect where the decoder reads the target alone"
    yield is_unused, what, "give tune.teacher_forcing 0.8 too, or a tune.sampling_schedule"
    if t.lm_loss_weight:
        who = f"{settings.family} is not a left-to-right language model"
        yield not is_causal, f"{who}: tune.lm_loss_weight would teach it to copy", "leave tune.lm_loss_weight out"
        yield task.kind not in TEXT_LEVEL_KINDS, f"tune.lm_loss_weight does not apply to {name}", "leave it out"


def check_length(former: Former, length: int | None) -> None:
    """Refuse a length beyond the model's context."""
    most = former.context
    if length is not None and most is not None and length > most:
        fix = f"--tune.seq_length {most} or less; longer texts are read in windows"
        raise Error(f"this {former.family} reads {most} tokens at once, not {length}", fix=fix)


@torch.no_grad()
def initialise_number_head(former: Former, part: str, numbers: np.ndarray) -> None:
    """Initialise a new head for numbers, so that its outputs have about their mean and deviation."""
    out, values = former.model.parts[part].out, numbers[numbers[:, 1] > 0, 0]
    assert isinstance(out, OutputLayer)
    assert out.weight is not None  # only a vocabulary's is tied
    if out.bias is not None:
        out.bias.fill_(float(values.mean()))
    out.weight.mul_(max(1e-6, float(values.std())))


def select_trainable(former: Former, tune: TuneConfig) -> None:
    """Freeze what is not trained: the lowest layers, or the whole body (which then has no dropout either)."""
    body = former.model.body
    if tune.lora and not add_adapters(body, tune.lora, tune.lora_alpha):
        raise Error(f"{former.family} has no matrices that take adapters", fix="leave tune.lora out")
    if tune.lora:
        return
    if tune.features != "no" or tune.freeze < 0:
        former.model.freeze_body()
        return
    if tune.freeze > count_layers(former):
        what = f"this {former.family} has {count_noun(count_layers(former), 'layer')}: {tune.freeze} cannot be frozen"
        raise Error(what, fix="give a smaller tune.freeze, or -1 for all of them")
    if tune.freeze:
        for name, weight in former.model.named_parameters():
            if name.startswith("body.") and get_layer_depth(name, former) <= tune.freeze:
                weight.requires_grad_(False)


def finalise_model(former: Former, tune: TuneConfig) -> None:
    """Prepare a trained model for saving: adapters are merged, or moved to a file of their own, and the head of an
    auxiliary language-model loss is removed."""
    if "+lm" in former.head:
        former.head = former.head.replace("+lm", "")
        del former.model.heads["lm"]
    if not tune.lora:
        return
    body = former.model.body
    if not tune.lora_merge:
        former.adapters = get_adapter_tensors(body)
    remove_adapters(body, merge=tune.lora_merge)


def get_layer_depth(name: str, former: Former) -> int:
    """Return the depth of a weight: embeddings 0, then the layers from 1 on, the head above all."""
    if not name.startswith("body."):
        return count_layers(former) + 1
    if (match := re.search(r"(encoder|decoder)?\.?blocks\.(\d+)\.", name)) is None:
        return count_layers(former) if ".norm." in name and "embed" not in name else 0
    return int(match[2]) + 1 + (former.config.layers if match[1] == "decoder" and former.is_encoder_decoder else 0)


def count_layers(former: Former) -> int:
    """Count all layers, one above the other."""
    return former.config.layers + (former.config.num_decoder_layers if former.is_encoder_decoder else 0)


def compute_lr_scales(former: Former, decay: float) -> dict[str, float]:
    """Return each weight's share of the learning rate: less for each layer further down (Howard & Ruder 2018, §3.2)."""
    if decay == 1.0:
        return {}
    top = count_layers(former) + 1
    return {name: decay ** (top - get_layer_depth(name, former)) for name, _ in former.model.named_parameters()}


class WeightRule:
    """What a family does to its weights after each step (TextCNN limits a norm)."""

    def __init__(self, former: Former, rule: Callable[[Model, ModelConfig], None]):
        self.former, self.rule = former, rule

    def on_update(self, step: int) -> None:
        """Apply the rule."""
        self.rule(self.former.model, self.former.config)


def list_listeners(former: Former) -> list[Listener]:
    """List the listeners that a family declares for its models in training."""
    rule = former.definition.after_step
    return [] if rule is None else [WeightRule(former, rule)]
