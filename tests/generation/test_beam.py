"""Greedy and beam search token for token as transformers does them, for every family that it has; penalties by hand."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import pytest
import torch

import formers
import formers.nn.attention.context
from formers.errors import NonFinite
from formers.generation.decoding import DecodingBatch, continue_ids, decode_batch
from formers.generation.logits_processors import build_constraints
from formers.generation.options import Options
from formers.inputs import ModelInputs
from tests.parity import xlnet_reference
from tests.parity.cases import CASES, VOCAB, Case, build_reference
from tests.tolerance import Margins

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
WRITERS = {
    "OpenAIGPT": "LMHeadModel", "GPT2": "LMHeadModel", "GPTNeo": "ForCausalLM", "GPTJ": "ForCausalLM",
    "GPTNeoX": "ForCausalLM", "Bloom": "ForCausalLM", "Marian": "MTModel", "Bart": "ForConditionalGeneration",
    "MBart": "ForConditionalGeneration", "SwitchTransformers": "ForConditionalGeneration",
    "T5": "ForConditionalGeneration", "MT5": "ForConditionalGeneration",
}  # fmt: skip
FIRST_SEEDS = {"SwitchTransformers": 3}  # with 0, 1 and 2 choices are so close that rounding decides
SEARCHES = [case for case in CASES if WRITERS.get(case.family) == case.ending]
SEARCHES += [Case("XLNet", "LMHeadModel", seed) for seed in (0, 1)]
SEARCHES = [
    pytest.param(
        Case(c.family, c.ending, c.seed + FIRST_SEEDS.get(c.family, 0)),
        id=c.name,
        marks=pytest.mark.full if c.seed else (),
    )
    for c in SEARCHES
]
# Our options, and theirs by name.
NAMES = {
    "num_beams": "num_beams", "num_samples": "num_return_sequences", "length_penalty": "length_penalty",
    "early_stopping": "early_stopping", "no_repeat_ngram": "no_repeat_ngram_size",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_new_tokens", "max_new_tokens": "max_new_tokens",
}  # fmt: skip
HOW = [
    {"num_beams": 4, "num_samples": 4},
    {"num_beams": 3, "num_samples": 2, "length_penalty": 0.0, "early_stopping": True},
    {"num_beams": 3, "num_samples": 3, "length_penalty": 2.0, "early_stopping": "never", "no_repeat_ngram": 2},
    {"num_beams": 2, "length_penalty": -1.0, "early_stopping": False, "min_new_tokens": 4, "repetition_penalty": 1.7},
    {"num_beams": 5, "num_samples": 5, "early_stopping": "never", "length_penalty": -0.5, "no_repeat_ngram": 3,
        "min_new_tokens": 2},
    {"no_repeat_ngram": 2},
    {"repetition_penalty": 1.8, "min_new_tokens": 6},
]  # fmt: skip


def pair_of(case, folder):
    """Their model and ours; an end mark that comes often, so that searches end in different ways."""
    model = (
        xlnet_reference.build_reference(case.ending, case.seed) if case.family == "XLNet" else build_reference(case)
    ).eval()
    model.save_pretrained(folder)
    f = formers.load(folder)
    return model, f


def written_by(f, prompts, **how):
    options = Options(**({} if {"num_beams", "top_p"} & set(how) else {"temperature": 0}) | how)
    return decode_batch(
        DecodingBatch(f, prompts, options.max_new_tokens, options.rows_per_prompt), build_constraints(f, options)
    )


def search_with_transformers(case, model, f, ids, ends, how):
    more = {NAMES[name]: value for name, value in how.items()} | {"eos_token_id": ends, "pad_token_id": f.config.pad}
    more |= {"use_cache": case.family != "T5"}  # theirs counts the wrong layers where the decoder has more
    if case.family == "Marian":
        more |= {"bad_words_ids": [[f.config.pad]]}
    if f.is_encoder_decoder:
        more |= {"decoder_start_token_id": f.config.pad if f.config.start is None else f.config.start}
    out = model.generate(torch.tensor([ids]), do_sample=False, output_scores=True, return_dict_in_generate=True, **more)
    rows = [row[1 if f.is_encoder_decoder else len(ids) :].tolist() for row in out.sequences]
    rows = [list(itertools.takewhile(lambda token: token not in ends, row)) for row in rows]
    return rows, out.sequences_scores.tolist() if how.get("num_beams", 1) > 1 else [0.0]


@pytest.mark.parametrize("case", SEARCHES)
def test_token_for_token(case, tmp_path, full):
    model, f = pair_of(case, tmp_path)
    g, stops = torch.Generator().manual_seed(case.seed), set()
    for turn, how in enumerate(HOW):
        how = {"max_new_tokens": 8, **how}
        ids = torch.randint(6, VOCAB - 4, (5,), generator=g).tolist()
        likely = written_by(f, [ids], max_new_tokens=4)[0][0].ids or [7]
        endings = ([likely[-1]], [likely[0], 9], [58])
        for ends in endings if full else endings[turn % 3 : turn % 3 + 1]:
            f.source_files["generation_config.json"] = f'{{"eos_token_id": {ends}}}'.encode()
            model.generation_config.forced_eos_token_id = None
            with Margins() as margins:
                want, scores = search_with_transformers(case, model, f, ids, ends, how)
            assert margins.is_clear(), "another seed: rounding would decide here"
            got = written_by(f, [ids], **how)[0]
            assert [one.ids for one in got] == want, how
            assert [one.score for one in got] == pytest.approx(scores, abs=1e-4)
            stops |= {len(row) for row in want}
        del f.source_files["generation_config.json"]
    assert len(stops) > 1, "texts of one length show nothing"


# Families that transformers has not: by hand, without a cache.

SMALL = {"vocab": 7, "dim": 12, "layers": 1, "eos": 1}
ALONE = {
    "transformer_xl": {"heads": 2, "ff": 16, "embed": 12, "cutoffs": (3,), "memory": 40, "shrink": 1},
    "seq2seq": {"embed": 8, "attention": "general", "start": 2},
    "gnmt": {"layers": 2, "start": 2},
}


def build_lively_model(family, scale=3.0, **more):
    f = formers.build(family, seed=4, **{**SMALL, **ALONE.get(family, {}), **more})
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for p in f.model.parameters():
            p.copy_(torch.randn(p.shape, generator=g) * scale / math.sqrt(max(1, p.shape[-1])))
    return f


@torch.no_grad()
def next_logs(f, source, text):
    """Log-probabilities of what follows a text, all of it read anew."""
    if f.is_encoder_decoder:
        return f.logits(torch.tensor([source]), target=torch.tensor([[2, *text]]))[0, -1].log_softmax(-1)
    return f.logits(torch.tensor([[*source, *text]]))[0, -1].log_softmax(-1)


def by_hand(logs_of, source, beams, tokens, alpha, early, norm=lambda n, alpha: n**alpha, cover=lambda text: 0.0):
    """A beam search as one would write it down: texts, their log-probabilities, and those that are complete; `cover` is
    the coverage penalty of a complete text."""
    running, complete = [(0.0, [])], []
    for length in range(1, tokens + 1):
        tried = [
            (score + float(logs[token]), [*text, token])
            for score, text in running
            for logs in (logs_of(tuple(source), tuple(text)),)
            for token in range(len(logs))
        ]
        tried.sort(key=lambda one: -one[0])
        ends = lambda text, length=length: text[-1] == 1 or length == tokens  # noqa: E731
        complete += [(score / norm(length, alpha) + cover(text), text) for score, text in tried[:beams] if ends(text)]
        complete = sorted(complete, key=lambda one: -one[0])[:beams]
        running = [one for one in tried if not ends(one[1])][:beams]
        reach = tokens if early == "never" and alpha > 0 else length
        beaten = running and len(complete) == beams and running[0][0] / norm(reach, alpha) <= complete[-1][0]
        if beaten or (early is True and len(complete) == beams):
            break
    return [(text[:-1] if text[-1] == 1 else text, score) for score, text in complete]


@pytest.mark.parametrize("family", [*ALONE, "gpt2"])
def test_beams_by_hand(family):
    f = build_lively_model(family, **({"heads": 2, "context": 20} if family == "gpt2" else {}))
    known = functools.cache(lambda source, text: next_logs(f, source, text).tolist())
    prompts, lengths = [[3, 5], [4, 6, 3, 2, 5]], set()
    for alpha, beams, early in ((0.0, 3, True), (1.6, 3, False), (1.6, 3, "never"), (0.0, 3, "never")):
        want = [by_hand(known, p, beams, 7, alpha, early) for p in prompts]
        got = written_by(
            f, prompts, num_beams=beams, num_samples=beams, max_new_tokens=7, length_penalty=alpha, early_stopping=early
        )
        assert [[one.ids for one in row] for row in got] == [[text for text, _ in row] for row in want]
        scores = [[score for _, score in row] for row in want]
        assert [[one.score for one in row] for row in got] == [pytest.approx(row, abs=1e-4) for row in scores]
        lengths |= {len(text) for row in want for text, _ in row}
    assert len(lengths) > 2


@pytest.mark.parametrize(("early", "best"), [(True, [3]), (False, [3]), ("never", [2] * 12)])
def test_an_unlikely_beginning_may_become_the_best_text(early, best):
    """Token 2 is rare at first and then certain: when it is long, log p / n² is better than that of all short texts."""
    table = torch.tensor([[0.0, 0.6, 0.007, 0.393], [0.25] * 4, [0.0, 0.0001, 0.9999, 0.0], [0.01, 0.97, 0.01, 0.01]])
    batch = DecodingBatch(build_lively_model("gpt2", vocab=4, heads=2, context=20), [[0]], 12, 2)
    batch.score_next = lambda capture=None: table[[text[-1] for text in batch.sequences]].clamp(min=1e-9).log()
    rule = build_constraints(
        batch.former, Options(num_beams=2, max_new_tokens=12, length_penalty=2.0, early_stopping=early)
    )
    assert decode_batch(batch, rule)[0][0].ids == best


@torch.no_grad()
def capture_cross_attention(f, source, text):
    """(target, source) attention weights of all steps that wrote a text, the last included."""
    capture = formers.nn.attention.context.Capture(with_attention=True)
    batch, _ = f.pack_inputs(ModelInputs(torch.tensor([source]), target=torch.tensor([[2, *text]])))
    f.model(batch, capture=capture)
    return torch.stack([w[0].mean(0) for w in capture.attention_weights["cross"]]).mean(0)


@pytest.mark.parametrize("family", ["seq2seq", "gnmt", "transformer"])
def test_a_beam_of_all_texts_finds_the_best(family):
    """Every text of three tokens, scored by GNMT's equation 14 written out."""
    more = {"transformer": {"heads": 2, "ff": 16, "start": 2, "pad": 0, "context": 20}}.get(family, {})
    f, source, alpha, beta = build_lively_model(family, 2.0, vocab=5, **more), [3, 4, 3], 0.8, 0.7
    allowed = [1, 2, 3, 4] if family == "transformer" else [0, 1, 2, 3, 4]  # Marian never writes the pad
    texts = [(*front, 1) for n in range(3) for front in itertools.product([t for t in allowed if t != 1], repeat=n)]
    texts += itertools.product([t for t in allowed if t != 1], repeat=3)
    want = []
    for text in texts:
        logs = sum(float(next_logs(f, source, text[:i])[token]) for i, token in enumerate(text))
        cover = sum(math.log(min(float(w), 1.0)) for w in capture_cross_attention(f, source, text[:-1]).sum(0))
        want.append((logs / ((5 + len(text)) / 6) ** alpha + beta * cover, [t for t in text if t != 1]))
    want.sort(key=lambda one: -one[0])
    how = {
        "num_beams": 200,
        "num_samples": 20,
        "max_new_tokens": 3,
        "length_penalty": alpha,
        "length_normalisation": "gnmt",
        "early_stopping": "never",
    }
    got = written_by(f, [source, [3]], **how, coverage=beta)[0]
    assert [one.ids for one in got] == [text for _, text in want[:20]]
    assert [one.score for one in got] == pytest.approx([score for score, _ in want[:20]], abs=1e-4)
    assert [one.ids for one in written_by(f, [source], **how)[0]] != [one.ids for one in got], "coverage counts"


