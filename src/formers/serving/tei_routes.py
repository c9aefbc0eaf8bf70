"""The routes of text-embeddings-inference, its health and metrics with them; `/rerank` and `/tokenize` take vLLM's
bodies as well, told by their keys."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response
from pydantic import Field

from .. import __version__
from ..config import JSONObject, JSONValue
from ..text.tokenizer import SPECIAL_ROLES, Tokenizer
from .openai_routes import RerankBody, rerank
from .request_context import embed_texts, get_state, run_verb
from .rerank import rank_documents
from .responses import JsonResponse, RequestBody, RequestError, describe_errors
from .served_models import ServedModel

router = APIRouter(responses=describe_errors("tei"))
OneOrMany = str | Annotated[list[str], Field(min_length=1)]


class TextsBody(RequestBody):
    """Texts to be embedded."""

    inputs: OneOrMany
    model: str | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    truncation_direction: str | None = None
    prompt_name: str | None = None
    dimensions: int | None = None

    def check_unsupported(self, served: ServedModel) -> None:
        """Refuse what would otherwise be ignored in silence."""
        if self.prompt_name is not None:
            raise RequestError("prompt_name is not supported", fix="write the prompt before the text")
        if self.dimensions not in (None, served.former.config.dim):
            raise RequestError("vectors are not shortened", fix="leave dimensions out")
        if (self.truncation_direction or "right").lower() != "right":
            raise RequestError("texts are truncated at their end alone", fix="leave truncation_direction out")


class PredictBody(RequestBody):
    """Texts or pairs to be classified: a text, a pair as a list of two, or a list of lists of one or two."""

    inputs: str | Annotated[list[str], Field(min_length=1, max_length=2)] | Annotated[
        list[Annotated[list[str], Field(min_length=1, max_length=2)]], Field(min_length=1)
    ]  # fmt: skip
    model: str | None = None
    truncate: bool | None = None
    raw_scores: bool | None = None


class TeiRerankBody(RequestBody):
    """Texts to be ranked by a query."""

    query: str
    texts: Annotated[list[str], Field(min_length=1)]
    model: str | None = None
    raw_scores: bool | None = None
    return_text: bool | None = None
    truncate: bool | None = None


class SimilarityInputs(RequestBody):
    """A sentence, and others to compare with it."""

    source_sentence: str
    sentences: Annotated[list[str], Field(min_length=1)]


class SimilarityBody(RequestBody):
    """A request for similarities."""

    inputs: SimilarityInputs
    model: str | None = None
    parameters: JSONObject | None = None


class TokenizeBody(RequestBody):
    """Texts to be tokenized, as text-embeddings-inference takes them."""

    inputs: OneOrMany
    model: str | None = None
    add_special_tokens: bool | None = None
    prompt_name: None = None


class VllmTokenizeBody(RequestBody):
    """A prompt to be tokenized, as vLLM takes it."""

    prompt: str
    model: str | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


TokenIds = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class DecodeBody(RequestBody):
    """Ids to be decoded."""

    ids: TokenIds | Annotated[list[TokenIds], Field(min_length=1)]
    model: str | None = None
    skip_special_tokens: bool | None = None


@router.post("/embed")
async def embed(request: Request, body: TextsBody) -> Response:
    """Embed texts: a list of vectors, of length 1 unless `normalize` is false."""
    served = get_state(request).models.find(body.model, "embed")
    body.check_unsupported(served)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    normalise = True if body.normalize is None else body.normalize
    vectors = await embed_texts(request, served, texts, truncate=bool(body.truncate), normalise=normalise)
    return JsonResponse(vectors.rows)


@router.post("/embed_all")
async def embed_all(request: Request, body: TextsBody) -> Response:
    """Embed every token of texts, special tokens included: of each text a list of vectors."""
    served = get_state(request).models.find(body.model, "embed")
    body.check_unsupported(served)
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    vectors = await embed_texts(request, served, texts, truncate=bool(body.truncate), level="embed_tokens")
    return JsonResponse(vectors.rows)


@router.post("/predict")
async def predict(request: Request, body: PredictBody) -> Response:
    """Classify texts or pairs: labels with their scores, the likeliest first."""
    models = get_state(request).models
    served = models.find(body.model)
    if body.model is None:
        served = next((one for one in models.models.values() if "classify" in one.verbs or one.is_reranker), served)
    is_single = isinstance(body.inputs, str) or isinstance(body.inputs[0], str)
    inputs: list[JSONValue] = [body.inputs] if is_single else list(body.inputs)
    texts = [one if isinstance(one, str) else one[0] if len(one) == 1 else tuple(one) for one in inputs]
    how = {} if body.truncate else choose_long_mode(served)
    if served.is_reranker:
        scores = await run_verb(request, served, "score", texts, **how)
        label = served.former.labels[0]
        rows = [[{"score": one if body.raw_scores else sigmoid(one), "label": label}] for one in scores]
    else:
        if body.raw_scores:
            raise RequestError("raw_scores of several labels are not supported", fix="leave it out for probabilities")
        predictions = await run_verb(request, served, "classify", texts, **how)
        rows = [rank_labels(one.probabilities) for one in predictions]
    return JsonResponse(rows[0] if is_single else rows)


def choose_long_mode(served: ServedModel) -> dict[str, str]:
    """Refuse long texts where the model was trained to cut them: nothing is cut in silence."""
    return {"long": "error"} if served.former.task.get("long") == "cut" else {}


def rank_labels(probabilities: dict[str, float]) -> list[JSONObject]:
    """List labels with their scores, the likeliest first."""
    order = sorted(probabilities.items(), key=lambda one: -one[1])
    return [{"score": score, "label": label} for label, score in order]


def sigmoid(value: float) -> float:
    """Return the probability of a logit."""
    return 1 / (1 + math.exp(-min(max(value, -700.0), 700.0)))


@router.post("/rerank")
async def rerank_texts(request: Request, body: TeiRerankBody | RerankBody) -> Response:
    """Rank texts by a query, the best first; a body with `documents` is vLLM's, and gets vLLM's answer."""
    if isinstance(body, RerankBody):
        return await rerank(request, body)
    _, ranked, _ = await rank_documents(
        request, body.model, body.query, body.texts, raw=bool(body.raw_scores), truncate=bool(body.truncate)
    )
    return JsonResponse([
        {"index": index, "score": score} | ({"text": body.texts[index]} if body.return_text else {})
        for index, score in ranked
    ])  # fmt: skip


@router.post("/similarity")
async def compare(request: Request, body: SimilarityBody) -> Response:
    """Compare sentences with another: the cosines of their embeddings."""
    served = get_state(request).models.find(body.model, "embed")
    vectors = await embed_texts(request, served, [body.inputs.source_sentence, *body.inputs.sentences])
    rows = np.stack(vectors.rows)
    return JsonResponse(rows[1:] @ rows[0])


def get_tokenizer(served: ServedModel) -> Tokenizer:
    """Return a model's tokenizer."""
    if served.former.tokenizer is None:
        raise RequestError(f"the model {served.name!r} has no tokenizer", kind="tokenizer", status=422)
    return served.former.tokenizer


