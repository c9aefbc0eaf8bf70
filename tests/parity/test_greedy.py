"""Greedy generation with a cache: token for token what transformers generates, for all that generate."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.generation.sample import Sampling, continue_ids
from tests.parity.cases import CASES, VOCAB, reference

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
ENDINGS = ("LMHeadModel", "ForCausalLM", "ForConditionalGeneration", "MTModel")
GENERATES = [case for case in CASES if case.ending in ENDINGS and case.family not in ("Bert", "Roberta", "Ernie")]


@pytest.mark.parametrize("case", GENERATES, ids=lambda case: case.name)
def test_token_for_token(case, tmp_path):
    model = reference(case).eval()
    model.save_pretrained(tmp_path / "hf")
    f = formers.load(tmp_path / "hf")
    g = torch.Generator().manual_seed(case.seed)
    for length in (1, 5, 8):
        ids = torch.randint(5, VOCAB - 4, (1, length), generator=g)
        more = {"use_cache": case.family != "T5"}  # theirs counts the wrong layers where the decoder has more
        more |= {"eos_token_id": f.config.eos, "forced_eos_token_id": None, "forced_bos_token_id": None}
        if case.pair:
            start = f.config.pad if f.config.start is None else f.config.start
            more |= {"decoder_start_token_id": start}
        want = model.generate(ids, do_sample=False, num_beams=1, max_new_tokens=9, pad_token_id=0, **more)[0].tolist()
        want = want[1 if case.pair else length :]
        got = continue_ids(f, [ids[0].tolist()], 9, Sampling(temperature=0))[0]
        if f.config.eos in want:
            want = want[: want.index(f.config.eos)]
        assert got == want


def test_rows_do_not_disturb_each_other():
    for family in ("gpt2", "bloom", "t5", "bart", "gpt_neo", "gpt_neox", "gptj", "transformer", "switch"):
        more = {"switch": {"capacity": 99, "sparse": 1}, "gptj": {"rotary": 4}}.get(family, {})
        f = formers.build(family, seed=3, layers=2, dim=24, heads=3, vocab=50, eos=None, **more)
        with torch.no_grad():
            for p in f.model.parameters():
                p.mul_(8)
        prompts = [[7, 8, 9], [5], [11, 3, 3, 21, 9, 30]]
        together = continue_ids(f, prompts, 7, Sampling(temperature=0))
        assert together == [continue_ids(f, [p], 7, Sampling(temperature=0))[0] for p in prompts]
        assert len({tuple(row) for row in together}) > 1
