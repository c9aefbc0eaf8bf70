"""Hugging Face's inference protocol: `POST /{model}/{task}` and `POST /` with `{inputs, parameters}`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response

from ..config import JSONObject, JSONValue, suggest_name
from ..errors import Error
from ..generation.options import Options
from ..option_aliases import resolve_generation_options
from .completions import Completion, ScoredToken
from .request_context import GenerationRequest, GenerationRun, GenerationStream, embed_texts, get_state, run_verb
from .responses import (
    JsonResponse,
    RequestBody,
    RequestError,
    describe_answers,
    describe_errors,
    encode_event,
    make_error_body,
)
from .served_models import ServedModel
from .tei_routes import choose_long_mode, rank_labels

router = APIRouter(responses=describe_errors("tei"))
# Task → the verb of formers that answers it. The first that a model's verbs allow is its own, for POST /.
TASK_VERBS = {
    "text-classification": "classify", "token-classification": "tag", "question-answering": "answer",
    "fill-mask": "fill", "text-generation": "generate", "translation": "translate", "summarization": "summarise",
    "zero-shot-classification": "classify", "feature-extraction": "embed", "sentence-similarity": "embed",
}  # fmt: skip
FINISH_REASONS = {"length": "length", "stop": "eos_token"}


class TaskBody(RequestBody):
    """Inputs of a task with its parameters; those of feature extraction stand beside the inputs."""

    inputs: str | list[JSONValue] | JSONObject
    parameters: JSONObject | None = None
    stream: bool | None = None
    options: JSONObject | None = None
    normalize: bool | None = None
    truncate: bool | None = None
    prompt_name: str | None = None
    truncation_direction: str | None = None
    dimensions: int | None = None
    encoding_format: str | None = None


@router.post("/", responses=describe_answers("application/json", "text/event-stream"))
async def run_default_task(request: Request, body: TaskBody) -> Response:
    """Run the task that the first model was made for."""
    served = get_state(request).models.find()
    return await run_task_of_model(request, served, find_own_task(served, body.inputs), body)


@router.post("/{model}/{task}", responses=describe_answers("application/json", "text/event-stream"))
async def run_task(request: Request, model: str, task: str, body: TaskBody) -> Response:
    """Run a task of Hugging Face's on a model."""
    return await run_task_of_model(request, get_state(request).models.find(model), task, body)


def find_own_task(served: ServedModel, inputs: JSONValue) -> str:
    """Find the task that a model was made for; vectors are what every model has."""
    if isinstance(inputs, dict) and "source_sentence" in inputs:
        return "sentence-similarity"
    trained = {"translate": "translation", "summarise": "summarization"}.get(served.former.task.get("name", ""))
    if trained is not None:
        return trained
    return next(task for task, verb in TASK_VERBS.items() if verb in served.verbs)


async def run_task_of_model(request: Request, served: ServedModel, task: str, body: TaskBody) -> Response:
    """Check the parameters of a task and run it."""
    if task not in TASKS:
        raise RequestError("there is no such task", status=404, fix=f"choose {', '.join(TASKS)}")
    served.check_verb(TASK_VERBS[task])
    known, run = TASKS[task]
    parameters = {name: value for name, value in (body.parameters or {}).items() if value is not None}
    if task == "feature-extraction":
        parameters |= body.model_dump(include=set(known), exclude_none=True)
    if wrong := sorted(set(parameters) - set(known)):
        names = ", ".join(known) or "none"
        raise RequestError(f"{task} does not take {wrong[0]!r}", status=422, fix=f"its parameters are {names}")
    return await run(request, served, body, parameters)


def read_texts(inputs: JSONValue) -> tuple[list[str], bool]:
    """Read one text or several; returns them and whether it was one alone."""
    texts = [inputs] if isinstance(inputs, str) else inputs
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise RequestError("inputs must be a text, or a list of texts", status=422, fix='for example {"inputs": "…"}')
    return texts, isinstance(inputs, str)


def read_number(parameters: JSONObject, name: str, usual: int, most: int = 100_000) -> int:
    """Read a whole number above 0."""
    value = parameters.get(name, usual)
    if type(value) is not int or not 1 <= value <= most:
        what = f"{name} must be a whole number from 1 to {most:,}"
        raise RequestError(what, status=422, fix=f"leave it out for {usual}")
    return value


