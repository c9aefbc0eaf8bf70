"""Languages of a fine-tuned mBART: sources, targets and the decoder's input are those of transformers, and generation
starts with the target's language."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
import torch

import formers
from formers import Error
from formers.data.encoded_examples import ExampleOrder
from formers.evaluation.likelihood import score_seq2seq
from formers.evaluation.task import build_task_objective
from formers.generation.logits_processors import build_constraints
from formers.generation.options import Options
from formers.interop.tokenizer_files import load_tokenizer
from formers.tasks.api import get_task
from formers.tasks.encoding import TaskEncoder, encode_examples

transformers, sentencepiece = pytest.importorskip("transformers"), pytest.importorskip("sentencepiece")
pytestmark = pytest.mark.filterwarnings("ignore:this tokenizer takes Hangul")
PAIRS = [
    ("나는 학교에 간다", "the cat sat"),
    ("현행법을 개정", "Hello, World"),
    ("안녕하세요", "the dog sat on the log"),
]
ROWS = [{"text": source, "target": target} for source, target in PAIRS] * 4
SIZES = {"dim": 16, "layers": 1, "heads": 2, "ff": 32, "context": 48, "init": 0.5}


def write_mbart(folder, peer_class):
    """Write a small mBART, or mBART-50, as it is published: transformers' tokenizer and model, for English sources."""
    folder.mkdir()
    data = io.BytesIO()
    text = [line for pair in PAIRS for line in pair] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=data, vocab_size=44, minloglevel=2, num_threads=1
    )
    (folder / "sentencepiece.bpe.model").write_bytes(data.getvalue())
    options = {"tokenizer_class": peer_class.__name__, "src_lang": "en_XX", "tgt_lang": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    tokenizer = load_tokenizer(folder)
    start = 2 if peer_class is transformers.MBart50Tokenizer else None
    former = formers.build("mbart", vocab=len(tokenizer), start=start, pad=1, bos=0, eos=2, seed=3, **SIZES)
    former.tokenizer = tokenizer
    former.save(folder / "formers")
    return folder / "formers", peer_class.from_pretrained(folder, src_lang="ko_KR", tgt_lang="en_XX")


def finetune_mbart(model, out, **tune):
    return formers.finetune(
        str(model), ROWS, valid=ROWS[:3], task="translate", out=out,
        overrides={f"tune.{name}": value for name, value in ({"epochs": 1, "batch_size": 4} | tune).items()},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_examples_are_those_of_transformers(tmp_path, name):
    model, peer = write_mbart(tmp_path / "m", getattr(transformers, name))
    finetune_mbart(model, tmp_path / "run", source_language="ko_KR", target_language="en_XX")
    former = formers.load(tmp_path / "run" / "model")
    task = get_task(former, "translate")
    assert (task.source_language, task.target_language) == ("ko_KR", "en_XX")
    data = encode_examples(task, ROWS[:3], TaskEncoder.from_former(former, task))
    objective = build_task_objective(former, task, data)
    for i, (source, target) in enumerate(PAIRS):
        want = peer(source, text_target=target, return_tensors="pt")
        batch = objective.source.make_batch(ExampleOrder(np.array([i])), np.array([0]))
        assert batch.source.ids.tolist() == want["input_ids"][0].tolist()
        assert batch.labels.tolist() == want["labels"][0].tolist()
        shifted = transformers.models.mbart.modeling_mbart.shift_tokens_right(want["labels"], peer.pad_token_id)
        assert batch.ids.tolist() == shifted[0].tolist()


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_translations_and_scores_are_those_of_transformers(tmp_path, name):
    model, peer = write_mbart(tmp_path / "m", getattr(transformers, name))
    finetune_mbart(model, tmp_path / "run", source_language="ko_KR", target_language="en_XX")
    former = formers.load(tmp_path / "run" / "model")
    former.export(tmp_path / "hf")
    their = transformers.MBartForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    english = peer.convert_tokens_to_ids("en_XX")
    at_start = name == "MBartTokenizer"
    assert their.generation_config.decoder_start_token_id == (english if at_start else 2)
    assert their.generation_config.forced_bos_token_id == (None if at_start else english)
    for source, target in PAIRS:
        inputs = peer(source, text_target=target, return_tensors="pt")
        written = their.generate(
            inputs["input_ids"], max_new_tokens=12, do_sample=False, num_beams=1, forced_eos_token_id=None
        )[0]
        assert former.translate(source, max_new_tokens=12) == former.tokenizer.decode(written.tolist())
        with torch.no_grad():
            loss = float(their(input_ids=inputs["input_ids"], labels=inputs["labels"]).loss)
        scored = score_seq2seq(former, [(source, target)], 1, None)[0]
        assert -float(scored.log_probs.mean()) == pytest.approx(loss, rel=1e-4)
    french = former.tokenizer.backend.token_to_id("fr_XX")
    forced = build_constraints(former, Options(), french).forced_first
    assert forced == (french,), "a language that is asked for comes before the task's"


def test_languages_that_are_not_given(tmp_path):
    """The source has the tokenizer's language, and so has the target unless the decoder starts with another."""
    model, _ = write_mbart(tmp_path / "m", transformers.MBartTokenizer)
    with pytest.warns(UserWarning, match="sources and targets are both marked as en_XX"):
        finetune_mbart(model, tmp_path / "same")
    task = formers.load(tmp_path / "same" / "model").task
    assert (task["source_language"], task["target_language"]) == ("en_XX", "en_XX")
    finetune_mbart(model, tmp_path / "one", target_language="ro_RO")
    finetune_mbart(tmp_path / "one" / "model", tmp_path / "two", source_language="ko_KR")
    task = formers.load(tmp_path / "two" / "model").task
    assert (task["source_language"], task["target_language"]) == ("ko_KR", "ro_RO")


def test_languages_are_refused_where_there_are_none(tmp_path):
    model, _ = write_mbart(tmp_path / "m", transformers.MBartTokenizer)
    with pytest.raises(Error, match="'Korean' is not a language of this mBART"):
        finetune_mbart(model, tmp_path / "run", source_language="Korean", target_language="en_XX")
    with pytest.raises(Error, match="this transformer has no language codes"):
        formers.finetune(
            "transformer", ROWS, task="translate", out=tmp_path / "other",
            overrides={"model.dim": 16, "model.layers": 1, "tune.source_language": "ko_KR"},
        )  # fmt: skip
