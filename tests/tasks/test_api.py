"""The verbs of fine-tuned models, on models with random weights: forms, places and batches, not quality."""

from __future__ import annotations

import unicodedata

import pytest
import torch

import formers
from formers.errors import Error
from formers.registry import train_tokenizer
from formers.task import Task

TEXT = ["Anna lives in Seoul, and Bob lives in Paris.", "서울에 사는 안나는 파리에 간다.", "one two three"] * 4
ODD = ["Anna", "안나", "cafe\u0301 👩\u200d🚀!", "a" * 300, "서울에 사는 Bob.", "\u1100\u1161 NFD"]


def build_model(head, family="bert", labels=("no", "yes"), **more):
    tokenizer = train_tokenizer(family, TEXT, 300)
    sizes = {"dim": 16, "layers": 2, "heads": 2, "ff": 32, "context": 32}
    if family == "t5":
        sizes = {"dim": 16, "layers": 1, "heads": 2, "head_dim": 8, "ff": 32, "eos": tokenizer.id("eos"), "start": 0}
    former = formers.build(family, head=head, labels=list(labels), vocab=len(tokenizer), **sizes, **more)
    former.tokenizer = tokenizer
    with torch.no_grad():
        for weight in former.model.parameters():  # far from uniform answers
            weight.mul_(4 if weight.dim() > 1 else 1)
    return former


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_classify_one_or_many_in_any_company(family):
    former = build_model("classify", family)
    many = former.classify(ODD)
    for text, found in zip(ODD, many, strict=True):
        alone = former.classify(text)
        assert found.probabilities == pytest.approx(alone.probabilities, abs=1e-5)
        assert sum(found.probabilities.values()) == pytest.approx(1)
        assert found.label == max(found.probabilities, key=found.probabilities.get)
    ids = torch.tensor([[*former.tokenizer.encode("Anna")]])
    if family == "bert":
        want = former.logits(ids)[0].softmax(-1).tolist()
        assert list(many[0].probabilities.values()) == pytest.approx(want, abs=1e-5)


def test_pairs_and_long_texts():
    former = build_model("classify")
    assert former.classify(("Anna", "Bob")) == former.classify([("Anna", "Bob")])[0]
    assert former.classify(("Anna", "Bob")).probability != former.classify("Anna Bob").probability
    long = " ".join(TEXT * 50)
    assert 0 < former.classify(long).probability < 1
    with pytest.raises(Error, match=r"text 1 has [\d,]+ tokens, and 30 fit"):
        former.classify(long, long="error")
    assert former.classify(("Anna", long)).label in ("no", "yes")
    with pytest.warns(UserWarning, match="1 shorter side cut to fit into 32 tokens"):
        assert former.classify((long, long)).label in ("no", "yes")


def test_a_megabyte_is_read():
    assert build_model("classify").classify("가나다 라마 " * 60_000).label in ("no", "yes")


BROKEN = [
    ("", "text 1 is empty"),
    (["a", " "], "text 2 is empty"),
    ([], "there are no texts"),
    ([3], "text 1 is not text but 3"),
    ([("a", "b", "c")], "neither a text nor a pair"),
]


@pytest.mark.parametrize("verb", ["classify", "tag", "embed", "fill", "score", "generate", "answer", "choose"])
def test_a_table_is_no_list_of_texts(verb):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["a b", "b c"], "label": ["x", "y"]})
    heads = {"embed": "none", "fill": "mlm", "score": "mlm", "generate": "lm"}
    former = build_model(heads.get(verb, verb), "gpt2" if verb == "generate" else "bert")
    with pytest.raises(Error, match="a table with the columns 'text', 'label'"):
        getattr(former, verb)(table)
    if verb in ("tag", "embed", "fill", "score", "generate"):
        texts = [f"{text} ___" if verb == "fill" else text for text in table["text"]]
        assert len(getattr(former, verb)(pandas.Series(texts))) == 2


def test_pairs_or_single_texts_as_learned():
    former = build_model("classify")
    former.task = Task(takes_pairs=False, length=32).to_dict()
    assert former.classify("Anna\tBob").label in ("no", "yes")
    with pytest.raises(Error, match="text 2 is a pair, and this model has learned from single texts"):
        former.classify(["Anna", ("Anna", "Bob")])
    former.task = Task(takes_pairs=True, length=32).to_dict()
    assert former.classify(("Anna", "Bob")).label in ("no", "yes")
    with pytest.raises(Error, match="text 1 stands alone, and this model has learned from pairs"):
        former.classify("Anna")
    assert build_model("tag").tag([]) == []
    with pytest.raises(Error, match="question 1 has no context"):
        build_model("answer").answer("Who?")


@pytest.mark.parametrize(("texts", "match"), BROKEN)
def test_bad_texts_are_one_line(texts, match):
    with pytest.raises(Error, match=match) as error:
        build_model("classify").classify(texts)
    assert "\n" not in str(error.value)


def test_score_is_a_number():
    former = build_model("classify", labels=("score",))
    one = former.score(("Anna", "Bob"))
    assert former.score([("Anna", "Bob"), "x"])[0] == pytest.approx(one, abs=1e-5)
    with pytest.raises(Error, match="head 'classify' of 1 label does not classify"):
        former.classify("Anna")
    with pytest.raises(Error, match="head 'classify' of 2 labels does not score"):
        build_model("classify").score("Anna")


