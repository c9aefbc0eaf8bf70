"""generate, translate, summarise, fill on a loaded model: strings, lists and pieces; rules of a checkpoint's files."""

from __future__ import annotations

import json

import pytest
import torch

import formers
from formers import Error, registry
from formers.generation import translate as prompts
from formers.generation.decoding import DecodingBatch, decode_batch
from formers.generation.logits_processors import build_constraints, read_search_options
from formers.generation.options import Options
from formers.registry import train_tokenizer

LINES = [
    "the cat sat on the mat and the dog sat on the log",
    "안녕하세요 여러분 오늘은 날씨가 좋습니다",
    "one two three\n\nfour",
] * 4


def build_model(family="gpt2", **more):
    """A small model with a tokenizer of its family's kind; its texts are nonsense, but never the same token only."""
    sizes = {"dim": 16, "layers": 1, "init": 0.5}
    sizes |= {"layers": 2} if family == "gnmt" else {}
    sizes |= {"heads": 2} if family not in ("seq2seq", "gnmt") else {}
    sizes |= {"context": 48} if family in ("gpt2", "bart", "transformer") else {}
    tokenizer = registry.train_tokenizer(family, LINES, 300)
    roles = {role: tokenizer.id(role) for role in ("pad", "bos", "eos")}
    f = formers.build(family, vocab=len(tokenizer), seed=3, **{**sizes, **roles, **more})
    f.tokenizer = tokenizer
    return f


def test_a_string_gives_a_string_and_a_list_a_list():
    f = build_model()
    one = f.generate("the cat", 8, temperature=0)
    assert isinstance(one, str)
    assert one
    many = f.generate(["the cat", "안녕", "the cat"], 8, temperature=0)
    assert many[0] == many[2] == one
    assert many[1] == formers.generate(f, "안녕", 8, temperature=0)
    assert f.generate([], 8) == []
    several = f.generate("the cat", 8, num_samples=3, seed=1)
    assert len(set(several)) == 3
    assert several[0] == f.generate("the cat", 8, seed=1), "the first of several is the one alone"
    assert f.generate(["the cat", "안녕"], 8, num_samples=3, seed=1)[0] == several
    best = f.generate("the cat", 8, num_beams=3, num_samples=2)
    assert best[0] == f.generate("the cat", 8, num_beams=3)
    assert all("\ufffd" not in text for text in (one, *many, *several, *best))


def test_the_text_follows_the_prompt():
    for family in ("gpt2", "gpt", "bloom"):
        f = build_model(family)
        ids = f.tokenizer.encode("the cat", special=False)
        options = Options(temperature=0, max_new_tokens=6, bad_words=("cat",))
        new = decode_batch(DecodingBatch(f, [ids], 6), build_constraints(f, options))[0][0].ids
        said = f.generate("the cat", 6, temperature=0, bad_words="cat")
        assert f.tokenizer.decode([*ids, *new]) == f.tokenizer.decode(ids) + said


@pytest.mark.parametrize("family", ["gpt2", "t5", "bart", "seq2seq", "transformer", "gnmt"])
def test_pieces_joined_are_the_text(family):
    f = build_model(family)
    for how in ({"temperature": 0}, {"seed": 4}, {"seed": 2, "top_k": 30, "stop": ["a", "니"]}):
        pieces = list(f.generate("the cat 안녕", 12, stream=True, **how))
        assert "".join(pieces) == f.generate("the cat 안녕", 12, **how)
        assert all(pieces)
        assert "\ufffd" not in "".join(pieces)
    assert len(list(f.generate("the cat", 12, stream=True, seed=4))) > 1, "piece by piece"


