"""Language codes of mBART's tokenizers: a token such as ko_KR in the template, after a text (mBART) or before it
(mBART-50)."""

from __future__ import annotations

import dataclasses
import re

from ..config import format_value
from ..errors import Error
from .tokenizer import Template, Tokenizer

LANGUAGE_CODE = re.compile("[a-z]{2,3}_[A-Z]{2}")


def get_language_id(tokenizer: Tokenizer, code: str) -> int:
    """Return the id of a language code; an Error if it is none of this tokenizer."""
    index = tokenizer.backend.token_to_id(code) if LANGUAGE_CODE.fullmatch(code) else None
    if index is None:
        raise Error(f"{format_value(code)} is not a language of this mBART", fix="for example ko_KR")
    return int(index)


def get_language_code(tokenizer: Tokenizer, index: int | None) -> str:
    """Return the language code that has this id; empty if the id is of another token, or None."""
    code = "" if index is None else tokenizer.backend.id_to_token(index) or ""
    return code if LANGUAGE_CODE.fullmatch(code) else ""


def find_template_language(tokenizer: Tokenizer) -> str:
    """Return the language code in a tokenizer's template; empty if there is none."""
    frame = tokenizer.get_template()
    return next((code for i in (*frame.before, *frame.after) if (code := get_language_code(tokenizer, i))), "")


def find_language_swap(tokenizer: Tokenizer, code: str) -> dict[int, int]:
    """Return {id of the template's language: id of another}, to be applied to encoded texts. Empty for an empty code
    and for a tokenizer without languages."""
    own = find_template_language(tokenizer) if code else ""
    return {get_language_id(tokenizer, own): get_language_id(tokenizer, code)} if own else {}


def swap_template_language(tokenizer: Tokenizer, template: Template, code: str) -> Template:
    """Return a template of this tokenizer with another language in place of its own; an empty code changes nothing."""
    swap = find_language_swap(tokenizer, code)
    before, between, after = (
        tuple(swap.get(i, i) for i in part) for part in (template.before, template.between, template.after)
    )
    return dataclasses.replace(template, before=before, between=between, after=after)


def find_forced_language(tokenizer: Tokenizer, code: str, start: int | None) -> int | None:
    """Return the id of the target's language if a decoder must write it first (mBART-50); None for an empty code, and
    if the language is the decoder's start token (mBART)."""
    return None if not code or (index := get_language_id(tokenizer, code)) == start else index
