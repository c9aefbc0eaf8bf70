"""Greedy and beam search token for token as transformers does them, for every family that it has; penalties by hand."""

from __future__ import annotations

import itertools

import pytest
import torch

import formers
from formers.generation.engine import Desk, written
from formers.generation.options import Options
from formers.generation.rules import rules
from tests.parity import test_xlnet as xlnet
from tests.parity.cases import CASES, VOCAB, Case, reference

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
WRITERS = {
    "OpenAIGPT": "LMHeadModel", "GPT2": "LMHeadModel", "GPTNeo": "ForCausalLM", "GPTJ": "ForCausalLM",
    "GPTNeoX": "ForCausalLM", "Bloom": "ForCausalLM", "Marian": "MTModel", "Bart": "ForConditionalGeneration",
    "MBart": "ForConditionalGeneration", "SwitchTransformers": "ForConditionalGeneration",
    "T5": "ForConditionalGeneration", "MT5": "ForConditionalGeneration",
}  # fmt: skip
SEARCHES = [case for case in CASES if WRITERS.get(case.family) == case.ending and case.seed < 2]
SEARCHES += [Case("XLNet", "LMHeadModel", 0), Case("XLNet", "LMHeadModel", 1)]
# Our options, and theirs by name.
NAMES = {
    "beams": "num_beams", "samples": "num_return_sequences", "length_penalty": "length_penalty",
    "early": "early_stopping", "no_repeat": "no_repeat_ngram_size", "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_new_tokens", "tokens": "max_new_tokens",
}  # fmt: skip
HOW = [
    {"beams": 4, "samples": 4},
    {"beams": 3, "samples": 2, "length_penalty": 0.0, "early": True},
    {"beams": 3, "samples": 3, "length_penalty": 2.0, "early": "never", "no_repeat": 2},
    {"beams": 2, "length_penalty": -1.0, "early": False, "min_tokens": 4, "repetition_penalty": 1.7},
    {"beams": 5, "samples": 5, "early": "never", "length_penalty": -0.5, "no_repeat": 3, "min_tokens": 2},
    {"no_repeat": 2},
    {"repetition_penalty": 1.8, "min_tokens": 6},
]  # fmt: skip


def pair_of(case, folder):
    """Their model and ours; an end mark that comes often, so that searches end in different ways."""
    model = (xlnet.reference(case.ending, case.seed) if case.family == "XLNet" else reference(case)).eval()
    model.save_pretrained(folder)
    f = formers.load(folder)
    return model, f


def written_by(f, prompts, **how):
    options = Options(**({} if how.get("beams", 1) > 1 else {"temperature": 0}) | how)
    return written(Desk(f, prompts, options.tokens, options.each), rules(f, options))


def theirs(case, model, f, ids, ends, how):
    more = {NAMES[name]: value for name, value in how.items()} | {"eos_token_id": ends, "pad_token_id": f.config.pad}
    more |= {"use_cache": case.family != "T5"}  # theirs counts the wrong layers where the decoder has more
    if case.family == "Marian":
        more |= {"bad_words_ids": [[f.config.pad]]}
    if f.pair:
        more |= {"decoder_start_token_id": f.config.pad if f.config.start is None else f.config.start}
    out = model.generate(torch.tensor([ids]), do_sample=False, output_scores=True, return_dict_in_generate=True, **more)
    rows = [row[1 if f.pair else len(ids) :].tolist() for row in out.sequences]
    rows = [list(itertools.takewhile(lambda token: token not in ends, row)) for row in rows]
    return rows, out.sequences_scores.tolist() if how.get("beams", 1) > 1 else [0.0]


@pytest.mark.parametrize("case", SEARCHES, ids=lambda case: case.name)
def test_token_for_token(case, tmp_path, full):
    model, f = pair_of(case, tmp_path)
    g, stops = torch.Generator().manual_seed(case.seed), set()
    for turn, how in enumerate(HOW):
        how = {"tokens": 8, **how}
        ids = torch.randint(6, VOCAB - 4, (5,), generator=g).tolist()
        likely = written_by(f, [ids], tokens=4)[0][0].ids or [7]
        endings = ([likely[-1]], [likely[0], 9], [58])
        for ends in endings if full else endings[turn % 3 : turn % 3 + 1]:
            f.kept["generation_config.json"] = f'{{"eos_token_id": {ends}}}'.encode()
            model.generation_config.forced_eos_token_id = None
            want, scores = theirs(case, model, f, ids, ends, how)
            got = written_by(f, [ids], **how)[0]
            assert [one.ids for one in got] == want, how
            assert [one.score for one in got] == pytest.approx(scores, abs=1e-4)
            stops |= {len(row) for row in want}
        del f.kept["generation_config.json"]
    assert len(stops) > 1, "texts of one length show nothing"