def test_stop_strings_end_draws_and_beams():
    f = build_model()
    for how in ({"temperature": 0}, {"seed": 5}, {"num_beams": 3}):
        whole = f.generate("the", 12, **how)
        stop = whole[len(whole) // 2 :][:2]
        said = f.generate(["the", "안녕하"], 12, stop=[stop], **how)
        assert all(stop not in text for text in said)
        if "num_beams" not in how:
            assert said[0] == whole[: whole.index(stop)]


def test_banned_words_do_not_come():
    f = build_model()
    said = f.generate("the", 12, temperature=0)
    first = f.tokenizer.decode(f.tokenizer.encode(said, special=False)[:1])
    assert first.strip() not in f.generate("the", 1, temperature=0, bad_words=[first.strip()])
    for how in ({"num_beams": 2}, {"seed": 3}):
        ids = [i for i in range(len(f.tokenizer)) if i % 3]
        options = Options(bad_words=ids, max_new_tokens=6, **how)
        made = decode_batch(DecodingBatch(f, [[5, 6]], 6, options.rows_per_prompt), build_constraints(f, options))
        assert made[0][0].ids
        assert all(token % 3 == 0 for token in made[0][0].ids)
    assert build_constraints(f, Options(bad_words="\n")).banned_ids == tuple(f.tokenizer.encode("\n", special=False)), (
        "and no space"
    )
    for word in ("", (), 99999, (1, 99999), -1):
        with pytest.raises(Error, match="cannot be banned"):
            f.generate("the", 3, bad_words=[word])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: f.generate(5), "5 is not text"), (lambda f: f.generate([None]), "a prompt must be text"),
        (lambda f: f.generate("a", 0), "max_new_tokens must be at least 1"),
        (lambda f: f.generate(["a"], stream=True), "one text is streamed at a time"),
        (lambda f: f.generate("a", stream=True, num_beams=2), "one text is streamed at a time"),
        (lambda f: f.generate("a", topk=2), "unknown option 'topk'. Did you mean 'top_k'?"),
        (lambda f: f.generate("a", min_new_tokens=99), "at least 99 tokens are asked for, and at most 64"),
        (lambda f: f.translate("a"), "must be told the target language"),
        (lambda f: f.translate("a", to="French", examples=["x"]), "an example must be a pair"),
    ],
)  # fmt: skip
def test_what_makes_no_sense(call, message):
    with pytest.raises(Error, match=message):
        call(build_model())


def test_odd_texts():
    f = build_model()
    assert isinstance(f.generate("", 4), str), "an empty prompt begins with the begin mark"
    none = build_model(bos=None, eos=None)
    with pytest.raises(Error, match="the prompt is empty"):
        none.generate("", 4)
    with pytest.warns(UserWarning, match="tokens is longer than the context: its last 48 are read"):
        long = f.generate("the cat sat on the mat. " * 4500, 3, temperature=0)
    with pytest.warns(UserWarning, match="longer than the context"):
        assert long == f.generate("the cat sat on the mat. " * 400, 3, temperature=0)
    assert len(none.tokenizer.encode(none.generate("the", 400, seed=1), special=False)) > 48, "longer than the context"
    pair = build_model("bart")
    with pytest.raises(Error, match="tokens are more than the context of 48"):
        pair.generate("the cat sat on the mat. " * 400, 3)
    with pytest.raises(Error, match="the text is empty"):
        pair.generate(" ", 3)
    encoder = formers.build("bert", vocab=30, dim=8, heads=2, ff=8, layers=1)
    encoder.tokenizer = train_tokenizer("wordpiece", LINES, 100)
    with pytest.raises(Error, match="does not generate. It can .*; to continue text, load a decoder"):
        encoder.generate("the")


def test_rules_of_a_checkpoint():
    f = build_model("bart")
    said = {"forced_bos_token_id": 7, "forced_eos_token_id": 2, "suppress_tokens": [9, 10],
            "bad_words_ids": [[11], [8, 12], [9999], [5, -1], [2]],
            "begin_suppress_tokens": [13], "eos_token_id": [2, 3]}  # fmt: skip
    f.source_files["generation_config.json"] = json.dumps(said).encode()
    constraints = build_constraints(f, Options(max_new_tokens=5, temperature=0, min_new_tokens=3))
    assert (constraints.forced_first, constraints.forced_last) == ((7,), (2,))
    assert (constraints.end_ids, constraints.banned_ids) == ((2, 3), (9, 10, 11))
    flat, texts = torch.zeros(1, len(f.tokenizer)), torch.tensor([[0, 8]])

    def list_allowed(step, page=texts):
        return set((constraints.apply(flat, page, step)[0] > -9).nonzero().flatten().tolist())

    every = set(range(len(f.tokenizer)))
    assert list_allowed(0) == {7}
    assert list_allowed(1) == every - {2, 3, 9, 10, 11, 12, 13}, "13 may not be the first that is chosen freely"
    assert list_allowed(3) == every - {9, 10, 11, 12}
    assert list_allowed(3, torch.tensor([[0, 5]])) == every - {9, 10, 11}
    assert list_allowed(4) == {2}
    made = decode_batch(DecodingBatch(f, [[0, 5, 6, 2]], 5), constraints)[0][0].ids
    assert made[0] == 7
    assert not {9, 10, 11} & set(made)
    for wrong in (
        {"suppress_tokens": ["x"]},
        {"forced_bos_token_id": 1.5},
        {"bad_words_ids": [7]},
        {"eos_token_id": "x"},
    ):
        f.source_files["generation_config.json"] = json.dumps(wrong).encode()
        with pytest.raises(Error, match=r"is not a token|is not a list of token lists") as caught:
            f.generate("the cat", 3)
        assert caught.value.where == "generation_config.json"


