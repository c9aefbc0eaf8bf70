"""Every family, trained with its default settings, opens elsewhere: the same tokens, segments, masks and numbers for a
text, a pair and an over-long text; and comes back by import as it was.

python -m tests.interop.test_every_export prints the table of what is right for which family.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import lzma
import tempfile
import warnings
from importlib import resources
from pathlib import Path

import pytest
import torch
import yaml

import formers
from formers import Error
from formers.interop.export_check import compare_embeddings, compare_outputs, make_cases
from formers.interop.reader_process import run_sentence_transformers, run_transformers
from formers.registry import FAMILIES, train_tokenizer
from formers.training.recipes import get_recipe

pytest.importorskip("transformers")
NAMES = [name for name, member in FAMILIES.items() if member.definition.objective]
NO_FORMAT = {"seq2seq", "gnmt", "gpt3", "elmo"}
GONE = {"transformer_xl"}  # from transformers 5
MAY_BE_NONE = {
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "forced_eos_token_id",
    "classifier_dropout", "n_inner", "intermediate_size", "reuse_len", "mem_len", "summary_activation",
}  # fmt: skip
LOSSY = {"switch": {"capacity"}}  # transformers has no capacity factor, which the export says
TOKENIZERS = {}  # by kind and style: families of one style share it
TRAIN = {
    "steps": 2, "warmup_steps": 1, "batch_tokens": 256, "save_every": 2, "eval_every": 2, "eval_batches": 1,
    "samples": 0,
}  # fmt: skip


def read_bundled_text() -> str:
    """Some documents of the bundled text, in two languages."""
    parts = []
    for language in ("en", "ko"):
        packed = resources.files("formers.data").joinpath("corpus", f"{language}.txt.xz").read_bytes()
        words = lzma.decompress(packed).decode()[:12_000].replace("\n", " ").split(" ")
        parts += [" ".join(words[i : i + 60]) for i in range(0, len(words), 60)]
    return "\n\n".join(parts)


def train_family(name: str, folder: Path, said: list[str]):
    """The folder of a run of two steps with the family's default settings."""
    source = folder / "text.txt"
    documents = read_bundled_text().split("\n\n")
    pairs = FAMILIES[name].definition.objective == "seq2seq"
    rows = [f"{a[:80]}\t{b[:80]}" for a, b in itertools.pairwise(documents)] if pairs else documents
    source.write_text(("\n" if pairs else "\n\n").join(rows), encoding="utf-8")
    style = FAMILIES[name].definition.tokenizer, FAMILIES[name].definition.tokenizer_style
    made = formers.pretrain(
        name, source, out=folder / "run", tokenizer=TOKENIZERS.get(style), train=TRAIN,
        data={"vocab_size": 500}, say=said.append,
    )  # fmt: skip
    TOKENIZERS.setdefault(style, made.former.tokenizer)
    return made.folder


def judge_export(name: str, folder: Path) -> dict[str, str]:
    """Train, export, open, compare, and import again: what was found, by column; an assertion where it is wrong."""
    said: list[str] = []
    run = train_family(name, folder, said)
    former, out = formers.load(run), folder / "export"
    notes = [line for line in said if line.startswith("export:")]
    if name in NO_FORMAT:
        assert bool(notes) == (name != "elmo"), "it is said before training that there is no way out"
        with pytest.raises(Error, match="has no format in transformers") as refused:
            formers.export(former, out, to="transformers")
        assert refused.value.fix == FAMILIES[name].definition.export_remedy != ""
        assert not out.exists()
        if name != "elmo":
            return {"opens": f"no: {refused.value.what}"}
        pytest.importorskip("h5py")
        formers.export(former, out)
        assert torch.equal(formers.load(out).embed("one text, 한 문장"), former.embed("one text, 한 문장"))
        assert "library_name: formers" in (out / "README.md").read_text()
        return {"opens": "as bilm-tf"}
    expected = {"switch": "capacity", "transformer_xl": "4.35.2"}.get(name)
    assert len(notes) == bool(expected), notes
    assert (expected or "") in "".join(notes), "what is lost on the way is said before training"
    with pytest.warns(UserWarning, match=expected) if expected else warnings.catch_warnings():
        formers.export(former, out)
    unknown = {key for key, value in json.loads((out / "config.json").read_text()).items() if value is None}
    assert unknown <= MAY_BE_NONE
    _, front, body = (out / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front)["library_name"] == "transformers"
    assert f"{sum(p.numel() for p in former.model.parameters() if p.requires_grad):,}" in body
    assert "text.txt" in body
    assert "| training steps | 2 |" in body
    assert ("add_special_tokens=False" in body) == (name in ("gpt", "xlnet", "transformer_xl")), "a prompt has no end"
    check_import(name, former, out)
    if name in GONE:
        return {"opens": "no: transformers 4.35.2"}
    cases = make_cases(former)
    facts, tensors = run_transformers(str(out), cases)
    worst = compare_outputs(former, cases, facts, tensors)
    assert worst < 1e-4
    found = {"opens": facts["architecture"], "numbers": f"{worst:.0e}", "pairs": "yes"}
    limit = getattr(former.config, "context", None)
    assert {case["name"] for case in cases} == {"text", "pair", *(() if limit is None else ("long",))}
    assert limit in (None, facts["limit"])
    found["lengths"] = "no limit" if limit is None else f"{limit}"
    if former.head == "lm":
        known, c = facts["generation"], former.config
        assert (known["bos"], known["eos"]) == (c.bos, c.eos)
        assert known["pad"] is not None
    found["generation"] = "yes" if (out / "generation_config.json").exists() else "–"
    assert (found["generation"] == "yes") == (former.head == "lm")
    return found | check_sentence_model(former, folder / "sentences")


