"""Test sets made by rule: answers checked by other means, the same rows for a seed, prompts beside the tables."""

from __future__ import annotations

import re

import pytest

from formers import Error
from formers.evaluation.few_shot import evaluate_shots
from formers.evaluation.synthetic_sets import (
    ARITHMETIC,
    SCRAMBLES,
    SETS,
    find_set_prompt,
    make_set,
    spoil_sentence,
    write_synthetic_sets,
)
from formers.tasks.examples import read_examples
from tests.small_models import build_language_model

DOCUMENTS = {
    "en": ["The quick brown foxes jumped over several sleeping animals, and the hunters were surprised by them. "
           "A farmer from the village was planting potatoes in the garden with his children."],
    "ko": ["대한민국의 국회의원들은 법률안을 신속하게 처리하였으며 지방자치단체는 이를 환영하였다. "
           "우리는 내일 학교에 가지 않는다."],
}  # fmt: skip
OPERATORS = {"plus": "+", "minus": "-", "times": "*", "더하기": "+", "빼기": "-", "곱하기": "*"}


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic(name, language):
    rows = make_set(name, language, [], 200, 3)
    assert len({text for text, _ in rows}) == 200
    assert rows == make_set(name, language, [], 200, 3)
    assert rows != make_set(name, language, [], 200, 4)
    numbers = [int(n) for text, _ in rows for n in re.findall(r"\d+", text)]
    assert 10 ** int(name[-1]) * 0.8 < max(numbers) < 10 ** int(name[-1])
    for text, answer in rows:
        for word, sign in OPERATORS.items():
            text = text.replace(f" {word} ", sign)
        assert eval(re.search(r"[\d+*()-]*\d\)?", text)[0]) == int(answer)  # what Python says of the problem


def test_korean_particles_follow_the_number():
    rows = make_set("add2", "ko", [], 300, 0)
    particles = {(text.split()[2][-2], text.split()[2][-1]) for text, _ in rows}
    assert particles == {(d, "는" if d in "2459" else "은") for d in "0123456789"}


@pytest.mark.parametrize("language", ["en", "ko"])
@pytest.mark.parametrize("name", SCRAMBLES)
def test_scrambled_words(name, language):
    rows = make_set(name, language, DOCUMENTS[language], 100, 0)
    assert rows
    for text, word in rows:
        assert text != word
        if name == "insertion":
            assert text[::2] == word
        else:
            assert sorted(text) == sorted(word)
        if name == "cycle":
            assert text in word + word
        if name == "reversal":
            assert text == word[::-1]
        if name.startswith("anagram"):
            edge = int(name[-1])
            assert (text[:edge], text[-edge:]) == (word[:edge], word[-edge:])


@pytest.mark.parametrize("language", ["en", "ko"])
def test_corrections(language):
    import random

    sentences = [s.strip() + "." for s in DOCUMENTS[language][0].split(".") if s.strip()]
    rules = set()
    for seed in range(80):
        for sentence in sentences:
            text, target, rule = spoil_sentence(sentence, language, random.Random(seed))
            assert target == sentence != text
            rules.add(rule)
            changed = set(text.split()) ^ set(sentence.split())
            assert len(changed) <= 3  # one error, and no more
    common = {"repetition", "order"}
    assert rules >= common | (
        {"agreement", "dropped article", "preposition"} if language == "en" else {"particle", "spacing", "spelling"}
    )


def test_tables_and_their_prompts(tmp_path):
    paths = write_synthetic_sets(tmp_path, ["add2", "cycle", "correction"], count=12, seed=1)
    assert [path.name for path in paths][:3] == ["add2.en.tsv", "cycle.en.tsv", "correction.en.tsv"]
    again = write_synthetic_sets(tmp_path / "more", ["add2", "cycle", "correction"], count=12, seed=1)
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]
    for path in paths:
        lines = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()[1:]]
        rows = read_examples(path, "translate", {"target": "target"}).rows
        assert [[row["text"], row["target"]] for row in rows] == [line[:2] for line in lines]
        assert len(rows) == 12
    assert find_set_prompt(paths[1]).template == "{text} = {answer}"
    assert find_set_prompt(tmp_path / "sets.json") is None
    f = build_language_model("gpt2", context=512)
    result = evaluate_shots(f, paths[0], 2, draws=1, limit=2, max_new_tokens=3)
    assert (result.task, result.num_examples) == ("complete", 2)
    assert re.fullmatch(r"(Q: What is \d+ plus \d+\?\nA: \d+\n\n){2}Q: What is \d+ plus \d+\?\nA: ", result.prompt)
    with pytest.raises(Error, match="exists already"):
        write_synthetic_sets(tmp_path, ["add2"])
    for wrong, message in (
        ({"names": ["add9"]}, "there is no set 'add9'"), ({"languages": ["de"]}, "no sets in 'de'"),
        ({"count": 0}, "a set of 0 rows"), ({"text": ["a"]}, "one language"),
    ):  # fmt: skip
        with pytest.raises(Error, match=message):
            write_synthetic_sets(tmp_path / "x", **wrong)
    assert len(SETS) == 16
