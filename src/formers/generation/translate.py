"""Translating and summarising: by models that were trained for it, and by prompting those that were not (Radford et al.
2019, §3; Brown et al. 2020, §2)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TypedDict

from ..config import Settings, format_value
from ..errors import Error
from ..former import Former
from ..option_aliases import resolve_generation_options
from ..tasks.api import find_mixture_task
from ..text.languages import find_template_language, get_language_code, get_language_id
from ..verbs import check_verb
from .api import GeneratedTexts, generate_texts, list_prompts
from .logits_processors import read_search_options
from .options import SAMPLING_OPTIONS, Options, make_options

FewShotExamples = Sequence[tuple[str, str]]


def translate(
    former: Former, texts: str | Sequence[str], to: str | None = None, source: str | None = None, *,
    examples: FewShotExamples = (), prefix: str | None = None, task: str | None = None, **settings: object,
) -> GeneratedTexts:  # fmt: skip
    """Translate each text: a string gives a string, a list a list.

    An encoder-decoder is searched as its checkpoint says (else greedily). T5 gets the prefix "translate English to
    German: " (`source` and `to`), or your own `prefix`; mBART takes language codes such as ko_KR; Marian and others
    have fixed languages and take none. A decoder is prompted, best with some `examples` (pairs), and answers in one
    line. `task` names one of a model that learned a mixture: it gets the prefix that it learned with. Other options are
    those of generate."""
    former = former.select_task(task)
    check_verb(former, "translate")
    warn_other_task(former, "translate")
    if not former.is_encoder_decoder:
        if to is None:
            raise Error("a decoder must be told the target language", fix="for example to='French'")
        prompts = [make_translation_prompt(text, to, source or "English", examples) for text in list_prompts(texts)]
        return answer_prompts(former, texts, prompts, settings, stop="\n")
    if examples:
        raise Error("examples apply only to decoders, which are prompted", fix="leave examples out")
    if (to or source) and not (former.definition.task_prefixes or former.definition.has_language_codes):
        what = f"{former.family} has fixed languages, and does not take {format_value(to or source)}"
        raise Error(what, fix="leave the languages out")
    prefix = find_learned_prefix(former, "translate") if prefix is None and to is None else prefix
    if prefix is None and to is not None and (own := former.definition.task_prefixes.get("translate")):
        prefix = own.format(source=source or "English", to=to)
    codes = resolve_languages(former, source, to) if former.definition.has_language_codes else LanguageArguments()
    return generate_texts(former, add_prefix(texts, prefix), build_search_options(former, settings, prefix), **codes)


def summarise(
    former: Former, texts: str | Sequence[str], *, prefix: str | None = None, task: str | None = None,
    **settings: object,
) -> GeneratedTexts:  # fmt: skip
    """Summarise each text: a string gives a string, a list a list.

    An encoder-decoder is searched as its checkpoint says (else greedily); T5 gets the prefix "summarize: ", or your own
    `prefix`; one that was fine-tuned gets the prefix that it learned with. A decoder reads the text and "TL;DR:" (or
    your own words). `task` names one of a model that learned a mixture. Other options are those of generate."""
    former = former.select_task(task)
    check_verb(former, "summarise")
    warn_other_task(former, "summarise")
    if not former.is_encoder_decoder:
        prompts = [make_summary_prompt(text, "TL;DR:" if prefix is None else prefix) for text in list_prompts(texts)]
        return answer_prompts(former, texts, prompts, settings, stop="\n\n")
    prefix = find_learned_prefix(former, "summarise") if prefix is None else prefix
    prefix = former.definition.task_prefixes.get("summarise") if prefix is None else prefix
    return generate_texts(former, add_prefix(texts, prefix), build_search_options(former, settings, prefix))


def find_learned_prefix(former: Former, name: str) -> str | None:
    """Return the prefix that a model was fine-tuned with for a task; None where it was not."""
    task = former.task or find_mixture_task(former, name)
    return str(task.get("prefix", "")) if task.get("name") == name else None


def warn_other_task(former: Former, name: str) -> None:
    """Warn if the model was trained for another task."""
    if former.task.get("name", name) not in (name, "lm"):
        warnings.warn(f"this model was trained to {former.task['name']}, not to {name}", stacklevel=3)


def build_search_options(former: Former, settings: Settings, prefix: str | None = None) -> Options:
    """Build the options for an encoder-decoder: the given settings over the checkpoint's own; greedy by default."""
    settings = resolve_generation_options(settings, Options.__dataclass_fields__)
    settings = {name: value for name, value in settings.items() if value is not None}
    own = read_search_options(former, prefix)
    is_sampled = any(settings.get(name) for name in SAMPLING_OPTIONS)
    if is_sampled or settings.get("num_beams", own.get("num_beams", 1)) == 1:
        beam_options = ("num_beams", "length_penalty", "early_stopping")
        own = {name: value for name, value in own.items() if name not in beam_options}
        own |= {} if is_sampled else {"temperature": 0}
    if settings.get("max_new_tokens", own["max_new_tokens"]) < own["min_new_tokens"]:
        own["min_new_tokens"] = 0
    return make_options(settings, **own)


