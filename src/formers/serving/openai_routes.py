"""OpenAI's routes: models, completions, embeddings, and the rerank route that vLLM and Cohere share."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, Body, Request
from fastapi.responses import Response
from pydantic import BeforeValidator, Field, WithJsonSchema

from ..config import JSONObject, JSONValue
from ..errors import Error
from .completions import Completion, ScoredToken, check_token_ids
from .request_context import GenerationRequest, GenerationRun, GenerationStream, add_log_facts, embed_texts, get_state
from .rerank import rank_documents
from .responses import (
    DONE_EVENT,
    JsonResponse,
    RequestBody,
    RequestError,
    describe_answers,
    describe_errors,
    encode_event,
    make_error_body,
)
from .served_models import ServedModel

MAX_TOP = 20  # alternatives of a token
TOKEN_IDS_HINT = (
    "send text: ids of another tokenizer would be read in this model's vocabulary and give wrong results in silence. "
    "LangChain: OpenAIEmbeddings(check_embedding_ctx_length=False); lm-eval: tokenized_requests=False"
)
router = APIRouter(responses=describe_errors("openai"))


def check_inputs(value: JSONValue) -> JSONValue:
    """Check the shape of inputs: a text, texts, or token ids, about which the route decides."""
    rows = value if isinstance(value, list) else [value]
    if all(isinstance(one, str) for one in rows):
        for text in rows:
            text.encode("utf-8")  # a lone surrogate is refused here
        return value
    is_ids = all(type(one) is int for one in rows) or all(
        isinstance(row, list) and row and all(type(one) is int for one in row) for row in rows
    )
    if isinstance(value, list) and is_ids:
        return value
    raise ValueError("give a string, or a list of strings")


Texts = Annotated[JSONValue, BeforeValidator(check_inputs), WithJsonSchema({
    "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
})]  # fmt: skip
StopStrings = str | Annotated[list[str], Field(max_length=16)]


class CompletionBody(RequestBody):
    """A request for completions; beyond OpenAI's fields, formers' own options of generation."""

    model: str | None = None
    prompt: Texts = ""
    max_tokens: Annotated[int, Field(ge=0, le=2**20)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    stream: bool | None = None
    stream_options: dict[str, bool] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP)] | None = None
    echo: bool | None = None
    stop: StopStrings | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    user: str | None = None
    best_of: int | None = None
    suffix: str | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100)] | None = None
    no_repeat_ngram: Annotated[int, Field(ge=1)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=2**20)] | None = None

    def check_unsupported(self) -> None:
        """Refuse what would otherwise be ignored in silence."""
        names = ("suffix", "logit_bias", "presence_penalty", "frequency_penalty")
        values = self.model_dump(include=set(names))
        for name in names:
            if values[name]:
                fix = f"leave {name} out" + ("; repetition_penalty does something like it" if "penalty" in name else "")
                raise RequestError(f"{name} is not supported", fix=fix, code="unsupported_parameter")
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise RequestError("best_of other than n is not supported", fix="leave it out")

    def list_options(self) -> JSONObject:
        """List the options of generation by formers' names."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        return {
            "temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p,
            "typical_p": self.typical_p, "repetition_penalty": self.repetition_penalty, "stop": stop or None,
            "no_repeat_ngram": self.no_repeat_ngram, "seed": None if self.seed is None else self.seed % 2**63,
            "min_new_tokens": self.min_tokens,
        }  # fmt: skip


class EmbeddingBody(RequestBody):
    """A request for embeddings."""

    model: str | None = None
    input: Texts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    user: str | None = None


class RerankBody(RequestBody):
    """A request to rank documents by a query, as vLLM, Jina and Cohere take it."""

    model: str | None = None
    query: str
    documents: Annotated[list[str | dict[str, str]], Field(min_length=1)]
    top_n: Annotated[int, Field(ge=1)] | None = None
    return_documents: bool | None = None
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None


def describe_model(served: ServedModel) -> JSONObject:
    """Describe a model as /v1/models does."""
    return {
        "id": served.name, "object": "model", "created": served.created, "owned_by": "formers",
        "max_model_len": served.former.context, "family": served.former.family, "verbs": list(served.verbs),
    }  # fmt: skip


