"""Text generation: a string in, a string out; a list in, a list out; or pieces, as they are generated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..config import format_value
from ..errors import Error
from ..former import Former
from ..inputs import list_texts
from ..registry import find_family
from ..text.normalise import normalise
from ..text.tokenizer import Tokenizer
from ..verbs import check_verb
from .decoding import STEPS_AHEAD, DecodingBatch, decode_steps
from .logits_processors import Constraints, build_constraints
from .options import Options, make_options
from .stop_strings import StopWatcher
from .token_api import check_prompts, decode_batch

BATCH_ROWS = 32  # texts at work at a time: more of them gain little and take more memory


def generate(
    former: Former,
    prompts: str | Sequence[str],
    max_new_tokens: int = 64,
    *,
    stream: bool = False,
    draft: Former | None = None,
    **settings: Any,
) -> Any:
    """Continue each prompt, and return the new text alone; of an encoder-decoder, its output for the source.

    A string gives a string, a list a list; with `num_samples` above 1, each a list of so many. `stream` yields pieces
    of one text as they are generated; joined, they are the text. The other options are those of `Options`: temperature,
    top_k, top_p, min_p, typical_p, seed, num_beams, num_samples, length_penalty, length_normalisation, coverage,
    early_stopping, no_repeat_ngram, repetition_penalty, bad_words, min_new_tokens, stop. A prompt longer than the
    context of a decoder is read from its end, with a warning; a source longer than an encoder's context is an error. An
    empty prompt starts from the begin (or end) mark. A `draft`, a smaller model of the same family, speeds up decoding
    (speculative.py); greedy output stays the same.
    """
    check_verb(former, "generate")
    options = make_options(settings, max_new_tokens=max_new_tokens)
    if draft is not None and stream:
        raise Error("a text with a draft is not streamed", fix="leave stream out, or the draft")
    if draft is not None:
        return generate_speculative(former, draft, prompts, options)
    if not stream:
        return generate_texts(former, prompts, options)
    if not isinstance(prompts, str) or options.num_samples > 1 or options.num_beams > 1:
        raise Error("one text is streamed at a time", fix="give one prompt, without num_beams and num_samples")
    return stream_text(former, prompts, options)


def generate_texts(
    former: Former,
    prompts: str | Sequence[str],
    options: Options,
    *,
    forced_first: int | None = None,
    start: int | None = None,
    id_replacements: Mapping[int, int] | None = None,
    rng_streams: Sequence[Sequence[int]] | None = None,
) -> Any:
    """Generate texts for prompts, with the options as they are.

    For mBART's languages, `forced_first` or `start` is the target's token, and `id_replacements` puts the source's in
    place of another. Equal prompts give equal texts, unless `rng_streams` numbers the draws of each prompt's samples.
    """
    prompt_ids = [encode_prompt(former, text) for text in list_prompts(prompts)]
    rows = (
        check_prompts(
            former, [[(id_replacements or {}).get(i, i) for i in row] for row in prompt_ids], options.max_new_tokens
        )
        if prompt_ids
        else []
    )
    tokenizer, constraints = get_output_tokenizer(former), build_constraints(former, options, forced_first)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # rows of a length side by side
    results: list[list[str]] = [[] for _ in rows]
    step = max(1, BATCH_ROWS // options.rows_per_prompt)
    for at in range(0, len(order), step):
        chosen = order[at : at + step]
        batch = DecodingBatch(former, [rows[i] for i in chosen], options.max_new_tokens, options.rows_per_prompt, start)
        if rng_streams is not None:
            batch.rng_streams = np.array([number for i in chosen for number in rng_streams[i]], np.uint64)
        for i, samples in zip(chosen, decode_to_texts(batch, constraints, tokenizer), strict=True):
            results[i] = samples
    outputs = [samples[0] if options.num_samples == 1 else samples for samples in results]
    return outputs[0] if isinstance(prompts, str) else outputs


def decode_to_texts(batch: DecodingBatch, constraints: Constraints, tokenizer: Tokenizer) -> list[list[str]]:
    """Decode a batch to texts, `rows_per_prompt` for each prompt; a stop string ends its text at once."""
    if constraints.options.num_beams > 1:
        results = decode_batch(batch, constraints)
        prompt_ids = [
            batch.sequences[at * batch.rows_per_prompt][: batch.prompt_lengths[at * batch.rows_per_prompt]]
            for at in range(len(results))
        ]
        return [
            [decode_ids(batch.former, constraints, prompt, one.ids) for one in row]
            for prompt, row in zip(prompt_ids, results, strict=True)
        ]
    watchers = [make_watcher(batch, constraints, tokenizer, row) for row in range(len(batch.sequences))]
    texts = [""] * len(watchers)
    for new in decode_steps(batch, constraints, 1 if constraints.options.stop else STEPS_AHEAD):
        for row, token in enumerate(new):
            if token is not None:
                texts[row] += watchers[row].push(token)
                if watchers[row].is_stopped:
                    batch.finish_row(row)
    texts = [piece + one.flush().rstrip("\ufffd") for piece, one in zip(texts, watchers, strict=True)]
    return [texts[at : at + batch.rows_per_prompt] for at in range(0, len(texts), batch.rows_per_prompt)]


def generate_speculative(former: Former, draft: Former, prompts: str | Sequence[str], options: Options) -> Any:
    """Generate by speculative decoding, one prompt at a time."""
    from .speculative import SpeculativeDecoder

    rows = check_prompts(
        former, [encode_prompt(former, text) for text in list_prompts(prompts)], options.max_new_tokens
    )
    decoder, constraints, results = SpeculativeDecoder(former, draft), build_constraints(former, options), []
    for row in rows:
        samples = [decoder.generate_ids(row, constraints, sample) for sample in range(options.num_samples)]
        results.append([decode_ids(former, constraints, row, ids) for ids in samples])
    outputs = [samples[0] if options.num_samples == 1 else samples for samples in results]
    return outputs[0] if isinstance(prompts, str) else outputs


def stream_text(former: Former, prompt: str, options: Options) -> Iterator[str]:
    """Yield one text piece by piece."""
    rows = check_prompts(former, [encode_prompt(former, prompt)], options.max_new_tokens)
    batch, constraints = DecodingBatch(former, rows, options.max_new_tokens), build_constraints(former, options)
    watcher = make_watcher(batch, constraints, get_output_tokenizer(former), 0)
    for (token,) in decode_steps(batch, constraints):
        piece = "" if token is None else watcher.push(token)
        if piece:
            yield piece
        if watcher.is_stopped:
            return
    if rest := watcher.flush().rstrip("\ufffd"):
        yield rest


def make_watcher(batch: DecodingBatch, constraints: Constraints, tokenizer: Tokenizer, row: int) -> StopWatcher:
    """Watch one row of a batch for stop strings, from the end of its prompt on."""
    return StopWatcher(
        tokenizer,
        constraints.options.stop,
        () if batch.former.is_encoder_decoder else batch.sequences[row][: batch.prompt_lengths[row]],
    )


def decode_ids(former: Former, constraints: Constraints, prompt: Sequence[int], ids: list[int]) -> str:
    """Decode new ids to text up to a stop string, with the space that belongs between prompt and text."""
    watcher = StopWatcher(
        get_output_tokenizer(former), constraints.options.stop, () if former.is_encoder_decoder else prompt
    )
    return "".join(map(watcher.push, ids)) + watcher.flush().rstrip("\ufffd")


def list_prompts(prompts: Any) -> list[str]:
    """Return one prompt or several as a list of strings."""
    texts = [prompts] if isinstance(prompts, str) else list_texts(prompts)
    if not all(isinstance(one, str) for one in texts):
        raise Error(f"a prompt must be text, got {format_value(prompts)}", fix="give a string, or a list of them")
    return texts


def encode_prompt(former: Former, text: str) -> list[int]:
    """Encode a text as the model read it in training: a decoder's prompt, or an encoder's source with its marks."""
    tokenizer, config = former.tokenizer, former.config
    if tokenizer is None:
        fix = "load one that has; formers.generation.token_api.continue_ids takes ids"
        raise Error("this model has no tokenizer", fix=fix)
    text = normalise(text)  # as texts were when the model was trained
    if not former.is_encoder_decoder:
        ids = tokenizer.encode(text, special=False)
        mark = config.bos if config.bos is not None else config.eos
        mark = mark[0] if isinstance(mark, tuple) else mark
        if not ids and mark is None:
            raise Error("the prompt is empty", fix="give some text to begin with")
        return ids or [mark]
    if not text.strip():
        raise Error("the text is empty", fix="give some text")
    end = tokenizer.id("eos") if tokenizer.id("eos") is not None else tokenizer.id("sep")
    if find_family(former.family).definition.objective == "seq2seq" and end is not None:
        return [*tokenizer.encode(text, special=False), end]  # a source as the objective frames it
    return tokenizer.encode(text)


def get_output_tokenizer(former: Former) -> Tokenizer:
    """Return the tokenizer of the output, which is another than the input's in some Marian models."""
    assert former.tokenizer is not None
    return former.tokenizer.target or former.tokenizer
