"""formers export --check: what others can load, said beforehand."""

from __future__ import annotations

import importlib.util

import pytest

import formers
from formers import Error
from formers.cli.main import main
from formers.interop.serving import READERS, check
from formers.registry import MEMBERS
from formers.text import wordpiece
from formers.training.recipes import recipe


def small(family, head="auto", tokenizer=False, **more):
    known = MEMBERS[family].family.config()
    own = {"pad": 0, "bos": None, "eos": None, "vocab": 100}
    sizes = {**recipe(family).model, **{k: v for k, v in own.items() if hasattr(known, k)}, **more}
    f = formers.build(family, head=MEMBERS[family].family.pretraining if head == "auto" else head, **sizes)
    f.tokenizer = wordpiece.train(["one two three four"], 60) if tokenizer else None
    return f


def answer(former, reader):
    try:
        said = check(former, reader)
    except Error as error:
        said = str(error)
        assert said.startswith("no, ")
        assert "\n" not in said
    else:
        assert said.startswith("yes: ")
    return said


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.filterwarnings("ignore:transformers has no capacity factor")
def test_transformers_has_the_classes_that_are_named():
    import transformers

    yes = set()
    for family, member in MEMBERS.items():
        if not member.family.objective:
            continue
        options = {"halves": True} if family == "transformer" else {}
        for head in member.family.heads(member.family.config()):
            said = answer(small(family, head, **options), "transformers")
            if said.startswith("yes"):
                assert hasattr(transformers, said.removeprefix("yes: ").removesuffix(".from_pretrained")), said
                yes.add(family)
    pretrained = {name for name, member in MEMBERS.items() if member.family.objective}
    assert pretrained - yes == {"seq2seq", "gnmt", "elmo", "gpt3", "transformer_xl"}
    assert not hasattr(transformers, "TransfoXLModel")


@pytest.mark.parametrize(
    ("family", "head", "reader", "words"),
    [
        ("gpt2", "lm", "vllm", "yes: GPT2LMHeadModel, it generates text"),
        ("gpt_neox", "lm", "vllm", "yes: GPTNeoXForCausalLM, it generates text"),
        ("gptj", "lm", "vllm", "yes: GPTJForCausalLM"),
        ("bloom", "lm", "vllm", "yes: BloomForCausalLM"),
        ("bert", "none", "vllm", "yes: BertModel, it gives embeddings"),
        ("roberta", "classify", "vllm", "yes: RobertaForSequenceClassification, it classifies texts"),
        ("bert", "pretraining", "vllm", "it has no BertForPreTraining. It would with --head none, classify, tag"),
        ("gpt_neo", "lm", "vllm", "it has no GPTNeoForCausalLM"),
        ("bart", "lm", "vllm", "versions up to 0.10.2 have it"),
        ("t5", "lm", "vllm", "it has no T5ForConditionalGeneration. Serve it with formers or transformers"),
        ("bert", "pretraining", "tei", "yes: BertForPreTraining, it gives embeddings"),
        ("roberta", "mlm", "tei", "splade"),
        ("bert", "classify", "tei", "yes: BertForSequenceClassification, it classifies texts"),
        ("bert", "tag", "tei", "it has no head tag. --head none"),
        ("albert", "none", "tei", "of this family it serves bert and roberta, not albert"),
        ("transformer_xl", "lm", "transformers", "transformers 4.35.2 loads the exported model"),
        ("transformer", "lm", "transformers", "no alternating sinusoids"),
    ],
)
def test_who_can_load_what(family, head, reader, words):
    assert words.lower() in answer(small(family, head, tokenizer=True), reader).lower()


def test_it_looks_at_the_model_itself():
    assert "scale_attn_by_inverse_layer_idx = False only" in answer(small("gpt2", scale_by_layer=True), "vllm")
    assert "scale_attn_weights = True only" in answer(small("gpt2", scale=False), "vllm")
    assert answer(small("gpt2", scale=False), "transformers").startswith("yes")
    assert "no word for offset = 2" in answer(small("bert", offset=2), "transformers")
    assert "hidden_act quick_gelu" in answer(small("bert", tokenizer=True, act="gelu_quick"), "tei")
    assert "needs a tokenizer.json" in answer(small("bert"), "tei")
    assert "--skip-tokenizer-init" in answer(small("gpt2"), "vllm")
    pruned = small("bert", "none")
    pruned.prune({0: [1]})
    assert answer(pruned, "transformers").startswith("yes"), "heads that were taken out are written as empty ones"


def test_the_command(capsys, tmp_path):
    formers.save(small("bert", tokenizer=True), tmp_path / "bert")
    asked = [("transformers", 0), ("vllm", 2), ("tei", 0), ("vllm", 0, "--head", "none")]
    for reader, code, *more in asked:
        with pytest.raises(SystemExit) as end:
            main(["export", str(tmp_path / "bert"), "--check", reader, *more])
        assert end.value.code == code
        out = capsys.readouterr()
        assert (READERS[reader] in out.err) if code else out.out.startswith(f"{reader}: yes: Bert")
        assert (out.err if code else out.out).count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["bert"], "nothing is written"
