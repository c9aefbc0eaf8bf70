"""Logits processors: tokens that are penalised, banned or forced, by the caller's options and the checkpoint's own
generation_config.json."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..config import JSONObject, JSONValue, Settings, format_value, parse_json_object
from ..errors import Error
from ..former import Former
from ..text.languages import find_forced_language
from ..text.tokenizer import Tokenizer
from .options import BadWord, Options

NEG_INF = -torch.inf
CONFIG_FILES = ("generation_config.json", "config.json")  # older checkpoints have the latter only
# What a file says about searching, by our names: the defaults of translate and summarise.
HF_SEARCH_OPTIONS = {
    "num_beams": "num_beams", "length_penalty": "length_penalty", "early_stopping": "early_stopping",
    "no_repeat_ngram_size": "no_repeat_ngram", "repetition_penalty": "repetition_penalty",
    "min_length": "min_new_tokens", "max_length": "max_new_tokens",
}  # fmt: skip


@dataclass(frozen=True)
class Constraints:
    """Tokens that end a sequence, and those that it must or must not contain."""

    options: Options
    end_ids: tuple[int, ...] = ()
    forced_first: tuple[int, ...] = ()  # the only ones that may begin a text
    forced_last: tuple[int, ...] = ()  # the only ones that may stand at its largest length
    banned_ids: tuple[int, ...] = ()
    banned_first: tuple[int, ...] = ()
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    tokenizer: Tokenizer | None = None  # what finds stop strings in a text

    def has_stop_string(self, ids: list[int]) -> bool:
        """Return whether these ids, decoded, contain a stop string."""
        stops = self.options.stop
        text = self.tokenizer.decode(ids) if stops and self.tokenizer is not None else ""
        return any(stop in text for stop in stops)

    @property
    def has_history_rules(self) -> bool:
        """True if a rule reads the tokens so far, and not the scores alone."""
        o = self.options
        return o.repetition_penalty != 1 or o.no_repeat_ngram is not None or bool(self.banned_sequences)

    def apply(self, scores: Tensor, texts: Tensor | None, step: int) -> Tensor:
        """(rows, vocab) scores of the token number `step`, in transformers' order; `texts` (rows, tokens) are filled
        up with -1 on the left, and None where nothing is read of them."""
        o = self.options
        if texts is not None:
            scores = penalise_repetition(scores, texts, o.repetition_penalty) if o.repetition_penalty != 1 else scores
            scores = ban_repeated_ngrams(scores, texts, o.no_repeat_ngram) if o.no_repeat_ngram is not None else scores
            scores = ban_sequences(scores, texts, self.banned_sequences) if self.banned_sequences else scores
        scores = ban_tokens(scores, self.banned_ids) if self.banned_ids else scores
        if step < o.min_new_tokens and self.end_ids:
            scores = ban_tokens(scores, self.end_ids)
        if step == 0 and self.forced_first:
            scores = force_tokens(scores, self.forced_first)
        if step == o.max_new_tokens - 1 and self.forced_last:
            scores = force_tokens(scores, self.forced_last)
        if self.banned_first and step == (1 if self.forced_first else 0):
            scores = ban_tokens(scores, self.banned_first)
        return scores


def build_constraints(former: Former, options: Options, forced_first: int | None = None) -> Constraints:
    """Collect the constraints of a checkpoint and of the options; `forced_first` is mBART's language token, by default
    that of the task."""
    file_config, vocab = read_generation_config(former), former.output_vocab

    def read_token_ids(name: str) -> tuple[int, ...]:
        return tuple(one for one in to_token_ids(file_config.get(name), name) if 0 <= one < vocab)

    bad_words = file_config.get("bad_words_ids") or []
    are_lists = isinstance(bad_words, list) and all(isinstance(word, list) and word for word in bad_words)
    if not are_lists or not all(type(i) is int for word in bad_words for i in word):
        what = f"bad_words_ids: {format_value(bad_words)} is not a list of token lists"
        raise Error(what, where=CONFIG_FILES[0], fix="correct it")
    ends = tuple(get_end_ids(former))
    known = [tuple(row) for row in bad_words if all(0 <= i < vocab for i in row)]  # others cannot occur
    rows = [row for row in known if not (len(row) == 1 and row[0] in ends)]
    rows += [row for word in options.bad_words for row in encode_bad_word(former, word, vocab)]
    banned = {row[0] for row in rows if len(row) == 1} | set(read_token_ids("suppress_tokens"))
    if former.definition.never_writes_pad and former.config.pad not in (None, *ends):
        banned.add(former.config.pad)  # Marian starts with it, and would generate it
    if len(banned) >= vocab:
        raise Error(f"all {vocab} tokens are banned", fix="leave some of them")
    language = former.task.get("target_language")
    if forced_first is None and former.output_tokenizer is not None and language:
        forced_first = find_forced_language(former.output_tokenizer, str(language), former.config.start)
    first = read_token_ids("forced_bos_token_id") if forced_first is None else (forced_first,)
    return Constraints(
        options, end_ids=tuple(end for end in ends if 0 <= end < vocab),
        forced_first=first if former.is_encoder_decoder else (), forced_last=read_token_ids("forced_eos_token_id"),
        banned_ids=tuple(sorted(banned)), banned_first=read_token_ids("begin_suppress_tokens"),
        banned_sequences=tuple(row for row in rows if len(row) > 1), tokenizer=former.output_tokenizer,
    )  # fmt: skip


def to_token_ids(value: JSONValue, name: str) -> list[int]:
    """Return a value of a config file, one token or a list of them, as a list; refuse anything else."""
    ids = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    if not all(type(one) is int for one in ids):
        raise Error(f"{name}: {format_value(value)} is not a token", where=CONFIG_FILES[0], fix="correct it")
    return ids


def read_config_file(former: Former, name: str) -> JSONObject:
    """Read a JSON file that came with the checkpoint; empty if there was none."""
    config_bytes = former.source_files.get(name)
    return {} if config_bytes is None else parse_json_object(config_bytes.decode("utf-8", "replace"), name)


def read_generation_config(former: Former) -> JSONObject:
    """Read the checkpoint's generation_config.json if there is one, else its config.json."""
    return read_config_file(former, CONFIG_FILES[0 if CONFIG_FILES[0] in former.source_files else 1])


