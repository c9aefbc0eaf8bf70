"""Ranking documents by a query: by a cross-encoder where the model is one, else by the cosine of embeddings."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from fastapi import Request

from .request_context import embed_texts, get_state, run_verb
from .served_models import ServedModel

Ranking = list[tuple[int, float]]  # the number of a document and its score, the best first


async def rank_documents(
    request: Request, model: str | None, query: str, documents: Sequence[str], *, raw: bool = False,
    truncate: bool = False,
) -> tuple[ServedModel, Ranking, int]:  # fmt: skip
    """Rank documents; returns the model, the ranking and the number of tokens that were read.

    A cross-encoder's score is a logit, shown as its sigmoid unless `raw`; the score of embeddings is a cosine.
    """
    models = get_state(request).models
    served = models.find(model)
    if not model:
        served = next((one for one in models.models.values() if one.is_reranker), None) or models.find(verb="embed")
    if served.is_reranker:
        scores = await run_verb(request, served, "score", [(query, one) for one in documents])
        shown = scores if raw else [1 / (1 + math.exp(-min(max(score, -700.0), 700.0))) for score in scores]
        tokens = request.scope["log_facts"]["tokens"]
    else:
        vectors = await embed_texts(request, served, [query, *documents], truncate=truncate)
        rows = np.stack(vectors.rows)
        shown, tokens = (rows[1:] @ rows[0]).tolist(), sum(vectors.token_counts)
    order = sorted(range(len(documents)), key=lambda i: -shown[i])
    return served, [(i, float(shown[i])) for i in order], tokens
