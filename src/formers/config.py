"""Configurations: frozen dataclasses with a closed schema, and two-way tables to other libraries' config files. A key
that the schema does not know and a value of the wrong type are errors that name them. Layers of settings (preset < file
< overrides) are merged as plain dicts first; the dataclass is built once, at the end."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import json
import re
import sys
import types
import typing
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from .errors import Error
from .option_aliases import explain_name

Settings = dict[str, Any]  # dynamic: settings by name, of any type until build_config has checked them
JSONValue = Any  # dynamic: one value of a file; a rule that meets another type than it expects is caught (read_config)
AnyConfig = Any  # dynamic: a family's own config, whose fields only its file knows
JSONObject = dict[str, Any]  # dynamic: what a file says, checked where it is read
ProgressCallback = Callable[[str, int, int, str], None]  # how progress is reported: what, done, of how many, detail
ConfigType = TypeVar("ConfigType")
MAX_SIZE = 2**24  # of any size in a configuration, and
MAX_LAYERS = 1000  # of the number of layers: a file that asks for more is not honest
MAX_JSON_DEPTH = 32  # levels of JSON
MAX_YAML_VALUES = 100_000  # values of a YAML file, aliases written out


def build_config(cls: type[ConfigType], values: Mapping[str, object], *, where: object = None) -> ConfigType:
    """Make a configuration of class `cls`; an unknown key or a value of the wrong type is an Error naming it."""
    known = get_schema(cls)
    check_setting_names(values, known, where)
    typed = {key: coerce_value(value, known[key], key, where) for key, value in values.items()}
    try:
        return cls(**typed)
    except Error as error:  # a class that checks its values does not know where they come from
        raise Error(error.what, where=where if error.where is None else error.where, fix=error.fix) from None


def check_setting_names(names: Iterable[str], known: Collection[str], where: object = None) -> None:
    """Refuse the first name that is not known; `where` is the table or the file that has it."""
    for name in names:
        if name not in known:
            raise Error(f"unknown setting {name!r}", where=where, fix=suggest_name(name, known))


def get_schema(cls: type) -> dict[str, object]:
    """Return the settings of a configuration and their types."""
    return _read_schema(cls)


@functools.cache
def _read_schema(cls: type) -> dict[str, object]:
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def suggest_name(key: str, known: Iterable[str]) -> str:
    """Suggest what to write instead of an unknown name: what formers calls it, the nearest one, or all of them."""
    names = list(known)
    if (ours := explain_name(key, names)) is not None:
        return ours
    near = difflib.get_close_matches(key[:100], names, n=1)
    return f"did you mean {near[0]!r}?" if near else "known: " + ", ".join(sorted(names))


def coerce_value(value: object, kind: Any, key: str, where: object = None) -> Any:  # dynamic: a type as a value
    """Check one value against its type; lists become tuples, whole numbers become floats where a float is due."""
    origin = typing.get_origin(kind)
    if origin in (types.UnionType, typing.Union):
        for option in typing.get_args(kind):
            try:
                return coerce_value(value, option, key, where)
            except Error:
                continue
        if all(choices := [get_choices(option) for option in typing.get_args(kind)]):
            words = ["null" if one is None else str(one) for group in choices for one in group]  # as YAML writes them
            raise_choice_error(value, words, key, where)
    elif origin is tuple:
        item = typing.get_args(kind)[0]
        if isinstance(value, list | tuple):
            return tuple(coerce_value(v, item, key, where) for v in value)
    elif origin is typing.Literal:
        if value in typing.get_args(kind):
            return value
        if value is False and "no" in typing.get_args(kind):  # YAML reads the word as a switch
            return "no"
        raise_choice_error(value, list(map(str, typing.get_args(kind))), key, where)
    elif kind is type(None):
        if value is None:
            return None
    elif kind is float:
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
            return float(value)
    elif dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        if isinstance(value, Mapping):
            return build_config(typing.cast(type, kind), value, where=f"{where}: {key}" if where else key)
    elif kind is int:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
            return value
    elif isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    name = kind.__name__ if isinstance(kind, type) and origin is None else None
    what = f"setting {key!r} must be {name or kind}, not {format_value(value)}"
    raise Error(what, where=where, fix="correct its value")


def get_choices(kind: Any) -> tuple[object, ...]:  # dynamic: a type as a value
    """Return the values of a Literal, and None of None's type; of other types nothing."""
    if typing.get_origin(kind) is typing.Literal:
        return typing.get_args(kind)
    return (None,) if kind is type(None) else ()


