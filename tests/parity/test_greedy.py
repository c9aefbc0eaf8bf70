"""Greedy generation with a cache: token for token what transformers generates, for all that generate."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.generation.decoding import Options, continue_ids
from tests.parity import cases
from tests.parity.cases import CASES, VOCAB, Case, build_reference, draw_inputs, run_formers
from tests.tolerance import Margins

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ENDINGS = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")
GENERATES = [case for case in CASES if case.ending in ENDINGS]


@pytest.mark.parametrize("case", GENERATES, ids=lambda case: case.name)
def test_token_for_token(case, tmp_path):
    model = build_reference(case).eval()
    model.save_pretrained(tmp_path / "hf")
    f = formers.load(tmp_path / "hf")
    g = torch.Generator().manual_seed(case.seed)
    for length in (1, 5, 8):
        ids = torch.randint(5, VOCAB - 4, (1, length), generator=g)
        more = {"use_cache": case.family != "T5"}  # theirs counts the wrong layers where the decoder has more
        more |= {"eos_token_id": f.config.eos}
        more |= {"bad_words_ids": [[f.config.pad]]} if case.family == "Marian" else {}
        if case.pair:
            start = f.config.pad if f.config.start is None else f.config.start
            more |= {"decoder_start_token_id": start}
        if case.family == "Roberta":
            with Margins() as margins:
                want = decode_without_cache(model, ids, 9)
        else:
            how = {"do_sample": False, "num_beams": 1, "max_new_tokens": 9, "pad_token_id": 0}
            with Margins() as margins:
                want = model.generate(ids, **how, **more)[0].tolist()
        assert margins.is_clear(), "another seed: rounding would decide here"
        want = want[1 if case.pair else length :]
        got = continue_ids(f, [ids[0].tolist()], 9, Options(temperature=0))[0]
        if f.config.eos in want:
            want = want[: want.index(f.config.eos)]
        assert got == want


@torch.no_grad()
def decode_without_cache(model, ids, tokens):
    """Without a cache, and with the positions that RoBERTa was trained with: with a cache, theirs begin anew."""
    for _ in range(tokens):
        positions = torch.arange(ids.shape[1])[None] + model.config.pad_token_id + 1
        best = model(input_ids=ids, position_ids=positions).logits[:, -1:].argmax(-1)
        ids = torch.cat((ids, best), 1)
    return ids[0].tolist()


@pytest.mark.parametrize("family", ["Bart", "MBart"])
def test_without_a_start_generation_begins_with_the_begin_mark(family, tmp_path, monkeypatch):
    plain = cases.make_config
    monkeypatch.setattr(
        cases, "make_config", lambda case: plain(case) | {"decoder_start_token_id": None, "bos_token_id": 7}
    )
    model = build_reference(Case(family, "ForConditionalGeneration", 0)).eval()
    model.save_pretrained(tmp_path / "hf")
    f, ids = formers.load(tmp_path / "hf"), torch.tensor([[9, 8, 7, 1]])
    assert f.config.start is None
    more = {"do_sample": False, "num_beams": 1, "max_new_tokens": 9}
    want = model.generate(ids, **more)[0].tolist()
    assert want[0] == 7
    assert continue_ids(f, ids, 9, Options(temperature=0))[0] == [token for token in want[1:] if token != f.config.eos]


@pytest.mark.parametrize("family", ["Bart", "MBart"])
def test_classifiers_shift_as_theirs_do(family, tmp_path):
    """BART puts the start token first, mBART the last token of each row."""
    case = Case(family, "ForSequenceClassification", 0)
    model, given = build_reference(case).eval(), draw_inputs(case)
    model.save_pretrained(tmp_path / "hf")
    padded = torch.where(given["keep"], given["ids"], model.config.pad_token_id)
    with torch.no_grad():
        want = model(padded, attention_mask=given["keep"].long()).logits
        assert (run_formers(formers.load(tmp_path / "hf"), given)["logits"] - want).abs().max() <= 1e-5


def test_the_end_mark_of_a_generation_config(tmp_path):
    model = build_reference(Case("GPT2", "LMHeadModel", 0)).eval()
    want = model.generate(torch.tensor([[9, 8]]), do_sample=False, max_new_tokens=9)[0, 2:].tolist()
    model.generation_config.eos_token_id = [want[4], 59]
    model.save_pretrained(tmp_path / "hf")
    f = formers.load(tmp_path / "hf")
    assert f.config.eos not in (want[4], [want[4], 59])
    assert continue_ids(f, [[9, 8]], 9, Options(temperature=0))[0] == want[: want.index(want[4])]
    f.source_files["generation_config.json"] = b'{"eos_token_id": ["x"]}'
    with pytest.raises(formers.Error, match="is not a token"):
        continue_ids(f, [[9, 8]], 9)


def test_rows_do_not_disturb_each_other():
    for family in ("gpt2", "bloom", "t5", "bart", "gpt_neo", "gpt_neox", "gptj", "transformer", "switch"):
        more = {"switch": {"capacity": 99, "sparse": 1}, "gptj": {"rotary": 4}}.get(family, {})
        f = formers.build(family, seed=3, layers=2, dim=24, heads=3, vocab=50, eos=None, **more)
        with torch.no_grad():
            for p in f.model.parameters():
                p.mul_(8)
        prompts = [[7, 8, 9], [5], [11, 3, 3, 21, 9, 30]]
        together = continue_ids(f, prompts, 7, Options(temperature=0))
        assert together == [continue_ids(f, [p], 7, Options(temperature=0))[0] for p in prompts]
        assert len({tuple(row) for row in together}) > 1
