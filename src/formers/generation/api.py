"""Generating text: a string in, a string out; a list in, a list out; or pieces, as they are written."""

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
from .decoding import STEPS_AHEAD, DecodingBatch, decode_batch, decode_steps
from .logits_processors import Constraints, build_constraints
from .options import Options, make_options
from .stopping import StopWatcher
from .token_api import check_prompts

BATCH_ROWS = 32  # texts at work at a time: more of them gain little and take more memory
Texts = str | list[str] | list[list[str]]


def generate(
    former: Former,
    prompts: str | Sequence[str],
    max_new_tokens: int = 64,
    *,
    stream: bool = False,
    draft: Former | None = None,
    **given: Any,
) -> Any:
    """What follows each prompt, without the prompt itself; of an encoder-decoder, what it answers.

    A string gives a string, a list a list; with `num_samples` above 1, each a list of so many. `stream` gives pieces of
    one text as they are written; joined, they are the text. The other options are those of `Options`: temperature,
    top_k, top_p, min_p, typical_p, seed, num_beams, num_samples, length_penalty, length_normalisation, coverage,
    early_stopping, no_repeat_ngram, repetition_penalty, bad_words, min_new_tokens, stop. A prompt longer than the
    context of a decoder is read from its end, with a warning; a source longer than an encoder's context is an error. An
    empty prompt begins with the model's mark of a text's beginning. A `draft`, a smaller relative, guesses tokens
    ahead: greedily the text stays the same.
    """
    check_verb(former, "generate")
    how = make_options(given, max_new_tokens=max_new_tokens)
    if draft is not None and stream:
        raise Error("a text with a draft is not streamed", fix="leave stream out, or the draft")
    if draft is not None:
        return generate_speculative(former, draft, prompts, how)
    if not stream:
        return generate_texts(former, prompts, how)
    if not isinstance(prompts, str) or how.num_samples > 1 or how.num_beams > 1:
        raise Error("one text is streamed at a time", fix="give one prompt, without num_beams and num_samples")
    return stream_text(former, prompts, how)


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
    """Texts for prompts, with the options as they are. Of mBART's languages, `forced_first` and `start` are the
    target's token, and `id_replacements` puts the source's into the place of another. Equal prompts give equal texts,
    unless `rng_streams` has numbers of their own for the draws of each, one for each sample."""
    begun = [encode_prompt(former, text) for text in list_prompts(prompts)]
    rows = (
        check_prompts(
            former, [[(id_replacements or {}).get(i, i) for i in row] for row in begun], options.max_new_tokens
        )
        if begun
        else []
    )
    speaks, law = get_output_tokenizer(former), build_constraints(former, options, forced_first)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # rows of a length side by side
    made: list[list[str]] = [[] for _ in rows]
    step = max(1, BATCH_ROWS // options.rows_per_prompt)
    for at in range(0, len(order), step):
        chosen = order[at : at + step]
        desk = DecodingBatch(former, [rows[i] for i in chosen], options.max_new_tokens, options.rows_per_prompt, start)
        if rng_streams is not None:
            desk.rng_streams = np.array([number for i in chosen for number in rng_streams[i]], np.uint64)
        for i, found in zip(chosen, decode_to_texts(desk, law, speaks), strict=True):
            made[i] = found
    plain = [found[0] if options.num_samples == 1 else found for found in made]
    return plain[0] if isinstance(prompts, str) else plain


def decode_to_texts(desk: DecodingBatch, law: Constraints, speaks: Tokenizer) -> list[list[str]]:
    """What is written at a desk as texts; a stop string ends a text as soon as it is complete."""
    if law.options.num_beams > 1:
        made = decode_batch(desk, law)
        begun = [
            desk.sequences[at * desk.rows_per_prompt][: desk.prompt_lengths[at * desk.rows_per_prompt]]
            for at in range(len(made))
        ]
        return [
            [decode_ids(desk.former, law, front, one.ids) for one in row]
            for front, row in zip(begun, made, strict=True)
        ]
    watches = [make_watcher(desk, law, speaks, row) for row in range(len(desk.sequences))]
    shown = [""] * len(watches)
    for new in decode_steps(desk, law, 1 if law.options.stop else STEPS_AHEAD):
        for row, token in enumerate(new):
            if token is not None:
                shown[row] += watches[row].push(token)
                if watches[row].is_stopped:
                    desk.finish_row(row)
    shown = [piece + one.flush().rstrip("\ufffd") for piece, one in zip(shown, watches, strict=True)]
    return [shown[at : at + desk.rows_per_prompt] for at in range(0, len(shown), desk.rows_per_prompt)]


def generate_speculative(former: Former, draft: Former, prompts: str | Sequence[str], how: Options) -> Any:
    """Generate by speculative decoding, one prompt at a time."""
    from .speculative import SpeculativeDecoder

    rows = check_prompts(former, [encode_prompt(former, text) for text in list_prompts(prompts)], how.max_new_tokens)
    guess, law, made = SpeculativeDecoder(former, draft), build_constraints(former, how), []
    for row in rows:
        found = [guess.generate_ids(row, law, sample) for sample in range(how.num_samples)]
        made.append([decode_ids(former, law, row, ids) for ids in found])
    plain = [found[0] if how.num_samples == 1 else found for found in made]
    return plain[0] if isinstance(prompts, str) else plain


def stream_text(former: Former, prompt: str, how: Options) -> Iterator[str]:
    """One text, piece by piece."""
    rows = check_prompts(former, [encode_prompt(former, prompt)], how.max_new_tokens)
    desk, law = DecodingBatch(former, rows, how.max_new_tokens), build_constraints(former, how)
    seen = make_watcher(desk, law, get_output_tokenizer(former), 0)
    for (token,) in decode_steps(desk, law):
        piece = "" if token is None else seen.push(token)
        if piece:
            yield piece
        if seen.is_stopped:
            return
    if rest := seen.flush().rstrip("\ufffd"):
        yield rest


def make_watcher(desk: DecodingBatch, law: Constraints, speaks: Tokenizer, row: int) -> StopWatcher:
    """A watch over a row, which goes on behind its prompt."""
    return StopWatcher(
        speaks,
        law.options.stop,
        () if desk.former.is_encoder_decoder else desk.sequences[row][: desk.prompt_lengths[row]],
    )


def decode_ids(former: Former, law: Constraints, prompt: Sequence[int], ids: list[int]) -> str:
    """New ids as text, up to a stop string, with the space that belongs between it and the prompt."""
    seen = StopWatcher(get_output_tokenizer(former), law.options.stop, () if former.is_encoder_decoder else prompt)
    return "".join(map(seen.push, ids)) + seen.flush().rstrip("\ufffd")


def list_prompts(prompts: Any) -> list[str]:
    """One text or several as a list."""
    texts = [prompts] if isinstance(prompts, str) else list_texts(prompts)
    if not all(isinstance(one, str) for one in texts):
        raise Error(f"a prompt must be text, got {format_value(prompts)}", fix="give a string, or a list of them")
    return texts


def encode_prompt(former: Former, text: str) -> list[int]:
    """The ids that a text is continued from, or that an encoder reads: as in training, with the marks of a source."""
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
        raise Error("the text is empty", fix="give some words to write about")
    end = tokenizer.id("eos") if tokenizer.id("eos") is not None else tokenizer.id("sep")
    if find_family(former.family).definition.objective == "seq2seq" and end is not None:
        return [*tokenizer.encode(text, special=False), end]  # a source as the objective frames it
    return tokenizer.encode(text)


def get_output_tokenizer(former: Former) -> Tokenizer:
    """The tokenizer of what is written: Marian may have one of its own for it."""
    assert former.tokenizer is not None
    return former.tokenizer.target or former.tokenizer
