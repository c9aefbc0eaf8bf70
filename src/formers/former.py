"""Former: a model with what belongs to it (config, head, labels, tokenizer), for padded tensors in and out."""

from __future__ import annotations

import copy
import hashlib
import re
import types
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from . import config as settings
from . import inputs as model_inputs
from . import registry
from .batch import Batch
from .config import AnyConfig, JSONObject, count_noun
from .errors import Error
from .family import Family, ModelConfig, replace_settings
from .inputs import PERMUTATION_INPUTS, ModelInputs, ModelState, TensorLike
from .model import Model, build_model, get_init_rules, search_spans
from .nn.attention.context import Capture
from .nn.attention.kv_cache import KVCache, select_state_settings
from .nn.cpu_inference import check_cpu_bf16, check_kind, freeze_for_inference
from .nn.head_pruning import find_attentions, format_head_names, parse_head_name, prune_heads
from .nn.layers import initialise_weights
from .option_aliases import VERB_SYNONYMS
from .task import list_tasks
from .text.tokenizer import Tokenizer
from .verbs import METHODS, VERBS, list_verbs, resolve_verb

ForwardArgs = dict[str, Any]  # dynamic: arguments of a body's forward pass, which families have of their own
Logits = Any  # dynamic: a tensor, or a dict of them for a head of several parts
Heads = Collection[int]  # numbers of attention heads
MOVE_HINT = "give a device that is here (formers doctor lists them), and a floating-point type"


