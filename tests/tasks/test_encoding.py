"""How rows become tokens: marks, windows, first pieces of words, places of answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import formers
from formers.batch import IGNORE_INDEX
from formers.data.encoded_examples import group_by_length
from formers.errors import Error
from formers.registry import train_tokenizer
from formers.task import Task
from formers.tasks.encoding import TaskEncoder, encode_examples, find_first_pieces

TEXT = [
    "Anna lives in Seoul, and Bob lives in Paris.",
    "서울에 사는 안나는 파리에 간다.",
    "wordpieces unbelievable",
] * 4
SIZES = {"dim": 16, "layers": 1, "heads": 2, "ff": 32}


def build_encoder(family="bert", task=Task(), context=24, pieces=300):
    tokenizer = train_tokenizer(family, TEXT, pieces)
    config = {**SIZES, "context": context}
    if family == "gpt":
        del config["ff"]
    former = formers.build(family, head="classify", vocab=len(tokenizer), **config)
    former.tokenizer = tokenizer
    return TaskEncoder.from_former(former, task)


def test_a_pair_is_laid_out_as_the_tokenizer_does_it():
    read, rows = build_encoder(), [{"text": "Anna lives", "other": "Bob lives", "label": "b"}]
    data = encode_examples(Task(), rows, read, ("a", "b"))
    assert data.ids.tolist() == read.tokenizer.encode("Anna lives", "Bob lives")
    assert data.segments.tolist() == read.tokenizer.backend.encode("Anna lives", "Bob lives").type_ids
    assert data.answers.tolist() == [1]
    gpt = build_encoder("gpt")
    ids = encode_examples(Task(), [{"text": "Anna", "other": "Bob", "label": "a"}], gpt, ("a", "b")).ids.tolist()
    special = [gpt.tokenizer.id(role) for role in ("bos", "sep", "cls")]
    assert [i for i in ids if i in special] == special, "start, delimiter, extract (GPT, §3.3)"


def test_windows_cover_a_long_text_and_nothing_is_lost():
    task = Task(length=16, stride=4)
    read = build_encoder(task=task)
    text = " ".join(TEXT * 5)
    data = encode_examples(task, [{"text": "Anna", "label": "a"}, {"text": text, "label": "b"}], read, ("a", "b"))
    assert data.row_index.tolist() == [0] + [1] * (len(data) - 1)
    assert data.longest <= 16
    whole = read.tokenize([text])[0].tolist()
    parts = [data.ids[a + 1 : b - 1].tolist() for a, b in zip(data.starts[1:], data.starts[2:], strict=False)]
    joined = parts[0] + [token for part in parts[1:] for token in part[4:]]
    assert joined == whole
    with pytest.warns(UserWarning, match="1 text cut"):
        cut = encode_examples(Task(length=16, long="cut"), [{"text": text}], read, ())
    assert len(cut) == 1
    assert cut.ids.tolist()[1:-1] == whole[:14]
    with pytest.raises(Error, match=r"text 1 has [\d,]+ tokens, and 14 fit"):
        encode_examples(Task(length=16, long="error"), [{"text": text}], read, ())


def test_labels_that_training_has_not_seen_are_named():
    with pytest.raises(Error, match="the label 'c' was not seen in training. Known labels: a, b"):
        encode_examples(Task(), [{"text": "x", "label": "c"}], build_encoder(), ("a", "b"))


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "gpt"])
def test_the_first_piece_of_each_word_answers_for_it(family):
    read = build_encoder(family, context=64)
    words = ["unbelievable", "서울에", "Anna", ".", "e\u0301te\u0301", "👩\u200d🚀", "lives"]
    text = " ".join(words)
    _, offsets = read.tokenize_with_offsets([text])[0]
    found = find_first_pieces(words, offsets)
    asked = [w for w in found if w >= 0]
    assert asked == sorted(set(asked))
    assert {0, 1, 2, 3, 6} <= set(asked)
    for word, (begin, end) in zip(found, offsets, strict=True):
        if word >= 0:
            at = len(" ".join(words[:word])) + (word > 0)
            assert begin <= at < max(end, begin + 1) or text[begin:at].isspace()
    tags = ["A", "B", "C", "O", "O", "O", "D"]
    labels = ("O", "A", "B", "C", "D")
    data = encode_examples(Task(name="tag", kind="tags"), [{"words": words, "tags": tags}], read, labels)
    at = data.labels != IGNORE_INDEX
    assert [labels[i] for i in data.labels[at]] == [tags[w] for w in data.offsets[at, 0]]


@given(
    st.lists(st.text(min_size=1, max_size=6).filter(lambda t: t.strip() == t and " " not in t), min_size=1, max_size=6)
)
def test_no_word_is_asked_twice(words):
    read = READER[0]
    _, offsets = read.tokenize_with_offsets([" ".join(words)])[0]
    asked = [w for w in find_first_pieces(words, offsets) if w >= 0]
    assert asked == sorted(set(asked))
    assert all(w < len(words) for w in asked)


READER = [build_encoder("roberta", context=64)]


def test_tags_over_windows_are_asked_once_each():
    task = Task(name="tag", kind="tags", length=16, stride=6)
    read = build_encoder(task=task)
    words = " ".join(TEXT).split()
    tags = [str(i % 3) for i in range(len(words))]
    data = encode_examples(task, [{"words": words, "tags": tags}], read, ("0", "1", "2"))
    at = data.labels != IGNORE_INDEX
    assert len(data) > 3
    assert sorted(data.offsets[at, 0].tolist()) == list(range(len(words)))
    assert [str(i) for i in data.labels[at]] == [tags[w] for w in data.offsets[at, 0]]


def test_an_answer_is_found_in_the_windows_that_hold_it():
    task = Task(name="answer", kind="span", length=24, stride=8)
    read = build_encoder(task=task)
    context = " ".join(TEXT)
    start = context.rindex("파리에")
    row = {"question": "Anna?", "context": context, "answers": [{"text": "파리에", "start": start}]}
    data = encode_examples(task, [row], read)
    assert len(data) > 2
    found = 0
    for number in range(len(data)):
        first, last = data.answers[number]
        places = data.offsets[data.starts[number] : data.starts[number + 1]]
        if first:
            found += 1
            assert context[places[first, 0] : places[last, 1]] == "파리에"
        else:
            inside = places[places[:, 0] >= 0]
            assert inside[0, 0] > start or inside[-1, 1] < start + 3, "a window that holds the answer says so"
    assert found >= 1
    none = encode_examples(task, [{"question": "?", "context": "Anna", "answers": []}], read)
    assert none.answers.tolist() == [[0, 0]]


def test_portions_hold_every_example_once():
    sizes = np.array([5, 1, 9, 2, 2, 30, 4])
    runs = list(group_by_length(sizes, 20))
    assert sorted(np.concatenate(runs).tolist()) == list(range(7))
    assert all(len(run) == 1 or len(run) * sizes[run].max() <= 20 for run in runs)


LONG = " ".join(TEXT * 3)
CUT = [
    (Task(length=16), {"text": LONG, "other": LONG}, "1 shorter side"),
    (Task(length=16, long="cut"), {"text": LONG}, "1 text"),
    (Task(name="choose", kind="choice", length=16), {"text": LONG, "choices": ["a", "b"]}, "1 question"),
    (
        Task(name="choose", kind="choice", length=16),
        {"text": "Anna", "choices": [LONG, "b"]},
        "1 question and 1 choice",
    ),
    (Task(name="answer", kind="span", length=16), {"question": LONG, "context": "Anna"}, "1 question"),
]


@pytest.mark.parametrize(("task", "row", "said"), CUT)
def test_nothing_is_cut_in_silence(task, row, said):
    read = build_encoder(task=task)
    with pytest.warns(UserWarning, match=f"{said} cut to fit into 16 tokens"):
        assert encode_examples(task, [row], read).longest <= 16
    with pytest.raises(Error, match=r"(text|question|question, with its context,) 1 has [\d,]+ tokens, and \d+ fit"):
        encode_examples(replace(task, long="error"), [row], read)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("task", "row"),
    [
        (Task(length=16), {"text": LONG}),
        (Task(length=16), {"text": LONG, "other": "Anna"}),
        (Task(name="answer", kind="span", length=16), {"question": "Anna", "context": LONG}),
        (Task(name="choose", kind="choice", length=16), {"text": "Anna", "choices": ["a", "b"]}),
    ],
)
def test_windows_lose_nothing_and_say_nothing(task, row):
    assert len(encode_examples(task, [row], build_encoder(task=task)))