ATTENTIVE = {
    "seq2seq": {"attention": "local", "window": 1, "feed": True}, "gnmt": {},
    "t5": {"layers": 2, "heads": 2, "ff": 16, "head_dim": 6, "start": 2},
    "bart": {"heads": 2, "ff": 16, "start": 2, "context": 20},
}  # fmt: skip


@pytest.mark.parametrize("family", ATTENTIVE)
def test_few_beams_with_the_penalties_by_hand(family):
    """The length and coverage penalties (Wu et al. 2016, eq. 14) where beams are lost on the way."""
    f = build_lively_model(family, 2.0, **ATTENTIVE[family])
    known = functools.cache(lambda source, text: next_logs(f, source, text).tolist())
    for (source, beams, alpha, beta), early in itertools.product(
        [([3, 4, 3, 5], 2, 0.6, 0.3), ([6, 2], 3, 1.2, 1.0), ([5], 3, 0.0, 0.4)], (False, True, "never")
    ):

        def cover(text, source=source, beta=beta):
            seen = capture_cross_attention(f, source, text[:-1]).sum(0).tolist()
            return beta * sum(math.log(min(max(one, 1e-9), 1.0)) for one in seen)

        want = by_hand(known, source, beams, 6, alpha, early, lambda n, alpha: ((5 + n) / 6) ** alpha, cover)
        how = {"num_beams": beams, "num_samples": beams, "max_new_tokens": 6, "early_stopping": early}
        how |= {"length_penalty": alpha, "length_normalisation": "gnmt"}
        got = written_by(f, [source], **how, coverage=beta)[0]
        assert [one.ids for one in got] == [text for text, _ in want], (source, early)
        assert [one.score for one in got] == pytest.approx([score for _, score in want], abs=1e-4)


