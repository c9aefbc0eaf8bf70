"""Exports for servers: which models each serves, what is written, and that the numbers of the server itself are ours.

What needs a server that is not installed is skipped; vLLM's part runs in an environment that has it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import formers
from formers import Error
from formers.cli.main import main
from formers.interop import export_check, reader_process, serving_targets
from formers.interop.export_check import check_export
from formers.interop.onnx_export import OnnxGraph
from formers.interop.serving_targets import SERVING_TARGETS, check_reader_support
from formers.nn.attention.dispatch import force_kernel
from formers.registry import FAMILIES, train_tokenizer
from formers.training.recipes import get_recipe

LINES = [
    "The cat sat on the mat.", "It was 7 o'clock, and nobody came.", "한국어 문장도 읽습니다. 아무도 오지 않았다.",
] * 3  # fmt: skip
PACKAGES = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"), "ctranslate2": ("ctranslate2", "transformers"), "vllm": ("vllm",),
}  # fmt: skip
NEEDS = {
    target: pytest.mark.skipif(
        not all(importlib.util.find_spec(name) for name in names), reason=f"needs {' and '.join(names)}"
    )
    for target, names in PACKAGES.items()
}


def build_model(family, head="auto", tokenizer=True, **more):
    """A small model with random weights and a tokenizer of its family's kind."""
    definition = FAMILIES[family].definition
    known = definition.config_class.__dataclass_fields__
    recipe = get_recipe(family).model if definition.objective else {}
    sizes = {**recipe, **({"layers": 2} if "layers" in known else {}), **more}
    made = train_tokenizer(family, LINES, 300) if tokenizer else None
    if made is not None:
        sizes |= {role: made.id(role) for role in ("pad", "bos", "eos") if role in known and role in made.special}
        sizes["vocab"] = len(made)
    former = formers.build(family, head=definition.pretraining_head if head == "auto" else head, **sizes)
    former.tokenizer = made
    return former


@pytest.mark.parametrize(
    ("family", "head", "target", "words"),
    [
        ("gpt2", "lm", "ctranslate2", "GPT2LMHeadModel, it generates text (ctranslate2.Generator)"),
        ("t5", "lm", "ctranslate2", "T5ForConditionalGeneration, it generates text from a source"),
        ("mbart", "lm", "ctranslate2", "MBartForConditionalGeneration, it generates text from a source"),
        ("roberta", "none", "ctranslate2", "RobertaModel, it gives hidden states (ctranslate2.Encoder)"),
        ("bert", "classify", "ctranslate2", "it has no BertForSequenceClassification. It would with --head none"),
        ("xlnet", "lm", "ctranslate2", "it has no XLNetLMHeadModel. Serve it with formers"),
        ("transformer", "lm", "ctranslate2", "takes the last token for the padding"),
        ("gpt3", "lm", "ctranslate2", "no, CTranslate2 cannot open it: gpt3 has no format in transformers"),
        ("bert", "classify", "onnx", "logits"),
        ("gpt3", "lm", "onnx", "logits"),
        ("bert", "none", "onnx", "hidden states"),
        ("seq2seq", "lm", "onnx", "no ONNX graph with free lengths: its recurrent layers run step by step"),
        ("elmo", "none", "onnx", "its recurrent layers run step by step. Serve it with formers serve, or on Ray Serve"),
        ("bert", "choose", "onnx", "the head choose answers several texts together"),
        ("bart", "classify", "onnx", "the head classify of a bart decodes its own source"),
        ("t5", "lm", "tei", "of this family it serves bert and roberta, not t5"),
        ("t5", "lm", "vllm", "it has no T5ForConditionalGeneration"),
    ],
)
def test_what_a_server_serves(family, head, target, words):
    former = build_model(family, head, tokenizer=family != "elmo")
    try:
        said = check_reader_support(former, target)
    except Error as error:
        said = str(error)
    assert words in said


def test_a_model_without_tokens_is_refused_by_ctranslate2(tmp_path):
    with pytest.raises(Error, match=r"needs the tokens of a tokenizer\.json"):
        formers.export(build_model("gpt2", tokenizer=False), tmp_path / "out", to="ctranslate2")
    with pytest.raises(Error, match="does not know the activation relu2"):
        check_reader_support(build_model("bert", "none", act="relu2"), "ctranslate2")
    with pytest.raises(Error, match="residual connections of a BLOOM"):
        check_reader_support(build_model("bloom", normed_residual=True), "ctranslate2")
    assert not (tmp_path / "out").exists()


ONNX_NAMES = [name for name, member in FAMILIES.items() if not member.definition.onnx_refusal]