@dataclass(repr=False)
class Former:
    """A loaded model: `family`, `head`, `config`, `model`, `tokenizer` (or None) and `labels`."""

    family: str
    head: str
    config: AnyConfig
    model: Model
    tokenizer: Tokenizer | None = None
    labels: tuple[str, ...] = ()
    task: JSONObject = field(default_factory=dict)  # what it was fine-tuned to do (task.py)
    tasks: dict[str, JSONObject] = field(default_factory=dict)  # of a mixture: each task by its name
    adapters: dict[str, Tensor] = field(default_factory=dict)  # to be saved beside the weights (nn/lora.py)
    training_info: JSONObject = field(default_factory=dict)  # what its run knows of it, for a model card
    source_files: dict[str, bytes] = field(default_factory=dict)  # a checkpoint's other files: they survive export

    def __getattr__(self, name: str) -> Any:  # dynamic: a verb, imported when it is used
        """Look up a verb or method (verbs.py): f.generate(...) is formers.generate(f, ...)."""
        name = VERB_SYNONYMS.get(name, name)
        if name not in VERBS and name not in METHODS:
            raise AttributeError(f"a Former has no {name!r}; its verbs are {', '.join(VERBS)}")
        return types.MethodType(resolve_verb(name), self)

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field; a tokenizer also gets the model's context, at which it truncates texts."""
        super().__setattr__(name, value)
        if name == "tokenizer" and isinstance(value, Tokenizer) and value.context is None:
            value.context = self.context

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *VERBS, *METHODS])

    def __repr__(self) -> str:
        """Describe the model in three lines: family and size, tokenizer, verbs."""
        where = f"{str(self.dtype)[6:]} on {self.device}"
        labels = f", {count_noun(len(self.labels), 'label')}" if self.labels else ""
        task = f", trained to {self.task['name']}" if self.task else ""
        if self.tasks and not self.task:
            task = f", trained on {', '.join(self.tasks)}"
        return "\n".join((
            f"Former({self.family}, head {self.head}{labels}{task}: {self.num_parameters:,} parameters, {where})",
            f"  reads with: {self.tokenizer or 'no tokenizer'}",
            f"  can: {', '.join(list_verbs(self))}",
        ))  # fmt: skip

    def select_task(self, name: str | None) -> Former:
        """Return the model with one task of its mixture as its own, sharing the weights; None returns itself."""
        if name is None:
            return self
        if name not in self.tasks:
            fix = settings.suggest_name(name, self.tasks) if self.tasks else "leave the task out"
            what = (
                f"this {self.family} has no task {name!r}" if self.tasks else "this model was not trained on a mixture"
            )
            raise Error(what, fix=fix)
        selected = copy.copy(self)
        selected.task = dict(self.tasks[name])
        return selected

    @property
    def definition(self) -> Family:
        """What the family's file declares."""
        return registry.find_family(self.family).definition

    @property
    def context(self) -> int | None:
        """The number of tokens that the model can read at once; None for a family without such a limit."""
        return self.config.context

    @property
    def output_vocab(self) -> int:
        """The number of tokens that the model chooses from when it writes."""
        return self.config.output_vocab

    @property
    def output_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of what the model writes, which is another than the input's in some Marian models."""
        return self.tokenizer and (self.tokenizer.target or self.tokenizer)

    @property
    def num_parameters(self) -> int:
        """The number of parameters, each counted once, however often it is used."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.model.parameters()).dtype

    @property
    def fingerprint(self) -> str:
        """A hash of the weights, the config, the labels and the tokenizer."""
        words = None if self.tokenizer is None else self.tokenizer.fingerprint
        digest = hashlib.sha256(repr((self.family, self.head, self.config, self.labels, words)).encode())
        for name, weight in self.model.state_dict().items():
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()

    @property
    def is_encoder_decoder(self) -> bool:
        """True if the model has an encoder and a decoder."""
        body = self.model.body
        return self.definition.is_encoder_decoder and body.encoder is not None and body.decoder is not None

    @property
    def is_two_stream(self) -> bool:
        """True for XLNet, whose second stream predicts tokens that it does not see."""
        return self.definition.is_two_stream

    @property
    def can_read_segments(self) -> bool:
        """True if the model tells the two texts of a pair apart by segments."""
        return self.config.segments > 1 or self.is_two_stream

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Former:
        """Move the weights, or change their type; returns itself."""
        try:
            check_cpu_bf16(dtype or self.dtype, torch.device(self.device if device is None else device))
            self.model.to(device=device, dtype=dtype)
        except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
            reason = " ".join(str(error).split())[:150]
            raise Error(f"the model cannot go to {device or ''} {dtype or ''} ({reason})", fix=MOVE_HINT) from None
        return self

    def freeze(self, kind: str = "fp32") -> Former:
        """Prepack the weights as fp32, bf16 or int8 for faster CPU inference; returns itself. The model can no longer
        be trained, saved or moved."""
        check_kind(self.model, kind)
        self.to(dtype=torch.bfloat16 if kind == "bf16" else torch.float32)
        freeze_for_inference(self.model, kind, self.model.body.embedding_table)
        return self

    def logits(
        self, ids: Tensor, keep: Tensor | None = None, segments: Tensor | None = None, target: Tensor | None = None,
        **inputs: TensorLike,
    ) -> Logits:  # fmt: skip
        """Compute what the head answers to ids (B, T), or (B, choices, T): a tensor, or a dict for heads of two parts.

        `keep` is the attention mask as bool, True at real tokens; the result is 0 elsewhere. `target` is the decoder's
        input of an encoder-decoder. `inputs` are the other fields of `ModelInputs`: target_keep, memory, heads, tasks
        (ERNIE 2.0), and XLNet's order, or perm_mask and target_mapping, whose result is (B, M, …). ELMo reads
        characters (B, T, 50), and its lm logits (B, T, 2, vocab) are those of the next word and of the one before."""
        model_tensors = model_inputs.collect_inputs("logits", (ids, keep, segments, target), inputs, without=())
        parts = {name: part for name, part in self.model.parts.items() if part.out is not None}
        if not parts:
            head = self.definition.pretraining_head
            what = f"a bare {self.family} has no logits"
            raise Error(what, fix=f"load it with a head, for example head={head!r}, or use hidden()")
        batch, rows = self.pack_inputs(model_tensors)
        how = self.build_forward_args(model_tensors.memory, model_tensors.heads)
        if model_tensors.permutation:
            tensors = {name: self.to_device_tensor(value) for name, value in model_tensors.permutation.items()}
            batch, more = model_inputs.apply_permutation(self.definition, batch, tuple(ids.shape), tensors)
            how |= more
            if "targets" in more and (
                self.head == "beam" or any(part.spec.pool or part.encoder for part in parts.values())
            ):
                raise Error(f"head {self.head!r} reads whole texts", fix="leave target_mapping out")
        hidden = self.model(batch, **how)
        if self.head == "beam":
            return {k: v.unflatten(0, rows) for k, v in search_spans(self.model, hidden, batch, self.config).items()}
        answers, targets = {}, how.get("targets")
        for name, part in parts.items():
            if targets is not None:
                logits = self.model.logits(hidden.index_select(0, targets.clamp(min=0)), part=name)
                answer = logits.masked_fill(targets[:, None] < 0, 0.0).unflatten(0, (*rows, -1))
            else:
                answer = self.model.logits(hidden, batch, name)
                answer = (batch.unpack(answer) if part.spec.pool is None else answer).unflatten(0, rows)
            answers[name] = answer.squeeze(-1) if part.spec.out == 1 else answer
        return next(iter(answers.values())) if len(answers) == 1 else answers

    def hidden(
        self, ids: Tensor, keep: Tensor | None = None, segments: Tensor | None = None, target: Tensor | None = None,
        *, layer: int | None = -1, **inputs: TensorLike,
    ) -> Tensor:  # fmt: skip
        """Compute hidden states (B, T, dim) of a layer: 0 the embeddings, i after block i, -1 the last (with the final
        norm), None all of them (layers + 1, B, T, dim).

        Of an encoder-decoder they are the decoder's if there is a target, else the encoder's. The inputs are those of
        `logits`, but for XLNet's permutations."""
        if layer is not None and type(layer) is not int:
            raise Error(f"layer must be a number or None, got {layer!r}", fix="-1 is the last layer")
        tensors = model_inputs.collect_inputs(
            "hidden", (ids, keep, segments, target), inputs, without=PERMUTATION_INPUTS
        )
        alone = self.is_encoder_decoder and target is None
        batch, rows = self.pack_inputs(tensors, encoder_only=alone)
        capture = Capture(with_hidden=layer != -1)
        run = self.model.body.encode if alone else self.model.body
        last = run(batch, capture=capture, **self.build_forward_args(None if alone else tensors.memory, tensors.heads))
        layers = list(capture.hidden_states.values())
        inner = layers[-1] if layers else []  # word vectors have the last only
        states = [batch.unpack(x).unflatten(0, rows) for x in (*inner, last)]
        if layer is None:
            if len({x.shape for x in states}) > 1:
                widths = ", ".join(str(x.shape[-1]) for x in states)
                what = f"the layers of this model have different widths ({widths}) and do not stack"
                raise Error(what, fix=f"choose one layer, 0 to {len(states) - 1}")
            return torch.stack(states)
        if type(layer) is not int or not -len(states) <= layer < len(states):
            raise Error(f"there is no layer {layer}", fix=f"choose 0 to {len(states) - 1}, or None for all")
        return states[layer]

    def prune(self, heads: Mapping[int, Heads] | Mapping[str, Mapping[int, Heads]]) -> Former:
        """Remove attention heads: {layer: [heads]}, for encoder-decoders {stack: {layer: [heads]}} with encoder,
        decoder and cross. The weights shrink, and the output is that of masked heads; returns itself."""
        known = find_attentions(self.model.body)
        names = format_head_names(heads, dict.fromkeys(kind for kind, _ in known))
        prune_heads(self.model.body, names)
        self.config = replace_settings(self.config, pruned=tuple(sorted({*self.config.pruned, *names})))
        for name in names:
            kind, layer, _ = parse_head_name(name)
            sharing = [n for (k, n), (path, _) in known.items() if k == kind and path == known[kind, layer][0]]
            if len(sharing) > 1:
                warnings.warn(f"layers {sharing} share one block: the heads are gone from all of them", stacklevel=2)
                break
        return self

    def pack_inputs(self, inputs: ModelInputs, encoder_only: bool = False) -> tuple[Batch, tuple[int, ...]]:
        """Check and pack padded tensors (`encoder_only`: the source alone); returns the batch and the rows' shape."""
        ids, memory = self.to_device_tensor(inputs.ids, "ids", integer=True), inputs.memory
        masks = inputs.keep, inputs.target_keep
        keep, target_keep = (None if mask is None else self.to_device_tensor(mask, "keep") for mask in masks)
        target = None if inputs.target is None else self.to_device_tensor(inputs.target, "target", integer=True)
        beside = {}
        for name, value, is_read in (
            ("segments", inputs.segments, self.definition.reads_segments),
            ("tasks", inputs.tasks, self.definition.reads_tasks and self.config.use_tasks),
        ):
            if value is not None and not is_read:
                raise Error(f"{self.family} does not read {name}", fix=f"leave {name} out")
            if value is not None:
                beside[name] = self.to_device_tensor(value, name, integer=True)
        if target_keep is not None and target is None:
            raise Error("target_keep is given without target", fix="give both, or leave target_keep out")
        source = model_inputs.pack_padded(self.definition, self.config, ids, keep, beside)
        past = None if self.is_encoder_decoder else memory
        model_inputs.check_length(self.measure_row_length(past, source.longest), self.context)
        if self.is_encoder_decoder and isinstance(memory, KVCache):
            source_inputs = source.ids, source.starts
            if memory.source_inputs is not None and not all(map(torch.equal, memory.source_inputs, source_inputs)):
                raise Error("this cache has seen another source", fix="make a cache for each source")
            memory.source_inputs = source_inputs
        rows = model_inputs.get_row_shape(self.definition, ids)
        if not self.is_encoder_decoder or encoder_only:
            if target is not None:
                raise Error(f"{self.family} with head {self.head!r} has no decoder", fix="leave target out")
            return source, rows
        if target is not None:
            batch = model_inputs.pack_target(self.definition, self.config, target, target_keep, source, rows)
            model_inputs.check_length(self.measure_row_length(memory, batch.longest), self.context)
            return batch, rows
        if self.head in ("lm", "none"):
            what = f"{self.family} needs target, the decoder's input"
            raise Error(what, fix="pass target=..., or use hidden() for the encoder alone")
        return model_inputs.shift_source(self.definition, self.config, source), rows

    def measure_row_length(self, memory: ModelState | None, longest: int) -> int:
        """Return the largest number of tokens in a row, with those in the cache."""
        if not isinstance(memory, KVCache) or memory.lengths is None:
            return longest
        most = memory.used_slots + longest
        if self.context is not None and most > self.context:  # `used_slots` is a bound: rows advance differently
            most = int(memory.lengths.max()) + longest
        return most

    def to_device_tensor(self, values: TensorLike, name: str = "value", integer: bool = False) -> Tensor:
        """Convert values to a tensor on the model's device; text gets an Error that says how to encode it."""
        if self.device.type == "meta":
            raise Error("this model has no weights", fix="build or load it outside of torch.device('meta')")
        first = values[0] if isinstance(values, list | tuple) and values else values
        if isinstance(first, str | Mapping):
            raise Error(f"{name} must be numbers, not text or a batch of it", fix=self.explain_ids())
        return model_inputs.to_tensor(values, name, self.device, integer)

    def explain_ids(self) -> str:
        """Return a line of code that turns text into the inputs of `logits` and `hidden`."""
        if self.definition.reads_characters:
            make = "ids, keep = formers.text.word_level.encode_sentences([text.split()])"
            return f"{make} makes them: f.logits(ids, keep)"
        if self.tokenizer is None:
            return "a tokenizer makes them, and this model has none: load it with its own, or set f.tokenizer"
        make = 'batch = f.tokenizer(texts, padding=True, return_tensors="pt")'
        return f"{make} makes them: f.logits(batch.input_ids, batch.attention_mask.bool())"

    @property
    def state_class(self) -> type[ModelState]:
        """The class of the state that holds earlier tokens: a KV cache, a segment memory or an LSTM's state."""
        return self.model.state_class

    def create_state(self, rows: int, size: int) -> ModelState:
        """Create an empty state for `rows` sequences: a cache of `size` tokens, or a memory of the last `size`."""
        return self.state_class(rows, size)

    def build_forward_args(self, memory: ModelState | None, heads: TensorLike) -> ForwardArgs:
        """Build the arguments of a forward pass that are not part of the batch."""
        how: ForwardArgs = {}
        if memory is not None:
            if not isinstance(memory, self.state_class):
                kind, other = self.state_class.__name__, type(memory).__name__
                what = f"{self.family} keeps earlier tokens in a {kind}, not in a {other}"
                raise Error(what, fix="make one with create_state(rows, size)")
            if isinstance(memory, KVCache) and self.definition.can_be_causal and not self.config.causal:
                raise Error(f"{self.family} reads both ways, and a cache only what came before", fix="leave memory out")
            memory.bind_model(select_state_settings(self.family, self.config.to_settings()))
            how[memory.forward_argument] = memory
        if heads is not None:
            how["head_mask"] = model_inputs.make_head_masks(
                self.config, heads, self.definition.is_encoder_decoder, self.device
            )
        return how


