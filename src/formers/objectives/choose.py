"""Objectives by the name under which families declare them."""

from __future__ import annotations

from typing import Any

from ..config import suggest
from ..errors import Error
from ..text.tokenizer import Tokenizer
from .causal import CausalLM
from .masked import MaskedLM

OBJECTIVES = {"causal": CausalLM.of, "masked": MaskedLM.of}


def objective(name: str, tokenizer: Tokenizer, length: int) -> Any:
    """An objective for a tokenizer, over examples of a length."""
    if name not in OBJECTIVES:
        raise Error(f"the objective {name!r} is not available", fix=suggest(name, OBJECTIVES))
    return OBJECTIVES[name](tokenizer, length)