@pytest.mark.parametrize("family", ONNX_NAMES)
def test_a_masked_grid_gives_what_packed_documents_give(family):
    """What becomes the ONNX graph, before it does: padding changes nothing."""
    definition = FAMILIES[family].definition
    former = build_model(family, tokenizer=False)
    ids = torch.arange(3 * 11).view(3, 11) * 5 % min(90, former.config.vocab - 1) + 1
    mask = torch.ones_like(ids)
    mask[1, 6:], mask[2, 3:] = 0, 0
    given = {"token_type_ids": ids % 2} if former.can_read_segments else {}
    more = {"decoder_input_ids": ids[:, :5]} if former.is_encoder_decoder else {}
    with torch.no_grad():
        with force_kernel("dense"):
            found = OnnxGraph(former)(ids, mask, **given, **more)
        ours = former.logits(ids, mask.bool(), given.get("token_type_ids"), more.get("decoder_input_ids"))
    ours = ours if isinstance(ours, dict) else {"logits": ours}
    assert len(found) == len(ours)
    is_decoded = definition.is_encoder_decoder
    for got, expected in zip(found.values(), ours.values(), strict=True):
        padded = got.dim() == 3 and got.shape[1] == 11 and not is_decoded
        torch.testing.assert_close(got * mask[..., None] if padded else got, expected, rtol=1e-4, atol=1e-4)


CASES = [
    *(pytest.param("onnx", *one, marks=NEEDS["onnx"], id=f"onnx-{one[0]}-{one[1]}") for one in (
        ("gpt2", "lm"), ("bart", "lm"))),
    *(pytest.param("ctranslate2", *one, marks=NEEDS["ctranslate2"], id=f"ctranslate2-{one[0]}") for one in (
        ("gpt_neox", "lm"), ("bert", "none"), ("mbart", "lm"))),
    *(pytest.param("vllm", *one, marks=NEEDS["vllm"], id=f"vllm-{one[0]}-{one[1]}") for one in (
        ("gpt2", "lm"), ("bert", "none"), ("bert", "classify"))),
]  # fmt: skip


@pytest.fixture
def reader_in_this_process(monkeypatch, full):
    """Let ONNX Runtime and CTranslate2 open exports here: a process of its own for each import of torch costs seconds.
    --full, and the test of the command below, keep the process."""

    def run(command, **options):
        request = json.loads((Path(command[-1]) / "request.json").read_text())
        if full or request["target"] not in ("onnx", "ctranslate2"):  # the others change classes, or the environment
            return subprocess.run(command, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader_process.answer_request(command[-1])
        return subprocess.CompletedProcess(command, 0, "", "")

    names = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    monkeypatch.setattr(reader_process, "subprocess", names)


@pytest.mark.usefixtures("reader_in_this_process")
@pytest.mark.parametrize(("target", "family", "head"), CASES)
def test_the_server_computes_what_formers_computes(target, family, head, tmp_path, full):
    """Opened in the server itself; other weights are noticed."""
    sizes = {"dim": 128, "heads": 2} if target == "vllm" else {}  # its CPU kernels know heads of 32, 64, …
    if target == "onnx" and not full:  # tracing takes seconds for each layer
        sizes |= {"layers": 1}
    former = build_model(family, head, **sizes)
    formers.export(former, tmp_path / "out", to=target)
    said = check_export(former, target, tmp_path / "out")
    assert said.startswith("yes: "), said
    with torch.no_grad():
        for value in former.model.parameters():
            value.mul_(1.5)
    with pytest.raises(Error, match="computes something else: .* (differ by|are)"):
        check_export(former, target, tmp_path / "out")


@NEEDS["onnx"]
def test_the_command_writes_a_graph_and_says_what_it_checked(tmp_path, capsys):
    former = build_model("bert", "classify")
    formers.save(former, tmp_path / "bert")
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "bert"), str(tmp_path / "out"), "--for", "onnx"])
    out = capsys.readouterr()
    assert end.value.code == 0, out.err
    assert "onnx: yes: model.onnx opens in ONNX Runtime" in out.out
    assert "the largest difference is" in out.out
    about = json.loads((tmp_path / "out" / "onnx.json").read_text())
    assert about["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert (about["outputs"], about["pooled_outputs"], about["labels"]) == (["logits"], ["logits"], list(former.labels))
    assert (tmp_path / "out" / "tokenizer.json").is_file()


@pytest.mark.parametrize("target", SERVING_TARGETS)
def test_a_server_that_is_not_installed(target, tmp_path, capsys, monkeypatch):
    """vLLM and TEI read files that can be written all the same; the others' own packages write theirs."""
    formers.save(build_model("bert", "none"), tmp_path / "bert")
    find_spec, absent = importlib.util.find_spec, {name for names in PACKAGES.values() for name in names}
    monkeypatch.setattr(
        serving_targets.importlib.util, "find_spec", lambda name: None if name in absent else find_spec(name)
    )
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "bert"), str(tmp_path / "out"), "--for", target])
    out = capsys.readouterr()
    if target in ("vllm", "tei"):
        assert end.value.code == 0, out.err
        assert f"{target}: not checked: {export_check.READER_NAMES[target]} is not installed (" in out.out
        assert json.loads((tmp_path / "out" / "1_Pooling" / "config.json").read_text())["pooling_mode_mean_tokens"]
    else:
        assert end.value.code == 2
        assert f"pip install 'formers[{target}]'" in out.err
        assert not (tmp_path / "out").exists()


def test_a_check_of_another_reader_is_refused(tmp_path, capsys):
    formers.save(build_model("bert", "none"), tmp_path / "bert")
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "bert"), str(tmp_path / "out"), "--for", "onnx", "--check", "vllm"])
    assert end.value.code == 2
    assert "vllm does not open an export for onnx" in capsys.readouterr().err
