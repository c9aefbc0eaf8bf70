"""Closed schemas, merging, and the two-way table to other libraries' configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

import formers
from formers import Error
from formers.config import (
    ConfigMap,
    KeyRule,
    build_config,
    check_rates,
    check_sizes,
    compute_head_dim,
    count_noun,
    merge_settings,
    parse_byte_size,
    rename_key,
)


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Config:
    layers: int = 2
    heads: int = 4
    dim: int = 8
    rate: float = 0.1
    name: str = "x"
    flag: bool = False
    limit: int | None = None
    ids: tuple[int, ...] = ()
    end: int | tuple[int, ...] | None = None
    kind: Literal["a", "b"] = "a"
    mode: Literal["x", "y"] | None = None
    inner: Inner = Inner()


def test_build():
    made = build_config(
        Config, {"layers": 3, "rate": 1, "ids": [1, 2], "limit": 5, "end": [4], "kind": "b", "inner": {"size": 7}}
    )
    assert made == Config(layers=3, rate=1.0, ids=(1, 2), limit=5, end=(4,), kind="b", inner=Inner(size=7))
    assert isinstance(made.rate, float)
    assert build_config(Config, {"limit": None, "end": 3, "inner": Inner(size=2)}).inner.size == 2


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layrs": 3}, "unknown setting 'layrs'. Did you mean 'layers'?"),
        ({"zzz": 3}, "unknown setting 'zzz'. Known: dim, end"),
        ({"layers": "3"}, "setting 'layers' must be int, not '3'"),
        ({"layers": True}, "setting 'layers' must be int, not True"),
        ({"layers": 2.0}, "setting 'layers' must be int, not 2.0"),
        ({"layers": None}, "setting 'layers' must be int, not None"),
        ({"rate": "fast"}, "setting 'rate' must be float, not 'fast'"),
        ({"rate": float("nan")}, "setting 'rate' must be float, not nan"),
        ({"rate": False}, "setting 'rate' must be float, not False"),
        ({"flag": 1}, "setting 'flag' must be bool, not 1"),
        ({"name": 5}, "setting 'name' must be str, not 5"),
        ({"limit": "x"}, "setting 'limit' must be int | None, not 'x'"),
        ({"ids": 3}, "setting 'ids' must be tuple"),
        ({"ids": [1, "2"]}, "setting 'ids' must be int, not '2'"),
        ({"kind": "c"}, "setting 'kind' cannot be 'c'. Choose one of: a, b"),
        ({"mode": "c"}, "setting 'mode' cannot be 'c'. Choose one of: x, y, null"),
        ({"inner": {"siz": 1}}, "inner: unknown setting 'siz'. Did you mean 'size'?"),
        ({"name": ["very long"] * 50}, "..."),
    ],
)
def test_build_refuses(values, message):
    with pytest.raises(Error) as caught:
        build_config(Config, values)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(Error, match="file.json: "):
        build_config(Config, values, where="file.json")


def test_a_word_that_yaml_takes_for_a_switch():
    """`deduplicate: no` in a file, --data.deduplicate no on the command line."""
    from formers.training.config_merge import configure_pretraining

    for value in ("no", False):
        assert configure_pretraining("gpt2", {"data": {"deduplicate": value}}).data.deduplicate == "no"
        assert configure_pretraining("gpt2", None, {"data.deduplicate": value}).data.deduplicate == "no"
    with pytest.raises(Error, match="cannot be True"):
        configure_pretraining("gpt2", None, {"data.deduplicate": "yes"})


def test_error_is_one_line():
    error = Error("it\n broke", where="here", fix="mend it")
    assert str(error) == "here: it broke. Mend it"
    assert (error.what, error.where, error.fix) == ("it broke", "here", "mend it")
    assert str(Error("alone")) == "alone"


def test_checks():
    check_sizes(Config(), "layers", "limit")
    with pytest.raises(Error, match="layers must be at least 1, got 0"):
        check_sizes(Config(layers=0), "dim", "layers")
    check_rates(Config(), "rate", "limit")
    for rate in (-0.1, 1.0):
        with pytest.raises(Error, match="rate must be at least 0 and below 1"):
            check_rates(Config(rate=rate), "rate")
    assert compute_head_dim(Config()) == 2
    with pytest.raises(Error, match="3 heads do not divide dim 8. Take 2 heads, or dim 6"):
        compute_head_dim(Config(heads=3))


def test_merge():
    file = {"model": {"layers": 4, "dim": 8}, "train": {"lr": 0.1}}
    merged = merge_settings(file, {"model.layers": 6, "seed": 1}, {"train": {"steps": 5}})
    assert merged == {"model": {"layers": 6, "dim": 8}, "train": {"lr": 0.1, "steps": 5}, "seed": 1}
    assert file["model"]["layers"] == 4
    assert merge_settings({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}
    with pytest.raises(Error, match="setting 'a.b' reaches into 'a'"):
        merge_settings({"a": 1}, {"a.b": 2})


MAP = ConfigMap(
    {
        "n_layer": "layers",
        "act": rename_key("name", {"gelu_new": "x", "gelu_fast": "x", "relu": "y"}),
        "two": KeyRule(lambda v: {"heads": int(v[: v.index("-")]), "dim": int(v[2:])}, lambda c: f"{c.heads}-{c.dim}"),
    },
    fixed_values={"cross": (False,)},
    irrelevant_keys=frozenset({"note"}),
    aliases={"num_layers": "n_layer"},
    defaults={"n_layer": 12},
)  # fmt: skip


def test_config_map_reads():
    read = MAP.read_config(
        {"act": "gelu_fast", "two": "2-6", "cross": False, "note": 1, "version": 3},
        where="f",
        irrelevant_everywhere=["version"],
    )
    assert read == {"layers": 12, "name": "x", "heads": 2, "dim": 6}
    assert MAP.read_config({"num_layers": 5}, where="f") == {"layers": 5}
    assert MAP.read_config({"odd": 1, "cross": True}, where="f", ignore=["odd", "cross"]) == {"layers": 12}
    for theirs, message in (
        ({"odd": 1}, "f: unknown key 'odd'. Pass --ignore odd"),
        ({"cross": True}, "f: cross: formers cannot honour True, only False"),
        ({"cross": 0}, "f: cross: formers cannot honour 0, only False"),
        ({"act": "gelu"}, "f: act: value 'gelu' is not supported. Supported: gelu_new, gelu_fast, relu"),
        ({"two": 5}, "f: two: 5 makes no sense here"),
        ({"n_layer": 1, "num_layers": 2}, "f: num_layers and n_layer contradict each other"),
    ):
        with pytest.raises(Error) as caught:
            MAP.read_config(theirs, where="f")
        assert message in str(caught.value)


def test_config_map_writes_the_originals_words_where_they_still_hold():
    original = {"num_layers": 2, "act": "gelu_fast", "two": "4-8", "note": "kept"}
    same = MAP.write_config(Config(), original)
    assert same == {"n_layer": 2, "act": "gelu_fast", "two": "4-8", "note": "kept"}
    changed = MAP.write_config(Config(layers=9, name="y", heads=1), original)
    assert changed == {"n_layer": 9, "act": "relu", "two": "1-8", "note": "kept"}
    assert MAP.write_config(Config(), {}) == {"n_layer": 2, "act": "gelu_new", "two": "4-8"}
    assert MAP.write_config(Config(), {"act": "nonsense"})["act"] == "gelu_new"


@pytest.mark.parametrize(
    ("text", "expected"), [("500MB", 5e8), ("5GB", 5e9), ("1.5 GiB", 1.5 * 2**30), ("17", 17), ("2k", 2000)]
)
def test_sizes(text, expected):
    assert parse_byte_size(text) == expected


@pytest.mark.parametrize("text", ["", "MB", "-1GB", "0", "5 bananas"])
def test_sizes_that_are_none(text):
    with pytest.raises(formers.Error, match="is not a size"):
        parse_byte_size(text)


def test_counts_agree_with_their_nouns():
    assert [count_noun(n, "label") for n in (0, 1, 2048)] == ["0 labels", "1 label", "2,048 labels"]
    assert [count_noun(n, "epoch") for n in (1.0, 2.5)] == ["1 epoch", "2.5 epochs"]
    phrase = "empty document(s) left out"
    assert [count_noun(n, phrase) for n in (1, 2)] == ["1 empty document left out", "2 empty documents left out"]