def read_search_options(former: Former, prefix: str | None = None) -> Settings:
    """Read the checkpoint's own search settings as options; T5's config.json has them for each task, by its `prefix`.
    Lengths in a file count the decoder's start token."""
    file_config = read_generation_config(former)
    tasks = read_config_file(former, "config.json").get("task_specific_params") if prefix else None
    for task in tasks.values() if isinstance(tasks, dict) else ():
        file_config = file_config | task if isinstance(task, dict) and task.get("prefix") == prefix else file_config
    named = {ours: file_config.get(theirs) for theirs, ours in HF_SEARCH_OPTIONS.items()}
    options: Settings = {name: value for name, value in named.items() if value is not None}
    for name, value in options.items():
        if not isinstance(value, int | float) and (name, value) != ("early_stopping", "never"):
            raise Error(f"{name}: {format_value(value)} is not a valid value", where=CONFIG_FILES[0], fix="correct it")
    longest = options["max_new_tokens"] = max(1, options.get("max_new_tokens", 65) - 1)
    shortest = max(0, options.get("min_new_tokens", 1) - 1)
    options["min_new_tokens"] = shortest if shortest <= longest else 0
    options["no_repeat_ngram"] = options.get("no_repeat_ngram") or None
    if options.get("num_beams", 1) == 1:
        for name in ("length_penalty", "early_stopping", "num_beams"):
            options.pop(name, None)
    return options


def get_end_ids(former: Former) -> set[int]:
    """Return the end tokens of generation_config.json if there is one, else of the config."""
    marks = read_config_file(former, CONFIG_FILES[0]).get("eos_token_id")
    return set(to_token_ids(former.config.eos if marks is None else marks, "eos_token_id"))


def encode_bad_word(former: Former, word: BadWord, vocab: int) -> list[tuple[int, ...]]:
    """Encode a banned word as rows of tokens, with a space in front and without."""
    if isinstance(word, str):
        if former.output_tokenizer is None:
            raise Error(f"the banned word {word!r} needs a tokenizer", fix="give its ids")
        ways = (word, " " + word.lstrip()) if word.strip() else (word,)
        encoded = {tuple(former.output_tokenizer.encode(way, special=False)) for way in ways}
        rows = sorted(row for row in encoded if row)
    else:
        rows = [(word,)] if isinstance(word, int) else [tuple(word)] if word else []
    if not rows or not all(type(i) is int and 0 <= i < vocab for row in rows for i in row):
        what = f"{format_value(word)} cannot be banned: the vocabulary has {vocab} tokens"
        raise Error(what, fix="give a word, an id or ids")
    return rows


def penalise_repetition(scores: Tensor, texts: Tensor, penalty: float) -> Tensor:
    """Make tokens that have occurred less likely: a positive score is divided, a negative one multiplied (Keskar et al.
    2019). `texts` (rows, tokens) are padded with -1 on the left."""
    is_present = make_token_mask(scores, texts, texts >= 0)
    return torch.where(is_present, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def ban_repeated_ngrams(scores: Tensor, texts: Tensor, n: int) -> Tensor:
    """Never repeat an n-gram: ban what followed the last n - 1 tokens before."""
    if texts.shape[1] < n:
        return scores
    windows = texts.unfold(1, n, 1)  # (rows, windows, n)
    same = (windows[..., :-1] == texts[:, None, texts.shape[1] - n + 1 :]).all(-1) & (windows >= 0).all(-1)
    return scores.masked_fill(make_token_mask(scores, windows[..., -1], same), NEG_INF)


def ban_sequences(scores: Tensor, texts: Tensor, words: tuple[tuple[int, ...], ...]) -> Tensor:
    """Ban sequences: the last token of each may not follow the others."""
    scores = scores.clone()
    for *front, last in words:
        if len(front) <= texts.shape[1]:
            prefix = torch.tensor(front, device=texts.device, dtype=texts.dtype)
            follows = (texts[:, texts.shape[1] - len(front) :] == prefix).all(-1)
            scores[:, last].masked_fill_(follows, NEG_INF)
    return scores


def ban_tokens(scores: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Ban tokens."""
    return scores.index_fill(-1, get_cached_tensor(tokens, scores.device), NEG_INF)


def force_tokens(scores: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """Ban all tokens but these."""
    return torch.full_like(scores, NEG_INF).index_fill(-1, get_cached_tensor(tokens, scores.device), 0.0)


@functools.lru_cache(maxsize=64)
def get_cached_tensor(tokens: tuple[int, ...], device: torch.device) -> Tensor:
    """Return tokens as a tensor, cached: a copy to a GPU would wait for its queue."""
    return torch.tensor(tokens, device=device)


def make_token_mask(scores: Tensor, tokens: Tensor, which: Tensor) -> Tensor:
    """Return a (rows, vocab) mask, True at the tokens (rows, n) selected by `which`; others go to a spare column."""
    vocab = scores.shape[-1]
    mask = torch.zeros(len(scores), vocab + 1, dtype=torch.bool, device=scores.device)
    return mask.scatter_(1, torch.where(which, tokens, vocab).clamp(max=vocab), True)[:, :vocab]