@router.get("/v1/models")
async def list_models(request: Request) -> Response:
    """List the models of this server."""
    models = get_state(request).models.models.values()
    return JsonResponse({"object": "list", "data": [describe_model(one) for one in models]})


@router.get("/v1/models/{model}")
async def show_model(request: Request, model: str) -> Response:
    """Describe one model."""
    return JsonResponse(describe_model(get_state(request).models.find(model)))


@router.post("/v1/chat/completions")
async def refuse_chat(request: Request, body: Annotated[JSONObject | None, Body()] = None) -> Response:
    """Say that these are not chat models."""
    what = "the models of this server continue text; they are not chat models and have no chat template"
    raise RequestError(what, fix="send the text as prompt to /v1/completions", code="not_a_chat_model")


@router.post("/v1/embeddings")
async def create_embeddings(request: Request, body: EmbeddingBody) -> Response:
    """Embed texts: one vector of length 1 for each."""
    served = get_state(request).models.find(body.model, "embed")
    if body.dimensions is not None and body.dimensions != served.former.config.dim:
        what = f"the vectors of {served.name!r} have {served.former.config.dim} dimensions, and are not shortened"
        raise RequestError(what, fix="leave dimensions out", code="unsupported_parameter")
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("input holds token ids", fix=TOKEN_IDS_HINT, code="token_ids")
    vectors = await embed_texts(request, served, texts)
    is_packed = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": encode_base64(row) if is_packed else row}
        for index, row in enumerate(vectors.rows)
    ]
    count = sum(vectors.token_counts)
    usage = {"prompt_tokens": count, "total_tokens": count}
    return JsonResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


def encode_base64(vector: np.ndarray) -> str:
    """Encode a vector as base64 of little-endian float32."""
    return base64.b64encode(np.ascontiguousarray(vector, "<f4").tobytes()).decode("ascii")