def answer_prompts(
    former: Former, texts: str | Sequence[str], prompts: list[str], settings: Settings, stop: str
) -> GeneratedTexts:
    """Continue prompts up to a stop string, greedily by default, and return the stripped texts."""
    settings = resolve_generation_options(settings, Options.__dataclass_fields__)
    greedy = settings.get("num_beams") in (None, 1) and not any(settings.get(name) for name in SAMPLING_OPTIONS)
    options = make_options(settings, stop=(stop,), **({"temperature": 0} if greedy else {}))
    answers = generate_texts(former, prompts, options)
    clean = [[one.strip() for one in each] if isinstance(each, list) else each.strip() for each in answers]
    return clean[0] if isinstance(texts, str) else clean


def add_prefix(texts: str | Sequence[str], prefix: str | None) -> str | list[str]:
    """Put a prefix before each text that is not empty."""
    prefixed = [f"{prefix or ''}{text}" if text.strip() else text for text in list_prompts(texts)]
    return prefixed[0] if isinstance(texts, str) else prefixed


class LanguageArguments(TypedDict, total=False):
    """What mBART's languages are to `generate_texts`."""

    forced_first: int | None
    start: int | None
    id_replacements: dict[int, int]


def resolve_languages(former: Former, source: str | None, to: str | None) -> LanguageArguments:
    """Return mBART's language codes as arguments of `generate_texts`. The target's code is the decoder's start token
    (mBART-25) or its forced first token (mBART-50); the source's replaces the code that a prompt is encoded with."""
    tokenizer = former.output_tokenizer
    assert tokenizer is not None
    arguments: LanguageArguments = {}
    if source is not None and former.tokenizer is not None:
        source_id = get_language_id(tokenizer, source)
        own = str(former.task.get("source_language") or find_template_language(former.tokenizer))
        arguments["id_replacements"] = {get_language_id(tokenizer, own): source_id} if own else {}
    if to is not None:
        target_id, start = get_language_id(tokenizer, to), former.config.start
        if start is None or get_language_code(tokenizer, start):
            arguments["start"] = target_id
        else:
            arguments["forced_first"] = target_id
    return arguments


def make_few_shot_prompt(
    query: str, examples: FewShotExamples = (), *, task: str = "", question_prefix: str = "Q: ",
    answer_prefix: str = "A:", separator: str = "\n\n",
) -> str:  # fmt: skip
    """Write a prompt of a task, examples with answers, and a question; stop generation at the `separator`."""
    if not separator:
        raise Error("separator must not be empty", fix="take an empty line: separator='\\n\\n'")
    shots = [f"{question_prefix}{question}\n{answer_prefix} {answer}" for question, answer in check_pairs(examples)]
    return separator.join([*([task] if task else []), *shots, f"{question_prefix}{query}\n{answer_prefix}"])


def make_translation_prompt(text: str, to: str, source: str = "English", examples: FewShotExamples = ()) -> str:
    """Write a prompt for translation with examples, line by line; stop generation at the end of the line."""
    lines = [f"{source}: {to_one_line(left)}\n{to}: {to_one_line(right)}\n" for left, right in check_pairs(examples)]
    task = f"Translate {source} to {to}.\n\n" if not lines else ""
    return task + "\n".join([*lines, f"{source}: {to_one_line(text)}\n{to}:"])


def make_summary_prompt(text: str, cue: str = "TL;DR:") -> str:
    """Write a prompt for a summary: the text and the cue before summaries on the web (Radford et al. 2019, §3.6)."""
    return f"{text.rstrip()}\n{cue}"


def check_pairs(examples: FewShotExamples) -> list[tuple[str, str]]:
    """Return examples as stripped pairs; refuse anything else."""
    if not all(isinstance(e, tuple | list) and len(e) == 2 and all(isinstance(s, str) for s in e) for e in examples):
        raise Error("an example must be a pair of texts", fix="for example [('cheese', 'fromage')]")
    return [(left.strip(), right.strip()) for left, right in examples]


def to_one_line(text: str) -> str:
    """Join the lines of a text into one."""
    return " ".join(text.split())