def test_a_marian_never_writes_the_pad():
    f = build_model("transformer")
    with torch.no_grad():
        f.model.parts["lm"].out.bias[f.config.pad] = 99.0
    assert f.config.pad in build_constraints(f, Options()).banned_ids
    for how in ({"temperature": 0}, {"num_beams": 2}, {"seed": 1}):
        options = Options(max_new_tokens=6, **how)
        assert (
            f.config.pad
            not in decode_batch(DecodingBatch(f, [[5, 6]], 6, options.rows_per_prompt), build_constraints(f, options))[
                0
            ][0].ids
        )


def test_how_a_checkpoint_wants_to_be_searched():
    f = build_model("t5")
    assert read_search_options(f) == {"max_new_tokens": 64, "min_new_tokens": 0, "no_repeat_ngram": None}
    said = {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "max_length": 9, "min_length": 4,
            "no_repeat_ngram_size": 3}  # fmt: skip
    f.source_files["generation_config.json"] = json.dumps(said).encode()
    own = {
        "num_beams": 3,
        "length_penalty": 2.0,
        "early_stopping": True,
        "max_new_tokens": 8,
        "min_new_tokens": 3,
        "no_repeat_ngram": 3,
    }
    assert read_search_options(f) == own
    text = "the cat sat"
    assert f.summarise(text) == f.generate("summarize: " + text, **own)
    assert f.summarise(text, prefix="") == f.generate(text, **own)
    assert f.summarise(text, max_new_tokens=2) == f.generate(
        "summarize: " + text, **own | {"max_new_tokens": 2, "min_new_tokens": 0}
    )
    assert f.summarise(text, top_k=3) == f.generate(
        "summarize: " + text, 8, top_k=3, min_new_tokens=3, no_repeat_ngram=3
    )
    greedy = {"temperature": 0, "min_new_tokens": 3, "no_repeat_ngram": 3}
    assert f.translate(text, "German", num_beams=1) == f.generate("translate English to German: " + text, 8, **greedy)
    tasks = {"s": {"prefix": "summarize: ", "num_beams": 2, "max_length": 6}, "x": {"prefix": "y"}, "z": 3}
    f.source_files["config.json"] = json.dumps({"task_specific_params": tasks}).encode()
    want = own | {"num_beams": 2, "max_new_tokens": 5}
    assert f.summarise([text]) == f.generate(["summarize: " + text], **want)
    f.source_files["generation_config.json"] = b'{"num_beams": "many"}'
    with pytest.raises(Error, match="num_beams: 'many' is not a valid value"):
        f.summarise(text, prefix="")


def test_decoders_are_prompted():
    f = build_model(context=200)
    want = f.generate(prompts.make_summary_prompt("the cat sat"), 9, temperature=0, stop="\n\n").strip()
    assert f.summarise("the cat sat", max_new_tokens=9) == want
    assert f.summarise(["the cat sat"], max_new_tokens=9) == [want]
    shots = [("one", "하나")]
    prompt = prompts.make_translation_prompt("two", "Korean", examples=shots)
    assert prompt == "English: one\nKorean: 하나\n\nEnglish: two\nKorean:"
    assert f.translate("two", "Korean", examples=shots, max_new_tokens=9, seed=2, top_k=9) == (
        f.generate(prompt, 9, seed=2, top_k=9, stop="\n").strip()
    )
    assert prompts.make_translation_prompt("two", "Korean") == "Translate English to Korean.\n\nEnglish: two\nKorean:"
    assert prompts.make_few_shot_prompt("3?", [("1?", "2")], task="Count.") == "Count.\n\nQ: 1?\nA: 2\n\nQ: 3?\nA:"
    with pytest.raises(Error, match="separator must not be empty"):
        prompts.make_few_shot_prompt("x", separator="")