def check_import(name: str, former, out: Path) -> None:
    """The export comes back as it was."""
    back = formers.load(out)
    assert (back.family, back.head, back.labels) == (former.family, former.head, former.labels)
    ours, theirs = dataclasses.asdict(former.config), dataclasses.asdict(back.config)
    assert {key for key in ours if ours[key] != theirs[key]} <= LOSSY.get(name, set())
    for (one, value), (other, again) in zip(
        former.model.state_dict().items(), back.model.state_dict().items(), strict=True
    ):
        assert one == other
        assert torch.equal(value, again)
    assert back.tokenizer.json_text == former.tokenizer.json_text
    assert back.tokenizer.special == former.tokenizer.special


def check_sentence_model(former, out: Path) -> dict[str, str]:
    """The same model as sentence-transformers has it."""
    pytest.importorskip("sentence_transformers")
    if former.is_encoder_decoder and former.family not in ("t5", "mt5"):
        with pytest.raises(Error, match="would read the decoder"):
            formers.export(former, out, to="sentence-transformers")
        return {"sentences": "–"}
    formers.export(former, out, to="sentence-transformers")
    cases = make_cases(former)
    facts, tensors = run_sentence_transformers(str(out), cases)
    worst = compare_embeddings(former, cases, tensors, "mean", False)
    assert worst < 1e-4
    torch.testing.assert_close(tensors["pair.vector"], former.embed(cases[1]["text"]), atol=1e-4, rtol=1e-4)
    assert facts["limit"] == (former.config.context or facts["limit"])
    return {"sentences": f"{worst:.0e}"}


@pytest.mark.parametrize("name", NAMES)
def test_it_opens_elsewhere_and_comes_back(name, tmp_path):
    judge_export(name, tmp_path)


def build_classifier(name: str):
    """A classifier with random weights of the family's quick sizes, and a tokenizer of its style."""
    family = FAMILIES[name].definition
    tokenizer = train_tokenizer(name, read_bundled_text().split("\n\n"), 500)
    known = {field.name for field in dataclasses.fields(family.config_class)}
    roles = {role: tokenizer.id(role) for role in ("pad", "bos", "eos") if role in known}
    former = formers.build(name, head="classify", **get_recipe(name).model, **roles, vocab=len(tokenizer))
    former.tokenizer = tokenizer
    return former


def has_classifier(name: str) -> bool:
    """There is a class for it in transformers."""
    form = FAMILIES[name].definition.hf_format
    return form is not None and name not in GONE and "classify" in form.architectures.values()


CLASSIFIERS = [name for name in NAMES if has_classifier(name)]


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_reads_what_it_learned_to_read(name, tmp_path):
    """Also in batches, and where formers itself puts an end mark after a text that the tokenizer has no template for:
    transformers used to read something else, in silence."""
    former = build_classifier(name)
    formers.export(former, tmp_path / "out")
    cases = make_cases(former)
    facts, tensors = run_transformers(str(tmp_path / "out"), cases)
    assert compare_outputs(former, cases, facts, tensors) < 1e-4
    assert facts["padded"] == pytest.approx(tensors["text.logits"][0].tolist(), abs=1e-4)
    back = formers.load(tmp_path / "out")
    assert back.classify(cases[0]["text"]) == former.classify(cases[0]["text"])


COLUMNS = ("opens", "numbers", "pairs", "lengths", "generation", "sentences")


if __name__ == "__main__":
    print("| family | " + " | ".join(COLUMNS) + " |\n|" + "---|" * (len(COLUMNS) + 1))
    for _name in NAMES:
        with tempfile.TemporaryDirectory() as _folder:
            _row = judge_export(_name, Path(_folder))
        print(f"| {_name} | " + " | ".join(_row.get(column, "–") for column in COLUMNS) + " |", flush=True)
