"""formers export --check: the export is opened in its target and compared; what is not installed is not checked."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch

import formers
from formers import Error
from formers.config import get_schema
from formers.former import count_trainable
from formers.interop import export_check, reader_process, serving_targets
from formers.interop.export_check import check_export, truncate_lengths
from formers.interop.huggingface import find_architecture
from formers.interop.reader_process import READER_NAMES
from formers.interop.serving_targets import check_reader_support
from formers.registry import FAMILIES, train_tokenizer
from formers.training.recipes import get_recipe
from tests.command_line import run_command

WORDS = ["The cat sat on the mat.", "It was 7 o'clock, and nobody came.", "한국어 문장도 읽습니다. 아무도 오지 않았다."]
needs_transformers = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")


def build_model(family, head="auto", tokenizer=False, **more):
    known = FAMILIES[family].definition.config_class()
    own = {"pad": 0, "bos": None, "eos": None, "vocab": 100}
    sizes = {**get_recipe(family).model, **{k: v for k, v in own.items() if k in known.__dataclass_fields__}, **more}
    f = formers.build(family, head=FAMILIES[family].definition.pretraining_head if head == "auto" else head, **sizes)
    f.tokenizer = train_tokenizer("wordpiece", WORDS, 100) if tokenizer else None
    return f


def predict_verdict(former, reader):
    """What is known without the reader."""
    try:
        said = check_reader_support(former, reader) or "yes"
    except Error as error:
        said = str(error)
        assert said.startswith("no, ")
    assert "\n" not in said
    return said


@needs_transformers
@pytest.mark.filterwarnings("ignore:transformers has no capacity factor")
def test_transformers_has_the_classes_that_are_named():
    import transformers

    yes = set()
    for family, member in FAMILIES.items():
        if not member.definition.objective:
            continue
        for head in member.definition.build_heads(member.definition.config_class()):
            former = build_model(family, head)
            if predict_verdict(former, "transformers") == "yes":
                assert hasattr(transformers, find_architecture(former))
                yes.add(family)
    pretrained = {name for name, member in FAMILIES.items() if member.definition.objective}
    assert pretrained - yes == {"seq2seq", "gnmt", "elmo", "gpt3", "transformer_xl"}
    assert not hasattr(transformers, "TransfoXLModel")


@pytest.mark.parametrize(
    ("family", "head", "reader", "words"),
    [
        ("gpt2", "lm", "vllm", "GPT2LMHeadModel, it generates text"),
        ("gpt_neox", "lm", "vllm", "GPTNeoXForCausalLM, it generates text"),
        ("gptj", "lm", "vllm", "GPTJForCausalLM"),
        ("bloom", "lm", "vllm", "BloomForCausalLM"),
        ("bert", "none", "vllm", "BertModel, it gives embeddings"),
        ("roberta", "classify", "vllm", "RobertaForSequenceClassification, it classifies texts"),
        ("bert", "pretraining", "vllm", "it has no BertForPreTraining. It would with --head none, classify, tag"),
        ("gpt_neo", "lm", "vllm", "it has no GPTNeoForCausalLM"),
        ("bart", "lm", "vllm", "versions up to 0.10.2 have it"),
        ("t5", "lm", "vllm", "it has no T5ForConditionalGeneration. Serve it with formers or transformers"),
        ("bert", "pretraining", "tei", "BertForPreTraining, it gives embeddings"),
        ("roberta", "mlm", "tei", "splade"),
        ("bert", "classify", "tei", "BertForSequenceClassification, it classifies texts"),
        ("bert", "tag", "tei", "it has no head tag. --head none"),
        ("albert", "none", "tei", "of this family it serves bert and roberta, not albert"),
        ("transformer_xl", "lm", "transformers", "version 4.35.2 opens it"),
        ("seq2seq", "lm", "transformers", "formers pretrain transformer trains a translator that exports as Marian"),
        ("gpt3", "lm", "transformers", "pretrain gpt2, the same model without bands"),
        ("elmo", "lm", "transformers", "options.json and hdf5"),
        ("bart", "lm", "sentence-transformers", "would read the decoder of a bart"),
    ],
)
def test_who_can_load_what(family, head, reader, words):
    assert words.lower() in predict_verdict(build_model(family, head, tokenizer=True), reader).lower()


def test_it_looks_at_the_model_itself(tmp_path):
    assert "scale_attn_by_inverse_layer_idx = False only" in predict_verdict(
        build_model("gpt2", scale_by_layer=True), "vllm"
    )
    assert "scale_attn_weights = True only" in predict_verdict(build_model("gpt2", scale=False), "vllm")
    assert predict_verdict(build_model("gpt2", scale=False), "transformers") == "yes"
    assert "hidden_act quick_gelu" in predict_verdict(build_model("bert", tokenizer=True, act="gelu_quick"), "tei")
    assert "needs a tokenizer.json" in predict_verdict(build_model("bert"), "tei")
    assert "--skip-tokenizer-init" in predict_verdict(build_model("gpt2"), "vllm")
    pruned = build_model("bert", "none")
    pruned.prune({0: [1]})
    assert predict_verdict(pruned, "transformers") == "yes", "heads that were taken out are written as empty ones"


@pytest.mark.parametrize(
    ("family", "setting", "words"),
    [
        ("bert", {"offset": 2}, "no word for offset = 2 in a bert. Train with --model.offset 0"),
        ("bart", {"order": "pre"}, "no word for order = 'pre' in a bart. Train with --model.order post"),
        ("transformer", {"order": "pre"}, "no word for order = 'pre' in a marian. Train with --model.order post"),
        (
            "transformer",
            {"halves": False},
            "no alternating sinusoids (model.halves false). Train with --model.halves true",
        ),
        ("t5", {"eps": 1e-3}, None),
        ("bart", {"eps": 1e-3}, "no word for eps = 0.001"),
    ],
)
def test_a_setting_without_a_word_is_refused_at_export_too(family, setting, words, tmp_path):
    """It used to be written all the same, and the other side computed something else."""
    former = build_model(family, **setting)
    if words is None:
        formers.export(former, tmp_path / "out")
        return
    assert words in predict_verdict(former, "transformers")
    with pytest.raises(Error) as refused:
        formers.export(former, tmp_path / "out")
    assert words in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_a_head_that_transformers_has_no_class_for(tmp_path):
    with pytest.raises(Error, match=r"no class for bert with the head 'classify@second'.*--head none"):
        formers.export(build_model("bert", "classify@second"), tmp_path / "out")


def test_both_texts_of_a_pair_are_cut_as_the_tokenizers_library_cuts_them():
    rust = train_tokenizer("wordpiece", WORDS, 100).backend
    for one, two, room in ((10, 10, 17), (3, 20, 12), (20, 3, 12), (20, 9, 13), (9, 20, 5), (12, 12, 12)):
        rust.enable_truncation(room)
        made = rust.encode("a" + " 한" * (one - 1), "a" + " 한" * (two - 1), add_special_tokens=False)
        lengths = [made.sequence_ids.count(side) for side in (0, 1)]
        if one + two > room:
            assert truncate_lengths(one, two, room) == tuple(lengths)


def run_export(capsys, *words):
    return run_command(capsys, "export", *words)


@needs_transformers
def test_the_command_opens_it(capsys, tmp_path):
    """In a process of its own."""
    formers.save(build_model("bert", tokenizer=True), tmp_path / "bert")
    code, out, err = run_export(capsys, tmp_path / "bert", "--check", "transformers")
    assert code == 0, err
    assert out.startswith("transformers: yes: BertForPreTraining opens in transformers ")
    assert "a text, a pair, an over-long text" in out
    assert [p.name for p in tmp_path.iterdir()] == ["bert"], "nothing is left behind"


@needs_transformers
def test_segments_that_the_other_side_would_not_read_are_noticed(tmp_path):
    from formers.interop.reader_process import run_transformers

    former = build_model("bert", tokenizer=True)
    formers.export(former, tmp_path / "hf")
    options = json.loads((tmp_path / "hf" / "tokenizer_config.json").read_text())
    del options["model_input_names"]
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(options))
    cases = export_check.make_cases(former)
    with pytest.raises(Error, match="the token_type_ids of the text are not there"):
        export_check.compare_outputs(former, cases, *run_transformers(str(tmp_path / "hf"), cases))


@needs_transformers
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda facts, tensors: facts.update(missing=["cls.bias"]), "tensor cls.bias is missing"),
        (lambda facts, tensors: facts.update(pads=False), "no token to fill up a batch"),
        (
            lambda facts, tensors: tensors["long.input_ids"].fill_(1),
            "the input_ids of the long differ from ours at token 0",
        ),
        (lambda facts, tensors: tensors["pair.attention_mask"].fill_(0), "the attention_mask of the pair"),
        (
            lambda facts, tensors: tensors["pair.prediction_logits"].add_(0.1),
            "prediction_logits of the pair differ by 0.1",
        ),
        (lambda facts, tensors: tensors.pop("text.seq_relationship_logits"), "it gives no seq_relationship_logits"),
    ],
)
def test_what_differs_is_named(damage, words, tmp_path):
    from formers.interop.reader_process import run_transformers

    former = build_model("bert", tokenizer=True, layers=1)
    formers.export(former, tmp_path / "hf")
    cases = export_check.make_cases(former)
    facts, tensors = run_transformers(str(tmp_path / "hf"), cases)
    assert export_check.compare_outputs(former, cases, facts, tensors) < 1e-4
    tensors = {name: value.clone() for name, value in tensors.items()}
    damage(facts, tensors)
    with pytest.raises(Error) as refused:
        export_check.compare_outputs(former, cases, facts, tensors)
    assert words in str(refused.value)


HEADS = [
    ("bert", "tag"), ("bert", "answer"), ("bert", "choose"), ("bert", "nsp"), ("bert", "mlm"), ("roberta", "none"),
    ("gpt2", "double"), ("gpt2", "tag"), ("xlnet", "beam"), ("xlnet", "choose"), ("t5", "tag"), ("t5", "answer"),
    ("bart", "answer"), ("bart", "none"), ("transformer", "none"), ("ernie", "classify"),
]  # fmt: skip


@needs_transformers
@pytest.mark.parametrize(
    ("family", "head", "tokenizer"),
    [*((*one, True) for one in HEADS), ("bert", "mlm", False), ("bart", "lm", False), ("gpt2", "double", False)],
)
def test_every_kind_of_head_is_compared(family, head, tokenizer, tmp_path):
    from formers.interop.reader_process import run_transformers

    roles = {"eos": 3, "start": 1} if "start" in get_schema(FAMILIES[family].definition.config_class) else {}
    former = build_model(family, head, tokenizer=tokenizer, layers=2, **roles)
    formers.export(former, tmp_path / "hf")
    cases = export_check.make_cases(former)
    facts, tensors = run_transformers(str(tmp_path / "hf"), cases)
    assert export_check.compare_outputs(former, cases, facts, tensors) < 1e-4
    compared = export_check.compute_outputs(former, *cases[0]["ours"], cases[0].get("decoder"))
    assert bool(compared) == (head != "beam"), "the beam head answers in a form of its own"


def test_what_is_not_installed_is_not_checked(capsys, tmp_path, monkeypatch):
    formers.save(build_model("bert", "none", tokenizer=True), tmp_path / "bert")
    for reader in ("vllm", "tei"):
        code, out, _ = run_export(capsys, tmp_path / "bert", "--check", reader)
        assert code == 0
        assert out.startswith(f"{reader}: not checked: {READER_NAMES[reader]} is not installed (")
        assert "it has a class for this model: BertModel" in out
    code, _, err = run_export(capsys, tmp_path / "bert", "--check", "vllm", "--head", "pretraining")
    assert code == 2
    assert "vLLM cannot open it" in err
    monkeypatch.setattr(serving_targets.importlib.util, "find_spec", lambda name: None)
    for reader in ("transformers", "sentence-transformers"):
        code, out, _ = run_export(capsys, tmp_path / "bert", tmp_path / reader, "--check", reader)
        assert code == 0
        assert out.endswith(f"{reader}: not checked: {reader} is not installed (pip install {reader})\n")
        assert (tmp_path / reader / "config.json").is_file()


def test_a_process_that_hangs_or_dies_is_an_error(tmp_path, monkeypatch):
    former = build_model("bert", tokenizer=True)
    if importlib.util.find_spec("transformers") is None:
        monkeypatch.setattr(serving_targets.importlib.util, "find_spec", lambda name: name)
    with pytest.raises(Error, match="did not open it within 0 s"):
        check_export(former, "transformers", seconds=0)
    monkeypatch.setattr(reader_process.sys, "executable", "/bin/false")
    with pytest.raises(Error, match="its process ended with code 1"):
        check_export(former, "transformers")


def test_options_of_vectors_belong_to_sentence_transformers(capsys, tmp_path):
    formers.save(build_model("bert", tokenizer=True), tmp_path / "bert")
    code, _, err = run_export(capsys, tmp_path / "bert", tmp_path / "out", "--normalise")
    assert code == 2
    assert "add --for sentence-transformers" in err.lower()
    with pytest.raises(Error, match="there is no export to 'tensorrt'"):
        formers.export(formers.load(tmp_path / "bert"), tmp_path / "out", to="tensorrt")
    with pytest.raises(Error, match="has no pooling 'sum'"):
        formers.export(formers.load(tmp_path / "bert"), tmp_path / "out", to="sentence-transformers", pool="sum")
    with pytest.raises(Error, match="needs a tokenizer"):
        formers.export(build_model("bert"), tmp_path / "out", to="sentence-transformers")


def test_an_export_of_sentences_says_what_was_written_and_is_overwritten(capsys, tmp_path):
    """It named the head that was left out, and took its own 1_Pooling for a stranger's folder."""
    former = build_model("bert", tokenizer=True)
    formers.save(former, tmp_path / "bert")
    _, said, _ = run_export(capsys, tmp_path / "bert", tmp_path / "out", "--to", "sentence-transformers")
    assert "head none" in said
    assert f"{count_trainable(formers.load(tmp_path / 'out').model):,} parameters" in said
    formers.export(former, tmp_path / "out", to="sentence-transformers", normalise=True, overwrite=True)
    formers.export(former, tmp_path / "out", to="sentence-transformers", overwrite=True)
    assert not (tmp_path / "out" / "2_Normalize").exists()