@router.post("/v1/rerank")
@router.post("/v2/rerank")
async def rerank(request: Request, body: RerankBody) -> Response:
    """Rank documents by their relevance to a query, the best first."""
    if body.max_tokens_per_doc is not None:
        raise RequestError("max_tokens_per_doc is not supported", fix="leave it out: nothing is cut")
    documents = [read_document(one, number) for number, one in enumerate(body.documents)]
    served, ranked, tokens = await rank_documents(request, body.model, body.query, documents)
    results = [
        {"index": index, "relevance_score": score}
        | ({"document": {"text": documents[index]}} if body.return_documents else {})
        for index, score in ranked[: body.top_n]
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    meta = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
    return JsonResponse({
        "id": f"rerank-{uuid.uuid4().hex}", "model": served.name, "results": results, "usage": usage, "meta": meta,
    })  # fmt: skip


def read_document(document: str | dict[str, str], number: int) -> str:
    """Read the text of a document; a document with other fields is refused, as they would not be ranked."""
    if isinstance(document, str):
        return document
    if set(document) != {"text"}:
        raise RequestError(f"document {number} must be a text, or have a field text and no other", fix="send texts")
    return document["text"]


@router.post("/v1/completions", responses=describe_answers("application/json", "text/event-stream"))
async def create_completions(request: Request, body: CompletionBody) -> Response:
    """Continue prompts; with `stream`, as server-sent events."""
    body.check_unsupported()
    served = get_state(request).models.find(body.model, "generate")
    generation = GenerationRequest(
        prompts=read_prompts(request, served, body.prompt), given=body.list_options(), max_new_tokens=body.max_tokens,
        num_samples=body.n or 1, num_top=body.logprobs, echo=bool(body.echo), streams=bool(body.stream),
    )  # fmt: skip
    if body.max_tokens == 0 and not body.echo:
        raise RequestError("max_tokens is 0, and there is nothing to answer", fix="ask for tokens, or for echo")
    about = {
        "id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "created": int(time.time()),
        "model": served.name, "system_fingerprint": served.version,
    }  # fmt: skip
    run = GenerationRun(request, served, generation)
    if body.stream:
        await run.__aenter__()  # what is refused is refused with a status, before the stream begins
        has_usage = (body.stream_options or {}).get("include_usage", False)
        return GenerationStream(run, stream_choices(run, about, has_usage))
    async with run:
        completions = await run.finish()
        choices = [make_choice(run, one, one.text, one.tokens, one.finish_reason, True) for one in completions]
        add_log_facts(request, new_tokens=run.num_new_tokens)
        return JsonResponse({**about, "choices": choices, "usage": make_usage(run)})


async def stream_choices(run: GenerationRun, about: JSONObject, has_usage: bool) -> AsyncIterator[bytes]:
    """Yield the events of a stream; an error on the way is an event of its own."""
    try:
        begun: set[int] = set()
        async for completion, piece, tokens, reason in run.events():
            is_first = completion.index not in begun
            begun.add(completion.index)
            if piece or tokens or reason or is_first:
                yield encode_event({**about, "choices": [
                    make_choice(run, completion, piece, tokens, reason, is_first)
                ]})  # fmt: skip
        if has_usage:
            yield encode_event({**about, "choices": [], "usage": make_usage(run)})
        yield DONE_EVENT
    except Error as error:
        yield encode_event(make_error_body(error, "/v1/completions"))
    finally:
        add_log_facts(run.request, new_tokens=run.num_new_tokens)
        run.stop()


def make_choice(
    run: GenerationRun, completion: Completion, text: str, tokens: list[ScoredToken], reason: str | None, first: bool
) -> JSONObject:
    """Make one choice of an answer; with echo, the first piece begins with the prompt."""
    generation = run.wanted
    prompt_number = completion.index // generation.num_samples
    offset, front = len(completion.text) - len(text), ""
    if generation.echo:
        prompt = generation.prompts[prompt_number]
        tokenizer = run.served.former.tokenizer
        assert tokenizer is not None
        front = prompt if isinstance(prompt, str) else tokenizer.decode(prompt, special=True)
    log_probs = None
    if generation.num_top is not None:
        shown = [*(run.prompt_tokens[prompt_number] if generation.echo and first else []), *tokens]
        log_probs = make_log_probs(shown, 0 if first else offset + len(front))
    whole = front + text if first else text
    return {"index": completion.index, "text": whole, "logprobs": log_probs, "finish_reason": reason}


def make_log_probs(tokens: list[ScoredToken], offset: int) -> JSONObject:
    """Make the log-probabilities of a choice: tokens, their values, the likeliest in their place, where each begins."""
    offsets = []
    for one in tokens:
        offsets.append(offset)
        offset += len(one.text)
    return {
        "tokens": [one.text for one in tokens],
        "token_logprobs": [one.log_prob for one in tokens],
        "top_logprobs": [None if one.log_prob is None else name_alternatives(one) for one in tokens],
        "text_offset": offsets,
    }


def name_alternatives(token: ScoredToken) -> dict[str, float]:
    """Return the likeliest tokens by their texts; of two with one text, the likelier. The chosen one is among them."""
    named: dict[str, float] = {}
    for _, text, value in token.top:
        named.setdefault(text, value)
    assert token.log_prob is not None
    named.setdefault(token.text, token.log_prob)
    return named


def make_usage(run: GenerationRun) -> dict[str, int]:
    """Count the tokens of a request."""
    prompt, new = run.num_prompt_tokens, run.num_new_tokens
    return {"prompt_tokens": prompt, "completion_tokens": new, "total_tokens": prompt + new}


def read_prompts(request: Request, served: ServedModel, prompt: JSONValue) -> list[str | list[int]]:
    """Read prompts: texts, or where the server takes them, token ids."""
    if isinstance(prompt, str):
        return [prompt]
    prompts = [prompt] if prompt and all(type(one) is int for one in prompt) else prompt
    if not prompts:
        raise RequestError("there is no prompt", kind="empty", fix="give at least one")
    if len(prompts) > (limit := get_state(request).settings.limits.max_texts):
        raise RequestError(f"the request has more than {limit:,} prompts", status=413, fix="send several requests")
    if all(isinstance(one, str) for one in prompts):
        return list(prompts)
    if not get_state(request).settings.takes_token_ids:
        fix = f"{TOKEN_IDS_HINT}. For ids of this model's own tokenizer, start with --token-ids"
        raise RequestError("prompt holds token ids", fix=fix, code="token_ids")
    return [check_token_ids(served.former, ids) for ids in prompts]
