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
from ..text.languages import find_language_swap
from ..text.normalise import normalise
from ..text.tokenizer import DecodeStream, Tokenizer
from ..verbs import check_verb
from .decoding import STEPS_AHEAD, DecodingBatch, check_prompts, decode_batch, decode_steps
from .logits_processors import Constraints, build_constraints
from .options import Options, make_options

GeneratedTexts = Any  # dynamic: a text, a list of them, or of lists, by the prompts and the samples of each
BATCH_ROWS = 32  # texts at work at a time: more of them gain little and take more memory
PROMPT_TAIL = 8  # tokens of a prompt that say how the text continues: is there a space?


def generate(
    former: Former, prompts: str | Sequence[str], max_new_tokens: int = 64, *, stream: bool = False,
    draft: Former | None = None, **settings: object,
) -> GeneratedTexts:  # fmt: skip
    """Continue each prompt, and return the new text alone; of an encoder-decoder, its output for the source.

    A string gives a string, a list a list; with `num_samples` above 1, each a list of that many. `stream` yields pieces
    of one text as they are generated; joined, they are the text. The other options are those of `Options`: temperature,
    top_k, top_p, min_p, typical_p, seed, num_beams, num_samples, length_penalty, length_normalisation, coverage,
    early_stopping, no_repeat_ngram, repetition_penalty, bad_words, min_new_tokens, stop. A prompt longer than the
    context of a decoder is read from its end, with a warning; a source longer than an encoder's context is an error. An
    empty prompt starts from the begin (or end) mark. A `draft`, a smaller model of the same family, speeds up decoding
    (speculative.py); greedy output stays the same."""
    check_verb(former, "generate")
    options = make_options(settings, max_new_tokens=max_new_tokens)
    if draft is not None and stream:
        raise Error("stream cannot be combined with a draft", fix="leave one of them out")
    if not stream:
        return generate_texts(former, prompts, options, draft=draft)
    if not isinstance(prompts, str) or options.num_samples > 1 or options.num_beams > 1:
        raise Error("one text is streamed at a time", fix="give one prompt, without num_beams and num_samples")
    return stream_text(former, prompts, options)