def raise_choice_error(value: object, choices: Sequence[str], key: str, where: object) -> NoReturn:
    """Refuse a value that is none of the choices."""
    fix = f"choose one of: {', '.join(choices)}"
    raise Error(f"setting {key!r} cannot be {format_value(value)}", where=where, fix=fix)


def format_value(value: object) -> str:
    """Format a value for an error message: short, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def count_noun(count: float, noun: str) -> str:
    """Format a number of things: "1 label", "2,048 labels", "2.5 epochs". In a longer phrase "(s)" follows the noun:
    "empty document(s) left out"."""
    number = f"{count:,}" if isinstance(count, int) else f"{count:g}"
    phrase = noun if "(s)" in noun else f"{noun}(s)"
    return f"{number} {phrase.replace('(s)', 's' * (count != 1))}"


def parse_json_object(text: str, where: object = None) -> JSONObject:
    """Parse a JSON object from untrusted text: no key twice, no half characters, not absurdly deep."""

    def reject_duplicates(pairs: list[tuple[str, JSONValue]]) -> JSONObject:
        table = dict(pairs)
        if len(table) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise ValueError(f"key {format_value(twice)} is there twice")
        return table

    try:
        value = json.loads(text, object_pairs_hook=reject_duplicates)
        if re.search(r"\\u[dD][89a-fA-F]", text):
            json.dumps(value, ensure_ascii=False).encode()
        level, depth = [value], 0
        while level and depth <= MAX_JSON_DEPTH:
            level = [x for v in level if isinstance(v, dict | list) for x in (v.values() if isinstance(v, dict) else v)]
            depth += 1
        if level:
            raise ValueError(f"more than {MAX_JSON_DEPTH} levels")
    except (ValueError, RecursionError) as error:
        what = f"not valid JSON ({' '.join(str(error).split())[:100]})"
        raise Error(what, where=where, fix="the file is damaged: fetch it again") from None
    if not isinstance(value, dict):
        what = f"a JSON object is expected, not {format_value(value)}"
        raise Error(what, where=where, fix="the file is damaged: fetch it again")
    return value


def parse_yaml(text: str) -> JSONValue:
    """Read YAML that nobody vouches for; a ValueError says in a few words what is wrong with it. Aliases are taken, but
    not to let a page of text grow to gigabytes, and no value may hold itself."""
    import yaml

    sizes: dict[int, int] = {}

    def count_nodes(node: yaml.Node, above: frozenset[int]) -> int:
        """Count the nodes below this one as often as they are named."""
        if id(node) in above:
            raise ValueError("a value holds itself")
        if id(node) not in sizes:
            inner = node.value if isinstance(node, yaml.CollectionNode) else ()
            below = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
            sizes[id(node)] = 1 + sum(count_nodes(part, above | {id(node)}) for part in below)
        if sizes[id(node)] > MAX_YAML_VALUES:
            raise ValueError(f"its aliases stand for more than {MAX_YAML_VALUES:,} values")
        return sizes[id(node)]

    loader = None
    try:
        loader = yaml.SafeLoader(text)
        if (node := loader.get_single_node()) is None:
            return None
        count_nodes(node, frozenset())
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, TypeError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    finally:
        if loader is not None:
            loader.dispose()


def check_sizes(config: object, *names: str, minimum: int = 1) -> None:
    """Refuse a configuration in which one of these sizes is not at least 1, or beyond all reason."""
    for name in names:
        most = MAX_LAYERS if name.endswith("layers") else MAX_SIZE
        value = getattr(config, name)  # dynamic: the caller names the settings
        if value is not None and not minimum <= value <= most:
            bound = f"at least {minimum}" if value < minimum else f"at most {most:,}"
            what = f"{name} must be {bound}, got {value}"
            raise Error(what, fix=f"set {name} to a number from {minimum} to {most:,}")


def check_rates(config: object, *names: str) -> None:
    """Refuse a configuration in which one of these rates is not a probability below 1."""
    for name in names:
        value = getattr(config, name)  # dynamic: the caller names the settings
        if value is not None and not 0 <= value < 1:
            raise Error(f"{name} must be at least 0 and below 1, got {value}", fix=f"set {name} to something like 0.1")


def compute_head_dim(config: AnyConfig, heads: str = "heads") -> int:
    """Compute the width of one attention head; an Error if the heads do not divide the width."""
    n, width = getattr(config, heads), config.dim  # dynamic: the caller names the setting
    if width % n:
        start = min(n, width)
        near = (h for step in range(width) for h in (start - step, start + step))
        choice = next(h for h in near if 0 < h <= width and width % h == 0)
        fix = f"take {choice} {heads}, or dim {max(1, width // n) * n}"
        raise Error(f"{n} {heads} do not divide dim {width}", fix=fix)
    return width // n


def merge_settings(*layers: Mapping[str, object]) -> Settings:
    """Merge layers of settings; later ones win, and dotted keys reach into nested dicts (`{"model.layers": 4}`)."""
    merged: Settings = {}
    for layer in layers:
        for key, value in layer.items():
            *path, last = key.split(".")
            here = merged
            for part in path:
                here = here.setdefault(part, {})
                if not isinstance(here, dict):
                    what = f"setting {key!r} reaches into {part!r}, which is a single value"
                    raise Error(what, fix="drop the part after the dot")
            if isinstance(value, Mapping):
                value = merge_settings(here[last] if isinstance(here.get(last), Mapping) else {}, value)
            here[last] = value
    return merged


def default_to_encoder(settings: Settings, **sizes: str) -> Settings:
    """Replace each of the decoder's `sizes` that equals the encoder's by None, in settings read from a file. A model
    that formers builds says None for "as the encoder"; files of other libraries spell the number out."""
    same = [ours for ours, source in sizes.items() if source in settings and settings.get(ours) == settings[source]]
    return settings | dict.fromkeys(same)


@dataclass(frozen=True)
class KeyRule:
    """One key of another library's config: how to read it into our settings, and how to write it back."""

    read: Callable[[JSONValue], Settings]
    write: Callable[[AnyConfig], JSONValue]