@router.post("/tokenize")
async def tokenize(request: Request, body: TokenizeBody | VllmTokenizeBody) -> Response:
    """Tokenize texts: ids, texts and places; a body with `prompt` is vLLM's, and gets vLLM's answer."""
    models = get_state(request).models
    served = models.find(body.model)
    tokenizer, special = get_tokenizer(served), body.add_special_tokens is not False
    texts = [body.prompt] if isinstance(body, VllmTokenizeBody) else body.inputs
    texts = [texts] if isinstance(texts, str) else texts
    rows = await models.run(lambda: [tokenizer.encode_with_offsets(text, special=special) for text in texts])
    if isinstance(body, VllmTokenizeBody):
        ids = rows[0][0]
        names = [tokenizer.get_token_text(i) for i in ids] if body.return_token_strs else None
        return JsonResponse({
            "count": len(ids), "max_model_len": served.former.context, "tokens": ids, "token_strs": names,
        })  # fmt: skip
    return JsonResponse([[describe_token(tokenizer, i, span) for i, span in zip(*row, strict=True)] for row in rows])


def check_known(tokenizer: Tokenizer, rows: list[list[int]]) -> None:
    """Refuse ids that the vocabulary does not have."""
    if any(index >= len(tokenizer) for row in rows for index in row):
        what = f"ids must lie in 0 … {len(tokenizer) - 1}"
        raise RequestError(what, kind="tokenizer", status=422, fix="give ids of this model's vocabulary")