async def fill_mask(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Guess the masked word of a text; a span of several tokens (T5, BART) has no token number."""
    texts, is_single = read_texts(body.inputs)
    tokenizer = served.former.tokenizer
    assert tokenizer is not None
    fillings = await run_verb(request, served, "fill", texts, top_k=read_number(parameters, "top_k", 5))
    rows = []
    for blanks in fillings:
        many = [blanks] if blanks and not isinstance(blanks[0], list) else blanks
        blank_rows = [[{
            "score": one.probability, "token": tokenizer.backend.token_to_id(one.token), "token_str": one.token,
            "sequence": one.text,
        } for one in guesses] for guesses in many]  # fmt: skip
        rows.append(blank_rows[0] if len(blank_rows) == 1 else blank_rows)
    return JsonResponse(rows[0] if is_single else rows)


async def classify(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Classify texts."""
    if parameters.get("function_to_apply") not in (None, "softmax"):
        raise RequestError("scores are probabilities", status=422, fix="leave function_to_apply out")
    texts, _ = read_texts(body.inputs)
    predictions = await run_verb(request, served, "classify", texts, **choose_long_mode(served))
    top = read_number(parameters, "top_k", 100_000)
    rows = [rank_labels(one.probabilities)[:top] for one in predictions]
    return JsonResponse(rows[0] if len(rows) == 1 else rows)


async def tag(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Tag the words of texts, or find the entities that the tags mark."""
    texts, is_single = read_texts(body.inputs)
    strategy, ignored = parameters.get("aggregation_strategy", "simple"), parameters.get("ignore_labels", ["O"])
    if strategy not in ("none", "simple", "first", "average", "max"):
        raise RequestError("there is no such aggregation_strategy", status=422, fix="take simple, or none")
    if not isinstance(ignored, list):
        raise RequestError("ignore_labels must be a list", status=422, fix='for example ["O"]')
    if strategy == "none":
        taggings = await run_verb(request, served, "tag", texts)
        rows = [[{
            "entity": one.tag, "score": one.probability, "word": one.word, "start": one.start, "end": one.end,
        } for one in row if one.tag not in ignored] for row in taggings]  # fmt: skip
    else:
        taggings = await run_verb(request, served, "tag", texts, entities=True)
        rows = [[{
            "entity_group": one.label, "score": one.score, "word": one.text, "start": one.start, "end": one.end,
        } for one in row if one.label not in ignored] for row in taggings]  # fmt: skip
    return JsonResponse(rows[0] if is_single else rows)


async def answer(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Answer a question from its context."""
    inputs = body.inputs
    if not isinstance(inputs, dict) or not all(isinstance(inputs.get(name), str) for name in ("question", "context")):
        fix = 'for example {"inputs": {"question": "…", "context": "…"}}'
        raise RequestError("inputs must have a question and a context", status=422, fix=fix)
    question, context = inputs["question"], inputs["context"]
    limit = (served.former.context or 2**24) // 2
    if await get_state(request).models.run(served.count_tokens, question) > limit:
        raise RequestError(f"the question has more than {limit} tokens", status=413, fix="shorten it: nothing is cut")
    best, abstain = read_number(parameters, "top_k", 1), parameters.get("handle_impossible_answer")
    if abstain not in (None, True, False):
        raise RequestError("handle_impossible_answer must be true or false", status=422)
    answers = (await run_verb(request, served, "answer", [(question, context)], best=best, abstain=abstain))[0]
    rows = [
        {"answer": one.text, "score": one.probability, "start": max(0, one.start), "end": max(0, one.end)}
        for one in (answers if isinstance(answers, list) else [answers])
    ]
    return JsonResponse(rows[0] if best == 1 else rows)


async def rewrite_texts(
    request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject, verb: str, key: str
) -> Response:
    """Translate or summarise texts; what is longer than the model's context is refused, not cut."""
    texts, _ = read_texts(body.inputs)
    if parameters.get("truncation") not in (None, "do_not_truncate"):
        raise RequestError("texts are not truncated", status=422, fix="leave truncation out")
    options = read_generate_parameters(parameters.get("generate_parameters") or {}, served)
    if verb == "translate":
        options = {"to": parameters.get("tgt_lang"), "source": parameters.get("src_lang"), **options}
    room = served.max_tokens - (0 if served.former.is_encoder_decoder else 64)

    def check_lengths() -> None:
        for number, text in enumerate(texts, 1):
            if (count := served.count_tokens(text)) > room:
                what = f"text {number} has {count:,} tokens, and the model reads {room:,}"
                raise RequestError(what, status=413, fix="shorten it: nothing is cut")

    await get_state(request).models.run(check_lengths)
    outputs = await run_verb(request, served, verb, texts, **options)
    return JsonResponse([{key: one} for one in outputs])


def read_generate_parameters(given: JSONValue, served: ServedModel) -> JSONObject:
    """Read options of generation by formers' or transformers' names, in the server's bounds."""
    if not isinstance(given, dict) or not all(isinstance(value, str | int | float) for value in given.values()):
        raise RequestError("generate_parameters must hold numbers and words", status=422)
    known = list(Options.__dataclass_fields__)
    options = resolve_generation_options(given, known)
    if wrong := [name for name in options if name not in known]:
        raise RequestError(f"unknown option {wrong[0]!r}", status=422, fix=suggest_name(wrong[0], known))
    for name, most in (("num_beams", 16), ("num_samples", 16), ("max_new_tokens", served.max_tokens)):
        read_number(options, name, 1, most)
    return options


async def translate(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Translate texts."""
    return await rewrite_texts(request, served, body, parameters, "translate", "translation_text")


async def summarise(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Summarise texts."""
    return await rewrite_texts(request, served, body, parameters, "summarise", "summary_text")


async def extract_features(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Embed texts, a vector for each."""
    texts, _ = read_texts(body.inputs)
    usual = {"dimensions": served.former.config.dim, "encoding_format": "float", "truncation_direction": "right"}
    for name in ("dimensions", "prompt_name", "encoding_format", "truncation_direction"):
        if (value := parameters.get(name)) is not None and str(value).lower() != str(usual.get(name)):
            raise RequestError(f"this {name} is not supported", status=422, fix="leave it out")
    normalise, truncate = bool(parameters.get("normalize", True)), bool(parameters.get("truncate"))
    vectors = await embed_texts(request, served, texts, truncate=truncate, normalise=normalise)
    return JsonResponse(vectors.rows)


async def compare_sentences(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Compare sentences with another by the cosines of their embeddings."""
    inputs = body.inputs if isinstance(body.inputs, dict) else {}
    first, others = inputs.get("source_sentence"), inputs.get("sentences")
    if not isinstance(first, str) or not isinstance(others, list) or not all(isinstance(one, str) for one in others):
        raise RequestError("inputs must have source_sentence and sentences", status=422)
    rows = np.stack((await embed_texts(request, served, [first, *others])).rows)
    return JsonResponse(rows[1:] @ rows[0])


async def classify_zero_shot(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Classify a text by labels of the caller: how far does it entail that it is about each (Yin et al. 2019)?"""
    texts, is_single = read_texts(body.inputs)
    labels = parameters.get("candidate_labels")
    labels = labels.split(",") if isinstance(labels, str) else labels
    template = parameters.get("hypothesis_template", "This example is {}.")
    if not isinstance(labels, list) or not labels or not all(isinstance(one, str) and one.strip() for one in labels):
        raise RequestError("candidate_labels must be words", status=422, fix='for example ["sports", "politics"]')
    if not isinstance(template, str) or "{}" not in template:
        raise RequestError("hypothesis_template must have a place for the label", status=422, fix="write {} there")
    entails = next((name for name in served.former.labels if name.lower().startswith("entail")), None)
    if entails is None:
        fix = "take one that was trained on entailment (MNLI)"
        raise RequestError(f"the model {served.name!r} has no label entailment", status=422, fix=fix)
    contradicts = next((n for n in served.former.labels if n.lower().startswith(("contradict", "not"))), None)
    pairs = [(text, template.replace("{}", label.strip())) for text in texts for label in labels]
    predictions = await run_verb(request, served, "classify", pairs)
    rows = []
    for at in range(0, len(predictions), len(labels)):
        some = [one.probabilities for one in predictions[at : at + len(labels)]]
        values = np.array([one[entails] for one in some])
        if parameters.get("multi_label") or len(labels) == 1:
            values = values / (values + np.array([0.0 if contradicts is None else one[contradicts] for one in some]))
        else:
            values = values / values.sum()
        rows.append(rank_labels({label.strip(): float(v) for label, v in zip(labels, values, strict=True)}))
    return JsonResponse(rows[0] if is_single else rows)


VECTOR_PARAMETERS = ("normalize", "truncate", "truncation_direction", "prompt_name", "dimensions", "encoding_format")
GENERATION_PARAMETERS = (
    "max_new_tokens", "do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "seed", "stop",
    "return_full_text", "details", "top_n_tokens", "decoder_input_details", "watermark", "best_of",
    "num_return_sequences",
)  # fmt: skip


async def generate(request: Request, served: ServedModel, body: TaskBody, parameters: JSONObject) -> Response:
    """Continue a text, greedily unless sampling is asked for; with `stream`, token by token."""
    texts, _ = read_texts(body.inputs)
    if parameters.get("watermark") or parameters.get("best_of", 1) != 1 or parameters.get("decoder_input_details"):
        raise RequestError("watermark, best_of and decoder_input_details are not supported", fix="leave them out")
    sampling = ("temperature", "top_k", "top_p", "typical_p", "seed")
    options = {name: parameters[name] for name in (*sampling, "repetition_penalty", "stop") if name in parameters}
    count = read_number(parameters, "num_return_sequences", 1, 128)
    is_sampled = parameters.get("do_sample", count > 1 or any(n in options for n in sampling[:4]))
    if not is_sampled:
        options = {name: value for name, value in options.items() if name not in sampling} | {"temperature": 0}
    has_details = bool(parameters.get("details"))
    top = read_number(parameters, "top_n_tokens", 1, 100) if "top_n_tokens" in parameters else 0
    generation = GenerationRequest(
        texts, options, read_number(parameters, "max_new_tokens", 20), count,
        num_top=top if has_details or body.stream else None,
        streams=bool(body.stream),
    )  # fmt: skip
    run = GenerationRun(request, served, generation)
    if body.stream:
        if len(texts) * count > 1:
            raise RequestError("one text is streamed at a time", status=422, fix="send one text")
        await run.__aenter__()
        return GenerationStream(run, stream_tokens(run))
    has_prompt = bool(parameters.get("return_full_text"))
    async with run:
        rows = []
        for one in await run.finish():
            front = texts[one.index // count] if has_prompt else ""
            rows.append({"generated_text": front + one.text} | ({"details": make_details(one)} if has_details else {}))
    return JsonResponse(rows)


def describe_token(token: ScoredToken) -> JSONObject:
    """Describe a generated token."""
    return {"id": token.id, "text": token.text, "logprob": token.log_prob, "special": False}


def describe_top(token: ScoredToken) -> list[JSONObject]:
    """Describe the likeliest tokens in a token's place."""
    return [{"id": i, "text": text, "logprob": value, "special": False} for i, text, value in token.top]


def make_details(completion: Completion) -> JSONObject:
    """Make the details of a generated text."""
    return {
        "finish_reason": FINISH_REASONS[completion.finish_reason or "stop"], "prefill": [], "seed": None,
        "generated_tokens": len(completion.token_ids), "tokens": [describe_token(one) for one in completion.tokens],
        "top_tokens": [describe_top(one) for one in completion.tokens],
    }  # fmt: skip


async def stream_tokens(run: GenerationRun) -> AsyncIterator[bytes]:
    """Yield one event for each token; the last has the whole text."""
    try:
        last: JSONObject | None = None
        index = 0
        async for completion, piece, tokens, reason in run.events():
            if tokens:
                if last is not None:
                    yield encode_event(last)
                index += 1
                token = {**describe_token(tokens[0]), "text": piece}
                last = {"index": index, "token": token, "generated_text": None, "details": None}
            elif last is not None:
                last["token"]["text"] += piece
            if reason is not None:
                end = {"finish_reason": FINISH_REASONS[reason], "generated_tokens": len(completion.token_ids)}
                end |= {"input_length": run.num_prompt_tokens, "seed": None}
                empty = {"index": 1, "token": {"id": 0, "text": "", "logprob": 0.0, "special": True}}
                yield encode_event({**(last or empty), "generated_text": completion.text, "details": end})
    except Error as error:
        yield encode_event(make_error_body(error, "/"))
    finally:
        run.stop()


TaskFunction = Callable[[Request, ServedModel, TaskBody, JSONObject], Awaitable[Response]]
# Task → the parameters that it takes, and what runs it.
TASKS: dict[str, tuple[tuple[str, ...], TaskFunction]] = {
    "fill-mask": (("top_k",), fill_mask),
    "text-classification": (("top_k", "function_to_apply"), classify),
    "token-classification": (("aggregation_strategy", "ignore_labels"), tag),
    "question-answering": (("top_k", "handle_impossible_answer"), answer),
    "translation": (("src_lang", "tgt_lang", "generate_parameters", "truncation"), translate),
    "summarization": (("generate_parameters", "truncation"), summarise),
    "text-generation": (GENERATION_PARAMETERS, generate),
    "feature-extraction": (VECTOR_PARAMETERS, extract_features),
    "sentence-similarity": ((), compare_sentences),
    "zero-shot-classification": (("candidate_labels", "hypothesis_template", "multi_label"), classify_zero_shot),
}  # fmt: skip