def build(
    family: str, head: str = "auto", preset: str | None = None, seed: int = 0,
    labels: Sequence[str] | int | None = None, **overrides: object,
) -> Former:  # fmt: skip
    """Build a model with random weights: a preset's settings with some of them changed.

    `head` auto is the family's pretraining head; `labels` are names, or a number of them. Under torch.device("meta")
    the model takes no memory."""
    if not isinstance(seed, int) or not 0 <= seed < 2**40:
        raise Error(f"seed must be a whole number from 0 to 2^40, got {seed!r}", fix="take 0")
    entry, values = registry.find_preset(family, preset)
    config = settings.build_config(entry.definition.config_class, {**values, **overrides}, where=entry.name)
    head = entry.definition.pretraining_head if head == "auto" else head
    former = build_empty(entry.name, config, head, parse_labels(labels))
    device = torch.get_default_device()
    if device.type != "meta":
        former.model.to_empty(device=device)
        initialise_weights(former.model, get_init_rules(entry.definition, former.config), seed)
    return former


class SkipWeightInit(TorchFunctionMode):
    """A mode that skips torch's initialisation: on the meta device it only imports the compiler (> 1 s)."""

    def __torch_function__(
        self, function: Callable[..., object], types: object, args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:  # fmt: skip
        kwargs = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":  # dynamic: functions in C may have none
            return args[0] if args else kwargs["tensor"]
        return function(*args, **kwargs)


def build_empty(family: str, config: ModelConfig, head: str, labels: tuple[str, ...] = ()) -> Former:
    """Build a model on the meta device: shapes only."""
    with torch.device("meta"), SkipWeightInit():
        model, config = build_model(registry.find_family(family).definition, config, head, len(labels) or None)
    has_label_head = any(part.spec.out == "labels" for part in model.parts.values())
    return Former(family, head, config, model.eval(), labels=(labels or parse_labels(2)) if has_label_head else ())


def choose_device(device: torch.device | str | None = None, local_rank: int = 0) -> torch.device:
    """Return the given device, by default a GPU if there is one; "cuda" alone is GPU number `local_rank`."""
    try:
        place = torch.device("cuda" if device is None and torch.cuda.is_available() else device or "cpu")
    except (RuntimeError, TypeError):
        raise Error(f"there is no device {device!r}", fix="give cuda, cuda:1 or cpu") from None
    if place.type != "cuda":
        return place
    place = torch.device("cuda", local_rank if place.index is None else place.index)
    if not torch.cuda.is_available() or place.index >= torch.cuda.device_count():
        raise Error(f"there is no GPU {place} here", fix="formers doctor says what there is; --device cpu does without")
    return place


def parse_labels(labels: Sequence[str] | int | None) -> tuple[str, ...]:
    """Return labels, given as names or as a number of them, as names."""
    if labels is None:
        return ()
    if type(labels) is int and 1 <= labels <= MAX_LABELS:
        return tuple(f"LABEL_{i}" for i in range(labels))
    names = tuple(labels) if isinstance(labels, list | tuple) else ()
    are_names = all(isinstance(n, str) for n in names) and len(set(names)) == len(names)
    if not are_names or not 0 < len(names) <= MAX_LABELS:
        got = settings.format_value(labels)
        what = f"labels must be different names, or a number of them up to {MAX_LABELS:,}; got {got}"
        raise Error(what, fix="for example labels=['no', 'yes'], or labels=2")
    return names


def count_trainable(model: nn.Module) -> int:
    """Count the parameters that are trained."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


MAX_LABELS = 100_000
TREE_FIELDS = ("title", "year", "paper", "parent", "new", "shapes", "differs")


# The part of a model that a parameter belongs to, by its name; the first pattern that is found decides.
PARAMETER_PARTS = (
    (r"^heads\.", "output"),
    (r"norm\.", "norms"),
    (r"\.(embed|target)\.(position|segment|task)\.", "positions"),
    (r"\.embed\.(character|filters|highways|project)\.", "character CNN"),
    (r"\.(embed|target|word|fixed)\b|\.blank$", "embeddings"),
    (r"\.cross\.", "cross attention"),
    (r"\.align\.", "alignment"),
    (r"\.context\.", "context vector"),
    (r"\.bridge\.", "initial state"),
    (r"\.readout\.", "readout"),
    (r"\.attn\.|\.bias\.", "attention"),
    (r"\.router\.", "router"),
    (r"\.ff\.(up|down)$", "experts"),
    (r"\.ff\.", "feed-forward"),
    (r"\.convolutions\.", "convolutions"),
    (r"\.(layers|bottom)\.", "recurrent layers"),
)


def count_by_part(model: nn.Module) -> dict[str, int]:
    """Count the parameters of a model by part: embeddings, attention, feed-forward, norms, output and the like."""
    counts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        part = next((part for pattern, part in PARAMETER_PARTS if re.search(pattern, name)), "other")
        counts[part] = counts.get(part, 0) + (parameter.numel() if parameter.requires_grad else 0)
    return {part: count for part, count in counts.items() if count}


@cache
def count_preset_parameters(family: str, preset: str) -> dict[str, int]:
    """Count the parameters of a preset by part, with the head that published counts include: from its shapes alone."""
    facts = registry.find_family(family).definition
    config = settings.build_config(facts.config_class, facts.presets[preset])
    return count_by_part(build_empty(family, config, facts.counted_head).model)


def tree(family: str | None = None) -> list[JSONObject]:
    """List the members of the family, or one of them: name, what its file's docstring says, presets with exact sizes,
    pretraining objective and tokenizer, heads, and the tasks that it can be fine-tuned for.

    A size names the head it includes, as published counts do, and its parts: {"parameters": 109482240, "head": "none",
    "parts": {"embeddings": 23440896, …}}."""
    rows = []
    for one in registry.FAMILIES.values() if family is None else [registry.find_family(family)]:
        facts, card = one.definition, one.card
        sizes = {}
        for name in facts.presets:
            parts = count_preset_parameters(one.name, name)
            sizes[name] = {"parameters": sum(parts.values()), "head": facts.counted_head, "parts": parts}
        about = {key: vars(card)[key] for key in TREE_FIELDS}  # dynamic: TREE_FIELDS names them
        plain = facts.config_class()
        rows.append({
            "name": one.name, **about, "presets": sizes, "objective": facts.objective, "tokenizer": facts.tokenizer,
            "heads": list(facts.build_heads(plain)), "tasks": list_tasks(facts, plain),
        })  # fmt: skip
    return rows
