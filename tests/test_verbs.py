"""Every verb on every family and head: it answers, or an Error names the verbs that do; answers are finite."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import unicodedata

import pytest
import torch

import formers
from formers import Error
from formers.errors import NonFinite
from formers.registry import FAMILIES
from formers.text.tokenizer import Tokenizer
from formers.verbs import VERBS, list_verbs
from tests.small_models import HEADS, VERB_LINES
from tests.small_models import get_verb_model as get_model

ROWS = [{"text": text, "label": label} for text in VERB_LINES[:2] for label in "ab"]
LABELLED = {
    "classify": {"text": VERB_LINES[0], "label": "LABEL_1"},
    "tag": {"words": ["the", "cat"], "tags": ["LABEL_0", "LABEL_1"]},
    "answer": {"question": "who", "context": "the cat sat", "answers": [{"text": "cat", "start": 4}]},
    "choose": {"text": "the cat", "choices": ["sat", "ran"], "label": 0},
}


def needs_pairs(f):
    """An encoder-decoder whose likelihood is asked for by pairs."""
    return f.is_encoder_decoder and f.head == "lm"


ASKED = {
    "augment": lambda f: f.augment(ROWS, label_filter=None, max_new_tokens=2),
    "embed": lambda f: f.embed("the cat"),
    "evaluate": lambda f: f.evaluate([LABELLED.get(f.head, {"text": VERB_LINES[0], "target": "the mat"})] * 2),
    "fill": lambda f: f.fill("the ___ sat"),
    "inspect": lambda f: f.inspect("the cat sat").to_dict(),
    "neighbours": lambda f: f.neighbours("the cat", texts=VERB_LINES[:2]),
    "classify": lambda f: f.classify("the cat"),
    "score": lambda f: f.score(("the cat", "the mat") if needs_pairs(f) else "the cat sat"),
    "tag": lambda f: f.tag("the cat"),
    "answer": lambda f: f.answer("who", "the cat sat"),
    "choose": lambda f: f.choose("the cat", ["sat", "ran"]),
    "generate": lambda f: f.generate("the cat", 2),
    "summarise": lambda f: f.summarise("the cat sat", max_new_tokens=2),
    "translate": lambda f: f.translate("the cat", None if f.is_encoder_decoder else "German", max_new_tokens=2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "head"), HEADS, ids=[f"{n}-{h}" for n, h in HEADS])
def test_every_verb_answers_or_names_those_that_do(name, head):
    f = get_model(name, head)
    known = list_verbs(f)
    assert {"embed", "inspect", "neighbours"} <= set(known) <= set(VERBS)
    for verb in VERBS:
        if verb in known:
            ASKED[verb](f)
            continue
        with pytest.raises(Error, match=f"this {name} with head '{head}'( of 2 labels)? does not {verb}") as caught:
            ASKED[verb](f)
        assert f"it can {', '.join(known)};".lower() in str(caught.value).lower()


def damage_model(name, head, value):
    """A copy of a model whose weights are all NaN or infinite."""
    f = get_model(name, head)
    f = dataclasses.replace(f, model=copy.deepcopy(f.model))
    with torch.no_grad():
        for parameter in f.model.parameters():
            parameter.fill_(value)
    return f


PRETRAINED = [(name, member.definition.pretraining_head) for name, member in FAMILIES.items()]
TASKED = [("bert", "classify"), ("bert", "tag"), ("bert", "answer"), ("bert", "choose"), ("gpt2", "classify")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "head"), [*PRETRAINED, *TASKED])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_numbers_that_are_not_finite_are_an_error(name, head, value):
    f = damage_model(name, head, value)
    for verb in list_verbs(f):
        with pytest.raises(NonFinite, match="not finite") as caught:
            ASKED[verb](f)
        assert caught.value.exit_code == 3, verb


@pytest.mark.parametrize(
    "how", [{"num_beams": 2}, {"temperature": 0}, {"num_samples": 2, "top_k": 5}, {"stream": True}]
)
def test_no_way_of_writing_hides_them(how):
    for f in (damage_model("gpt2", "lm", math.nan), damage_model("t5", "lm", math.inf)):
        with pytest.raises(NonFinite):
            list(f.generate("the cat", 20, **how))
    f, small = damage_model("gpt2", "lm", math.nan), get_model("gpt2", "lm")
    with pytest.raises(NonFinite):
        f.generate("the cat", 4, draft=small)
    with pytest.raises(NonFinite):
        small.generate("the cat", 4, draft=f, temperature=0)


def test_a_token_with_a_damaged_vector_is_noticed_where_it_stands():
    """One row of the embedding is NaN: a text with that token is an error, any other has its answer."""
    f = dataclasses.replace(get_model("gptj", "lm"), model=copy.deepcopy(get_model("gptj", "lm").model))
    want, banned = f.generate("the cat", 4, temperature=0), f.tokenizer.encode("log", special=False)
    with torch.no_grad():
        f.model.body.embedding_table[banned[0]] = math.nan
    assert f.generate("the cat", 4, temperature=0) == want
    for prompts in ("log", ["the cat", "log"]):
        with pytest.raises(NonFinite):
            f.generate(prompts, 4, temperature=0, bad_words=[tuple(banned)])


def get_published_model(name, head):
    """A model whose tokenizer does not compose text itself, as GPT-2's published one."""
    f = get_model(name, head)
    about = json.loads(f.tokenizer.json_text)
    about["normalizer"] = None
    return dataclasses.replace(f, tokenizer=Tokenizer(json.dumps(about), f.tokenizer.special))


