"""The playground: its page and scripts, and the JSON that they ask for."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import Field
from starlette.staticfiles import StaticFiles

from .. import inspection
from ..config import JSONObject
from ..errors import Error
from .completions import ScoredToken, check_token_ids
from .family_tree import describe_family
from .request_context import GenerationRequest, GenerationRun, GenerationStream, get_state, run_verb
from .responses import JsonResponse, RequestBody, describe_answers, describe_errors, encode_event, make_error_body
from .served_models import ServedModel

router = APIRouter(responses=describe_errors("tei"))
PLAYGROUND_FOLDER = Path(__file__).parent / "playground"
VIEW_FOLDER = Path(inspection.__file__).parent / "page"  # the modules that draw views


class InspectBody(RequestBody):
    """A text to look at: the arguments of `formers.inspect`."""

    text: str
    model: str | None = None
    second: str | None = None
    before: str | None = None
    window: Annotated[int, Field(ge=0)] = 0  # of a long text; the page says which one it shows
    views: list[str] | None = None
    methods: list[str] | None = None
    masked: bool | None = None
    kind: str | None = None
    layer: Annotated[int, Field(ge=0)] | None = None
    head: Annotated[int, Field(ge=0)] | None = None
    target: str | None = None
    contrast: str | None = None


class GenerateBody(RequestBody):
    """A text to be continued; `ids` are tokens after it (of an encoder-decoder, of its answer) that are taken as they
    are, to continue from another choice."""

    text: str
    model: str | None = None
    ids: list[int] | None = None
    max_new_tokens: Annotated[int, Field(ge=1, le=4096)] = 40
    alternatives: Annotated[int, Field(ge=0, le=50)] = 8
    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] | None = None
    stop: list[str] | None = None


class FillBody(RequestBody):
    """A text with blanks, written ___ or as the mask token."""

    text: str
    model: str | None = None
    top_k: Annotated[int, Field(ge=1, le=100)] = 8


class ObjectivesBody(RequestBody):
    """A sentence for all objectives to work on, with the draws of a seed."""

    text: str
    model: str | None = None
    second: str | None = None
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0


def describe_model(served: ServedModel) -> JSONObject:
    """Describe a model for the page: what it is, what it can do, how large it is."""
    former, config = served.former, served.former.config
    mask = None if former.tokenizer is None else former.tokenizer.special.get("mask")
    return {
        "name": served.name, "family": former.family, "head": former.head, "verbs": list(served.verbs),
        "layers": config.layers, "heads": config.heads, "dim": config.dim,
        "vocab": former.output_vocab, "parameters": former.num_parameters, "context": former.context,
        "labels": list(former.labels), "mask": mask, "pairs": former.can_read_segments,
        "encoder_decoder": former.is_encoder_decoder, "task": former.task.get("name"),
    }  # fmt: skip


@router.get("/playground/models")
async def list_models(request: Request) -> Response:
    """List the models of this server with what the page shows of them."""
    models = get_state(request).models.models.values()
    return JsonResponse({"models": [describe_model(one) for one in models]})


@router.post("/playground/inspect")
async def inspect(request: Request, body: InspectBody) -> Response:
    """Look at a model at work on a text; the answer is the view document."""
    served = get_state(request).models.find(body.model, "inspect")
    options = body.model_dump(exclude={"model", "text", "views", "methods"}, exclude_none=True)
    lists = {"views": body.views, "methods": body.methods}
    options |= {name: ",".join(names) for name, names in lists.items() if names is not None}
    text_views = await run_verb(request, served, "inspect", [body.text], name=served.name, **options)
    return JsonResponse(text_views[0].to_dict())


@router.post("/playground/objectives")
async def show_objectives(request: Request, body: ObjectivesBody) -> Response:
    """Show what pretraining objectives would hide of a sentence and ask for, step by step."""
    served = get_state(request).models.find(body.model, "inspect")
    options = body.model_dump(include={"second", "seed"}, exclude_none=True)
    how = {"name": served.name, "views": "objectives", "objectives": "all", **options}
    views = await run_verb(request, served, "inspect", [body.text], **how)
    return JsonResponse({"objectives": views[0].to_dict().get("objectives", [])})


@router.post("/playground/fill")
async def fill(request: Request, body: FillBody) -> Response:
    """Guess the blanks of a text: of each the likeliest tokens."""
    served = get_state(request).models.find(body.model, "fill")
    text_guesses = (await run_verb(request, served, "fill", [body.text], top_k=body.top_k))[0]
    blanks = [text_guesses] if text_guesses and not isinstance(text_guesses[0], list) else text_guesses
    return JsonResponse({"blanks": [[
        {"token": one.token, "probability": one.probability, "text": one.text} for one in guesses
    ] for guesses in blanks]})  # fmt: skip


@router.post("/playground/generate", response_class=StreamingResponse, responses=describe_answers("text/event-stream"))
async def generate(request: Request, body: GenerateBody) -> Response:
    """Continue a text, one event for each token with the alternatives in its place."""
    models = get_state(request).models
    served = models.find(body.model, "generate")
    prompt: str | list[int] = body.text
    forced: list[int] = []
    if body.ids and served.former.is_encoder_decoder:
        forced = check_token_ids(served.former, body.ids, is_output=True)
    elif body.ids:
        from ..generation.api import encode_prompt

        front = await models.run(encode_prompt, served.former, body.text)
        prompt = [*front, *check_token_ids(served.former, body.ids)]
    options = body.model_dump(include={"temperature", "top_k", "top_p", "seed", "stop"})
    generation = GenerationRequest(
        [prompt], options, body.max_new_tokens, num_top=body.alternatives, streams=True, forced_ids=forced
    )
    run = await GenerationRun(request, served, generation).__aenter__()
    return GenerationStream(run, stream_tokens(run))


async def stream_tokens(run: GenerationRun) -> AsyncIterator[bytes]:
    """Yield the tokens of a text with their alternatives, and at the end why it ended."""
    try:
        index = 0
        async for completion, piece, tokens, reason in run.events():
            for number, token in enumerate(tokens):  # the new text once, if it is that of several tokens
                yield encode_event({"index": index, "piece": "" if number else piece, **describe_token(token)})
                index += 1
            if not tokens and piece:
                yield encode_event({"index": index, "piece": piece})
            if reason is not None:
                yield encode_event({"finish_reason": reason, "text": completion.text})
    except Error as error:
        yield encode_event(make_error_body(error, "/playground"))
    finally:
        run.stop()


def describe_token(token: ScoredToken) -> JSONObject:
    """Describe a token and what could have stood in its place."""
    return {
        "id": token.id, "text": token.text, "probability": math.exp(token.log_prob or 0.0),
        "alternatives": [{"id": i, "text": text, "probability": math.exp(value)} for i, text, value in token.top],
    }  # fmt: skip


@router.get("/playground/family")
async def show_family() -> Response:
    """Show the members of the family: names, papers, parents, what is new, sizes, diagrams."""
    return JsonResponse(await asyncio.to_thread(describe_family))


@router.get("/", include_in_schema=False)
async def open_playground() -> Response:
    """Lead a browser to the playground."""
    return RedirectResponse("/playground/")


def mount_pages(app: FastAPI) -> None:
    """Serve the files of the playground and of the views, after all other routes."""
    for path, folder in (("/playground/page", VIEW_FOLDER), ("/playground", PLAYGROUND_FOLDER)):
        if folder.is_dir():
            app.mount(path, StaticFiles(directory=folder, html=True), name=folder.name)