def generate_texts(
    former: Former, prompts: str | Sequence[str], options: Options, *, draft: Former | None = None,
    forced_first: int | None = None, start: int | None = None, id_replacements: Mapping[int, int] | None = None,
    rng_streams: Sequence[Sequence[int]] | None = None,
) -> GeneratedTexts:  # fmt: skip
    """Generate texts for prompts, with the options as they are. For mBART's languages, `forced_first` or `start` is the
    target's token, and `id_replacements` puts the source's in place of another. Equal prompts give equal texts, unless
    `rng_streams` numbers the draws of each prompt's samples."""
    replaced = id_replacements or {}
    prompt_ids = [[replaced.get(i, i) for i in encode_prompt(former, text)] for text in list_prompts(prompts)]
    rows = check_prompts(former, prompt_ids, options.max_new_tokens) if prompt_ids or draft is not None else []
    constraints = build_constraints(former, options, forced_first)
    results: list[list[str]] = [[] for _ in rows]
    if draft is not None:
        from .speculative import SpeculativeDecoder

        decoder = SpeculativeDecoder(former, draft)
        for at, row in enumerate(rows):
            samples = [decoder.generate_ids(row, constraints, sample) for sample in range(options.num_samples)]
            results[at] = [decode_ids(former, constraints, row, ids) for ids in samples]
    else:
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))  # rows of a length side by side
        step = max(1, BATCH_ROWS // options.rows_per_prompt)
        for chosen in (order[at : at + step] for at in range(0, len(order), step)):
            inputs = [rows[i] for i in chosen]
            batch = DecodingBatch(former, inputs, options.max_new_tokens, options.rows_per_prompt, start)
            if rng_streams is not None:
                batch.rng_streams = np.array([number for i in chosen for number in rng_streams[i]], np.uint64)
            for i, texts in zip(chosen, decode_to_texts(batch, constraints), strict=True):
                results[i] = texts
    outputs = [samples[0] if options.num_samples == 1 else samples for samples in results]
    return outputs[0] if isinstance(prompts, str) else outputs


def decode_to_texts(batch: DecodingBatch, constraints: Constraints) -> list[list[str]]:
    """Decode a batch to texts, `rows_per_prompt` for each prompt; a stop string ends its text at once."""
    former, count = batch.former, batch.rows_per_prompt
    prompts = [text[:length] for text, length in zip(batch.sequences, batch.prompt_lengths, strict=True)]
    if constraints.options.num_beams > 1:
        both = zip(prompts[::count], decode_batch(batch, constraints), strict=True)
        return [[decode_ids(former, constraints, prompt, one.ids) for one in hypotheses] for prompt, hypotheses in both]
    watchers = [make_watcher(former, constraints, prompt) for prompt in prompts]
    texts = [""] * len(watchers)
    for new in decode_steps(batch, constraints, 1 if constraints.options.stop else STEPS_AHEAD):
        for row, token in enumerate(new):
            if token is not None:
                texts[row] += watchers[row].push(token)
                if watchers[row].is_stopped:
                    batch.finish_row(row)
    texts = [text + watcher.flush().rstrip("\ufffd") for text, watcher in zip(texts, watchers, strict=True)]
    return [texts[at : at + count] for at in range(0, len(texts), count)]


def stream_text(former: Former, prompt: str, options: Options) -> Iterator[str]:
    """Yield one text piece by piece."""
    rows = check_prompts(former, [encode_prompt(former, prompt)], options.max_new_tokens)
    batch, constraints = DecodingBatch(former, rows, options.max_new_tokens), build_constraints(former, options)
    watcher = make_watcher(former, constraints, batch.sequences[0])
    for (token,) in decode_steps(batch, constraints):
        piece = "" if token is None else watcher.push(token)
        if piece:
            yield piece
        if watcher.is_stopped:
            return
    if rest := watcher.flush().rstrip("\ufffd"):
        yield rest


def decode_ids(former: Former, constraints: Constraints, prompt: Sequence[int], ids: list[int]) -> str:
    """Decode new ids to text up to a stop string, with the space that belongs between prompt and text."""
    watcher = make_watcher(former, constraints, prompt)
    return "".join(map(watcher.push, ids)) + watcher.flush().rstrip("\ufffd")


def make_watcher(former: Former, constraints: Constraints, prompt: Sequence[int]) -> StopWatcher:
    """Watch what follows a prompt for stop strings; a source is not part of an encoder-decoder's text."""
    assert constraints.tokenizer is not None
    return StopWatcher(constraints.tokenizer, constraints.options.stop, () if former.is_encoder_decoder else prompt)


class StopWatcher:
    """A growing text: `push` ids and get whole characters that are not part of a stop string.

    As soon as a stop string is complete the text `is_stopped`: it ends before it. Where several are complete at once,
    it ends before the longest. What `push` and `flush` give, joined, is the text; how its tokens are cut does not
    matter."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = (), prompt: Sequence[int] = ()):
        self.stream, self.stop_strings = DecodeStream(tokenizer), tuple(stops)
        self.is_stopped, self.held_back = False, ""
        for index in prompt[-PROMPT_TAIL:]:
            self.stream.push(index)
        self.stream.open_syllable = ""  # the prompt's last one was shown before this stream began

    def push(self, index: int) -> str:
        """Add an id; returns the text that is now safe to show."""
        return "" if self.is_stopped else self.add_text(self.stream.push(index))

    def flush(self) -> str:
        """End the text; returns what was held back and did not become a stop string."""
        if self.is_stopped:
            return ""
        piece = self.add_text(self.stream.flush())
        piece, self.held_back, self.is_stopped = piece + self.held_back, "", True
        return piece

    def add_text(self, more: str) -> str:
        """Add text; returns what is now safe to show."""
        text = self.held_back + more
        if stops := [(at + len(stop), at) for stop in self.stop_strings if (at := text.find(stop)) >= 0]:
            self.is_stopped, self.held_back = True, ""
            return text[: min(stops)[1]]
        longest = min(len(text), max(map(len, self.stop_strings), default=1) - 1)
        ends = (text[-n:] for n in range(longest, 0, -1))
        self.held_back = next((end for end in ends if any(s.startswith(end) for s in self.stop_strings)), "")
        return text[: len(text) - len(self.held_back)]


def list_prompts(prompts: str | Sequence[str]) -> list[str]:
    """Return one prompt or several as a list of strings."""
    texts = [prompts] if isinstance(prompts, str) else list_texts(prompts)
    if not all(isinstance(one, str) for one in texts):
        raise Error(f"a prompt must be text, got {format_value(prompts)}", fix="give a string, or a list of them")
    return texts


def encode_prompt(former: Former, text: str) -> list[int]:
    """Encode a text as the model read it in training: a decoder's prompt, or an encoder's source with its marks."""
    tokenizer, config = former.tokenizer, former.config
    if tokenizer is None:
        fix = "load one that has; formers.generation.decoding.continue_ids takes ids"
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
    if find_family(former.family).takes_pairs and end is not None:
        return [*tokenizer.encode(text, special=False), end]  # a source as the objective frames it
    language = former.task.get("source_language")  # of mBART
    swap = find_language_swap(tokenizer, str(language)) if language else {}
    return [swap.get(i, i) for i in tokenizer.encode(text)]