def simplify_answer(found):
    """An answer with its texts composed and its numbers rounded; places are left out."""
    if isinstance(found, str):
        return unicodedata.normalize("NFC", found)
    if isinstance(found, torch.Tensor):
        return simplify_answer(found.tolist())
    if isinstance(found, float):
        return round(found, 4)
    if hasattr(found, "_asdict"):
        return simplify_answer({k: v for k, v in found._asdict().items() if k != "span"})
    if dataclasses.is_dataclass(found):
        return simplify_answer({k: v for k, v in vars(found).items() if k not in ("start", "end", "spans", "span")})
    if isinstance(found, dict):
        return {simplify_answer(key): simplify_answer(value) for key, value in found.items()}
    return [simplify_answer(one) for one in found] if isinstance(found, list | tuple) else found


KOREAN = {
    ("gpt2", "lm"): {
        "generate": lambda f, n: f.generate(n("안녕하세요 여러분"), 6, temperature=0),
        "generate, bad words": lambda f, n: f.generate("the cat", 8, seed=1, bad_words=[n("날씨가")], stop=[n("좋")]),
        "translate": lambda f, n: f.translate(n("오늘은 날씨가"), n("영어"), n("한국어"), max_new_tokens=4),
        "summarise": lambda f, n: f.summarise(n("오늘은 날씨가 좋습니다"), max_new_tokens=4),
        "score": lambda f, n: f.score(n("오늘은 날씨가")),
        "embed": lambda f, n: f.embed(n("오늘은 날씨가"), level="word"),
        "neighbours": lambda f, n: f.neighbours(n("날씨가 좋습니다"), texts=[n("오늘은 날씨가"), n("여러분")]),
        "attention": lambda f, n: f.attention(n("오늘은 날씨가")).tokens,
        "augment": lambda f, n: (
            f.augment([{"text": n(VERB_LINES[1]), "label": n("가")}] * 2, label_filter=None, max_new_tokens=3).rows
        ),
    },
    ("bert", "mlm"): {"fill": lambda f, n: f.fill(n("오늘은 ___ 좋습니다"))},
    ("bert", "classify"): {"classify": lambda f, n: f.classify([n("오늘은 날씨가"), (n("오늘은"), n("여러분"))])},
    ("bert", "tag"): {"tag": lambda f, n: f.tag([n("오늘은 날씨가"), [n("오늘은"), n("여러분")]])},
    ("bert", "answer"): {"answer": lambda f, n: f.answer(n("오늘은"), n("여러분 날씨가 좋습니다"), best=3)},
    ("bert", "choose"): {"choose": lambda f, n: f.choose(n("오늘은"), [n("여러분"), n("날씨가")])},
    ("vectors", "none"): {"neighbours": lambda f, n: f.neighbours(n("날씨가"), 4)},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "head"), KOREAN)
def test_decomposed_korean_has_the_same_answer(name, head):
    f = get_model(name, head) if name == "vectors" else get_published_model(name, head)
    for verb, ask in KOREAN[name, head].items():
        both = [simplify_answer(ask(f, functools.partial(unicodedata.normalize, form))) for form in ("NFC", "NFD")]
        assert both[0] == both[1], verb


def test_places_are_those_of_the_text_that_was_given():
    text = unicodedata.normalize("NFD", "오늘은 날씨가 좋습니다")
    found = get_published_model("bert", "answer").answer("오늘은", text, best=5)
    assert all(text[one.start : one.end] == one.text for one in found)
    assert len({one.text for one in found}) > 1
    words = get_published_model("bert", "tag").tag(text)
    assert [text[word.start : word.end] for word in words] == text.split()
    assert [word.word for word in words] == text.split()


def test_advice_that_is_code_keeps_its_case():
    with pytest.raises(Error, match=r"\. formers\.interop\.word_vectors\.write_word_vectors\("):
        formers.export(formers.build("vectors", vocab=4, dim=2), "nowhere")