def describe_token(tokenizer: Tokenizer, index: int, span: tuple[int, int]) -> JSONObject:
    """Describe a token of a text; a special token stands nowhere in it."""
    text = tokenizer.get_token_text(index)
    is_special = text in tokenizer.reserved_tokens
    start, stop = (None, None) if is_special and span[0] == span[1] else span
    return {"id": index, "text": text, "special": is_special, "start": start, "stop": stop}


@router.post("/decode")
async def decode(request: Request, body: DecodeBody) -> Response:
    """Decode ids to texts."""
    models = get_state(request).models
    tokenizer = get_tokenizer(models.find(body.model))
    rows: JSONValue = body.ids if isinstance(body.ids[0], list) else [body.ids]
    check_known(tokenizer, rows)
    special = body.skip_special_tokens is False
    return JsonResponse(await models.run(lambda: [tokenizer.decode(row, special=special) for row in rows]))


class DetokenizeBody(RequestBody):
    """Ids to be decoded, as vLLM takes them."""

    tokens: TokenIds
    model: str | None = None


@router.post("/detokenize")
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    """Decode ids to a text, special tokens included, as vLLM does."""
    models = get_state(request).models
    tokenizer = get_tokenizer(models.find(body.model))
    check_known(tokenizer, [body.tokens])
    return JsonResponse({"prompt": await models.run(lambda: tokenizer.decode(body.tokens, special=True))})


@router.get("/tokenizer_info")
async def show_tokenizer(request: Request, model: str | None = None) -> Response:
    """Name the special tokens and the size of a tokenizer, as vLLM does."""
    tokenizer = get_tokenizer(get_state(request).models.find(model))
    names = {f"{role}_token": tokenizer.special.get(role) for role in SPECIAL_ROLES}
    return JsonResponse({"vocab_size": len(tokenizer), "chat_template": None, **names})


@router.get("/info")
async def show_info(request: Request, model: str | None = None) -> Response:
    """Describe a model and the server's limits."""
    state = get_state(request)
    served, limits = state.models.find(model), state.settings.limits
    labels = {str(number): name for number, name in enumerate(served.former.labels)}
    classes = {"id2label": labels, "label2id": {name: int(number) for number, name in labels.items()}}
    kind: JSONObject = {"embedding": {"pooling": state.settings.pool}}
    if served.is_reranker:
        kind = {"reranker": classes}
    elif "classify" in served.verbs:
        kind = {"classifier": classes}
    return JsonResponse({
        "model_id": served.name, "model_sha": served.version, "model_dtype": str(served.former.dtype)[6:],
        "model_type": kind, "max_concurrent_requests": limits.max_concurrent_requests,
        "max_input_length": limits.max_batch_tokens, "max_batch_tokens": limits.max_batch_tokens,
        "max_batch_requests": None, "max_client_batch_size": limits.max_texts, "auto_truncate": False,
        "tokenization_workers": 2, "version": __version__, "sha": None, "docker_label": None,
    })  # fmt: skip


@router.get("/health/live")
async def report_live() -> Response:
    """Answer as long as the process runs."""
    return JsonResponse({"status": "live"})


@router.get("/health")
@router.get("/health/ready")
async def report_ready(request: Request) -> Response:
    """Answer 200 while the server takes requests, 503 once it is stopping."""
    if get_state(request).is_draining:
        raise RequestError("this server is stopping", status=503, kind="unhealthy", retry_after=1)
    return JsonResponse({"status": "ready"})


@router.get("/metrics", response_class=PlainTextResponse)
async def show_metrics(request: Request) -> Response:
    """Show the metrics for Prometheus."""
    return Response(get_state(request).metrics.format_text(), media_type="text/plain; version=0.0.4; charset=utf-8")