def test_languages():
    f = build_model("mbart")
    code = f.tokenizer.backend.token_to_id
    assert code("ko_KR") is not None
    plain = f.tokenizer.encode("the cat")
    here = next(token for token in plain if (f.tokenizer.backend.id_to_token(token) or "")[2:3] == "_")
    swapped = [code("ro_RO") if token == here else token for token in plain]
    options = Options(temperature=0, max_new_tokens=6)
    for start, more in ((None, {"start": code("ko_KR")}), (code("de_DE"), {"start": code("ko_KR")}), (2, {})):
        g = build_model("mbart", start=start)
        want = decode_batch(
            DecodingBatch(g, [swapped], 6, **more), build_constraints(g, options, None if more else code("ko_KR"))
        )[0][0].ids
        assert more or want[0] == code("ko_KR")
        got = g.translate("the cat", to="ko_KR", source="ro_RO", max_new_tokens=6)
        assert got == g.tokenizer.decode(want)
    for wrong in ("Korean", "xx_XX"):
        with pytest.raises(Error, match="not a language of this mBART"):
            f.translate("the cat", to=wrong)
    with pytest.raises(Error, match="transformer has fixed languages"):
        build_model("transformer").translate("the cat", to="German")
    with pytest.raises(Error, match="examples apply only to decoders"):
        f.translate("the cat", examples=[("a", "b")])


def test_sources_are_framed_as_in_training():
    """A recurrent pair trained by formers sees the end mark after a source, and no other mark."""
    f = build_model("gnmt")
    ids = [*f.tokenizer.encode("the cat", special=False), f.tokenizer.id("eos")]
    want = decode_batch(DecodingBatch(f, [ids], 6), build_constraints(f, Options(temperature=0, max_new_tokens=6)))[0][
        0
    ].ids
    assert f.translate("the cat", max_new_tokens=6) == f.tokenizer.decode(want)


def flatten_guesses(guesses):
    return [g for blank in guesses for g in blank] if isinstance(guesses[0], list) else guesses


def test_blanks_in_batches():
    f = formers.build("bert", head="mlm", vocab=120, context=24, dim=16, layers=1, heads=2, ff=20, init=0.3)
    f.tokenizer = train_tokenizer("wordpiece", LINES, 120)
    texts = ["the ___ sat", "안녕하세요 ___ 오늘은 ___ 좋습니다", "___"]
    found = f.fill(texts, 3)
    for text, guesses in zip(texts, found, strict=True):
        same = f.fill(text, 3)
        assert [g.text for g in flatten_guesses(same)] == [g.text for g in flatten_guesses(guesses)]
        assert [g.probability for g in flatten_guesses(same)] == pytest.approx(
            [g.probability for g in flatten_guesses(guesses)], rel=1e-4
        )
    two = found[1]
    assert len(two) == 2
    assert [len(blank) for blank in two] == [3, 3]
    ids = f.tokenizer.encode(texts[1].replace("___", "[MASK]"))
    chances = f.logits(torch.tensor([ids]))[0].softmax(-1)
    places = [i for i, token in enumerate(ids) if token == f.tokenizer.id("mask")]
    for place, guesses in zip(places, two, strict=True):
        best = chances[place, : len(f.tokenizer)].topk(3)
        assert [g.token for g in guesses] == [f.tokenizer.get_token_text(i) for i in best.indices.tolist()]
        assert [g.probability for g in guesses] == pytest.approx(best.values.tolist(), abs=1e-6)
    assert two[0][0].text == two[1][0].text != two[1][1].text
    assert len(f.fill(["the ___ sat"] * 70, 1)) == 70
    assert all(guess.token for guess in f.fill("the ___", 999)), "the model has more rows than there are pieces"
    assert f.fill([]) == []