def test_coverage_needs_a_source():
    for f in (build_lively_model("gpt2", heads=2, context=20), build_lively_model("seq2seq", attention="none")):
        with pytest.raises(formers.Error, match="coverage needs attention over a source"):
            written_by(f, [[3, 4]], num_beams=2, coverage=0.2)


EVERY = {
    "gpt": {}, "gpt2": {}, "gpt3": {}, "gpt_neo": {}, "gptj": {"rotary": 4}, "gpt_neox": {"rotary_fraction": 0.5},
    "bloom": {}, "xlnet": {},
    "transformer_xl": ALONE["transformer_xl"] | {"embed": 24}, "bart": {}, "mbart": {}, "t5": {}, "mt5": {},
    "switch": {"capacity": 99, "sparse": 1}, "transformer": {}, "seq2seq": {"attention": "general"}, "gnmt": {},
}  # fmt: skip


@pytest.mark.parametrize("family", EVERY)
@pytest.mark.parametrize("how", [
    {"top_p": 0.95, "num_samples": 2, "seed": 3, "repetition_penalty": 1.2},
    {"num_beams": 3, "num_samples": 2, "no_repeat_ngram": 3, "length_penalty": 0.6},
    {"no_repeat_ngram": 1, "bad_words": [[5, 6], 9]},
], ids=["draws", "beams", "greedy"])  # fmt: skip
def test_any_batch_gives_the_same(family, how):
    """Prompts of different lengths, texts that end at different times: as one by one."""
    more = {} if family in ("seq2seq", "gnmt") else {"heads": 2}
    f = build_lively_model(family, 1.5, **{"vocab": 30, "dim": 24, "layers": 2, "eos": None, **more, **EVERY[family]})
    prompts = [[7, 8, 9], [5], [11, 3, 3, 21, 9, 26], [7, 8, 9], [4, 4]]
    free = [row[0].ids for row in written_by(f, prompts, max_new_tokens=9, **how)]
    lengths = {end: {row.index(end) if end in row else 9 for row in free} for row in free for end in row}
    end = max(lengths, key=lambda token: len(lengths[token]))
    f.config = dataclasses.replace(f.config, eos=end)
    together = [[one.ids for one in row] for row in written_by(f, prompts, max_new_tokens=9, **how)]
    assert together == [[one.ids for one in written_by(f, [p], max_new_tokens=9, **how)[0]] for p in prompts]
    assert together[0] == together[3]
    assert len({len(text) for row in together for text in row}) > 1, "all texts end at the same time"


@pytest.mark.parametrize("how", [{"no_repeat_ngram": 1}, {"bad_words": tuple(range(1, 12))}])
def test_every_prompt_has_a_text_even_if_all_is_forbidden(how):
    f = formers.build("gpt2", vocab=12, context=40, dim=16, layers=1, heads=2, eos=None, bos=None, seed=1)
    found = continue_ids(f, [[1, 2], [3]], 20, Options(num_beams=2, **how))
    assert [len(text) for text in found] == [20, 20]


def test_a_search_among_scores_that_are_not_finite_is_an_error():
    f = formers.build("gpt2", vocab=12, context=40, dim=16, layers=1, heads=2, eos=None, bos=None)
    with torch.no_grad():
        f.model.body.embedding_table.fill_(float("nan"))
    with pytest.raises(NonFinite):
        continue_ids(f, [[1, 2], [3]], 5, Options(num_beams=2))