@pytest.mark.parametrize("pool", ["mean", "first", "last", "max", "weighted"])
@pytest.mark.parametrize("normalise", [False, True])
def test_vectors_are_those_of_embed(pool, normalise, tmp_path):
    pytest.importorskip("sentence_transformers")
    from formers.interop.reader_process import run_sentence_transformers

    former = build_model("roberta", "mlm", tokenizer=True, layers=1, context=48)
    formers.export(former, tmp_path / "out", to="sentence-transformers", pool=pool, normalise=normalise)
    cases = [{"name": str(i), "text": text} for i, text in enumerate(WORDS)]
    _, tensors = run_sentence_transformers(str(tmp_path / "out"), cases)
    theirs = torch.stack(list(tensors.values()))
    torch.testing.assert_close(theirs, former.embed(WORDS, pool=pool, normalise=normalise), atol=1e-5, rtol=1e-4)


def test_weights_that_are_not_finite_are_not_exported(tmp_path):
    f = formers.build("gpt2", vocab=20, context=8, dim=8, layers=1, heads=2)
    with torch.no_grad():
        next(f.model.parameters())[0, 0] = float("nan")
    with pytest.raises(formers.NonFinite):
        formers.export(f, tmp_path / "out")
    assert not (tmp_path / "out").exists()