def test_tags_stand_where_the_words_are():
    former = build_model("tag", labels=("O", "X", "Y"))
    for text in [*ODD, " ".join(TEXT * 3)]:
        found = former.tag(text)
        assert all(text[w.start : w.end] == w.word for w in found)
        assert "".join(w.word for w in found) == "".join(text.split())
        again = former.tag([text, "Bob"])[0]
        assert [w.tag for w in again] == [w.tag for w in found]
    words = former.tag([["New", "York", "서울에"]])[0]
    assert [(w.word, w.start) for w in words] == [("New", 0), ("York", 4), ("서울에", 9)]
    with pytest.raises(Error, match="has an empty word, or one that is not text"):
        former.tag([["a", ""]])


def test_answers_stand_in_their_context():
    former = build_model("answer")
    context = " ".join(TEXT * 4)
    found = former.answer("where?", context, best=4)
    assert len(found) == 4
    assert all(context[a.start : a.end] == a.text and a.text for a in found)
    assert [a.score for a in found] == sorted((a.score for a in found), reverse=True)
    pairs = [("where?", context), ("who?", "Bob lives."), ("누구?", "안나는 파리에 간다.")]
    alone = [former.answer(*pair) for pair in pairs]
    for one, other in zip(former.answer(pairs), alone, strict=True):
        assert (one.text, one.start, one.end) == (other.text, other.start, other.end)
    both = former.answer("who?", "Bob", best=20, abstain=True)
    assert any(a.start == -1 and a.text == "" for a in both)
    assert all(a.start >= 0 for a in former.answer("who?", "Bob", best=20))
    with pytest.raises(Error, match=r"question, with its context, 1 has [\d,]+ tokens"):
        former.answer("where?", context, long="error")
    with pytest.raises(Error, match="question 1 has no context"):
        former.answer(["who?"])
    for best in (0, -1):
        with pytest.raises(Error, match=f"best must be at least 1, got {best}"):
            former.answer("where?", context, best=best)
    assert former.answer("where?", context).probability == pytest.approx(
        former.answer("where?", context, best=5)[0].probability
    ), "of five, though one is asked for"


def test_the_best_span_is_the_best_of_all():
    """Against a plain search over all beginnings and ends of a short context."""
    former = build_model("answer")
    context, question = "Anna lives in Seoul, and Bob.", "who?"
    ids = former.tokenizer.encode(question, context)
    made = former.tokenizer.backend.encode(question, context)
    scores = former.logits(torch.tensor([ids]), segments=torch.tensor([made.type_ids]))[0]
    inside = [i for i, s in enumerate(made.sequence_ids) if s == 1]
    value = scores.detach().numpy()
    spans = [(i, j) for i in inside for j in inside if i <= j]
    best = max(spans, key=lambda p: value[p[0], 0] + value[p[1], 1])
    want = context[made.offsets[best[0]][0] : made.offsets[best[1]][1]]
    assert former.answer(question, context).text == want.strip()


def test_choices():
    former = build_model("choose")
    found = former.choose("Anna lives", ["in Seoul", "in Paris", "two"])
    assert sum(found.probabilities) == pytest.approx(1)
    assert found.text == ["in Seoul", "in Paris", "two"][found.index]
    turned = former.choose("Anna lives", ["two", "in Paris", "in Seoul"])
    assert turned.probabilities == pytest.approx(found.probabilities[::-1], abs=1e-5)
    many = former.choose([("Anna lives", ["in Seoul", "in Paris", "two"]), ("Bob", ["one", "two"])])
    assert many[0].probabilities == pytest.approx(found.probabilities, abs=1e-5)
    with pytest.raises(Error, match=r"question 1 has [\d,]+ tokens, and \d+ fit"):
        former.choose(" ".join(TEXT), ["one", "two"], long="error")
    with pytest.raises(Error, match=r"question 1 has 1 choice"):
        former.choose("Anna", ["one"])
    for odd in (["a", "b"], [("a", "b")], ["Anna lives"]):
        with pytest.raises(Error, match="question 1 has no choices"):
            former.choose(odd)


def test_a_model_of_another_kind_says_what_to_do():
    with pytest.raises(Error, match="head 'mlm' does not classify. It can .*; to classify, run formers finetune"):
        build_model("mlm").classify("Anna")
    former = build_model("classify")
    former.task = {"name": "regress"}
    with pytest.raises(Error, match="trained to regress, and does not classify. It can .*score"):
        former.classify("Anna")


def test_entities_are_tags_put_together():
    former = build_model("tag", labels=("O", "B-PER", "I-PER", "B-LOC"))
    for text in (*TEXT[:2], ["Anna", "Kim", "in", "Seoul"], unicodedata.normalize("NFD", TEXT[1])):
        words, found = former.tag([text])[0], former.tag([text], entities=True)[0]
        whole = text if isinstance(text, str) else " ".join(text)
        assert [whole[e.start : e.end] for e in found] == [e.text for e in found]
        marked = {w.start for w in words if w.tag != "O"}
        assert {w.start for w in words for e in found if e.start <= w.start < e.end} == marked
        assert all(e.label in ("PER", "LOC") and 0 < e.score <= 1 for e in found)
    assert former.tag(TEXT[0], entities=True) == former.tag([TEXT[0]], entities=True)[0]
    with pytest.raises(Error, match="mark no entities"):
        build_model("tag", labels=("NOUN", "VERB")).tag("Anna", entities=True)