def rename_key(ours: str, values: Mapping[str, object] | None = None) -> KeyRule:
    """Map a key to another name; `values` translates (their value → ours) where the words differ as well."""

    def read(value: JSONValue) -> Settings:
        if values is None or not isinstance(value, str):
            return {ours: value}
        if value not in values:
            raise Error(f"value {value!r} is not supported", fix="supported: " + ", ".join(map(str, values)))
        return {ours: values[value]}

    def write(config: AnyConfig) -> JSONValue:
        value = getattr(config, ours)  # dynamic: the table names the setting
        return value if values is None else next((k for k, v in values.items() if v == value), value)

    return KeyRule(read, write)


@dataclass(frozen=True)
class ConfigMap:
    """A two-way table between our settings and another library's config file.

    Every key of theirs must be in `rules` (mapped), in `fixed_values` (formers can honour these values only), or in
    `irrelevant_keys` (they do not change the numbers); any other key is an error that names it. `aliases` are other
    names of a mapped key, `defaults` is what their class takes for an absent key where that differs from ours,
    `legacy_rules` read keys that they no longer write, where today's do not say otherwise."""

    rules: Mapping[str, str | KeyRule]
    fixed_values: Mapping[str, tuple[object, ...]] = dataclasses.field(default_factory=dict)
    irrelevant_keys: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, object] = dataclasses.field(default_factory=dict)
    legacy_rules: Mapping[str, Callable[[JSONValue], Settings]] = dataclasses.field(default_factory=dict)

    def translate_error(self, error: Error, theirs: Mapping[str, object]) -> Error:
        """Translate an error about one of our settings into the words of their file."""
        match = re.match(r"setting '(\w+)'|(\w+) must", error.what)
        name = match and (match[1] or match[2])
        for key in theirs:
            known = self.aliases.get(key, key)
            try:
                same = known in {**self.rules, **self.legacy_rules} and name in self.get_rule(known).read(theirs[key])
            except (Error, AttributeError, TypeError, ValueError, ArithmeticError):
                same = False
            if same:
                return Error(f"{key}: {error.what}", where=error.where, fix=f"correct {key}")
        return error

    def get_rule(self, key: str) -> KeyRule:
        """Return the rule of a mapped key."""
        row = KeyRule(self.legacy_rules[key], lambda config: None) if key in self.legacy_rules else self.rules[key]
        return rename_key(row) if isinstance(row, str) else row

    def read_config(
        self, theirs: Mapping[str, object], *, where: object, ignore: Iterable[str] = (),
        irrelevant_everywhere: Iterable[str] = (),
    ) -> Settings:  # fmt: skip
        """Translate their config into our settings; keys of `irrelevant_everywhere` and `ignore` are passed over."""
        passed = self.irrelevant_keys | set(irrelevant_everywhere) | set(ignore)
        ours: Settings = {}
        named = {key: value for key, value in theirs.items() if key not in self.aliases}
        for alias, key in self.aliases.items():
            if alias in theirs and named.setdefault(key, theirs[alias]) != theirs[alias]:
                raise Error(f"{alias} and {key} contradict each other", where=where, fix="remove one of them")
        values = {**self.defaults, **named}
        for key, value in sorted(values.items(), key=lambda item: item[0] not in self.legacy_rules):  # today's keys win
            if key in self.rules or key in self.legacy_rules:
                try:
                    ours.update(self.get_rule(key).read(value))
                except Error as error:
                    raise Error(f"{key}: {error.what}", where=where, fix=error.fix) from None
                except (AttributeError, TypeError, ValueError, ArithmeticError):  # a rule met a value of another type
                    what = f"{key}: {format_value(value)} makes no sense here"
                    raise Error(what, where=where, fix="correct it") from None
            elif key in self.fixed_values and key not in ignore:
                if not any(value == ok and type(value) is type(ok) for ok in self.fixed_values[key]):
                    only = " or ".join(map(repr, self.fixed_values[key]))
                    what = f"{key}: formers cannot honour {format_value(value)}, only {only}"
                    raise Error(what, where=where, fix=f"pass --ignore {key} to load it all the same")
            elif key not in passed:
                raise Error(f"unknown key {key!r}", where=where, fix=f"pass --ignore {key} if it changes nothing")
        return ours

    def write_config(self, config: object, original: Mapping[str, object]) -> Settings:
        """Translate our config into theirs: the original's values where they still say the same, ours elsewhere."""
        theirs = {self.aliases.get(key, key): value for key, value in original.items()}
        for key in (*self.rules, *self.legacy_rules):
            if key in theirs and self.is_unchanged(key, theirs[key], config):
                continue
            theirs.pop(key, None)
            if key in self.rules:
                theirs[key] = self.get_rule(key).write(config)
        return theirs

    def is_unchanged(self, key: str, value: object, config: object) -> bool:
        """Return whether their value of a key says what our config says."""
        try:
            read = self.get_rule(key).read(value)
            return all(getattr(config, name) == ours for name, ours in read.items())  # dynamic: the table names them
        except (Error, AttributeError, TypeError, ValueError, ArithmeticError):
            return False


def parse_byte_size(text: str) -> int:
    """Parse a size as people write it: 500MB, 5GB, 1.5 GiB, or a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise Error(f"{text!r} is not a size", fix="write for example 500MB or 5GB")
    return max(1, int(float(match[1]) * (1024 if match[3] else 1000) ** " kmgt".index(match[2].lower() or " ")))


# Hugging Face's names of activations; the first of several is the one we write.
HF_ACTIVATIONS = {
    "relu": "relu", "relu2": "relu2", "gelu": "gelu", "gelu_python": "gelu", "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh", "quick_gelu": "gelu_quick", "silu": "silu", "swish": "silu", "mish": "mish",
    "tanh": "tanh", "sigmoid": "sigmoid", "leaky_relu": "leaky_relu", "linear": "linear",
}  # fmt: skip
HF_ACT_ROW = rename_key("act", HF_ACTIVATIONS)
HF_SUMMARY_ROW = rename_key("summary_act", {**HF_ACTIVATIONS, "": None})
HF_TOKEN_ROWS = {"pad_token_id": "pad", "bos_token_id": "bos", "eos_token_id": "eos"}
