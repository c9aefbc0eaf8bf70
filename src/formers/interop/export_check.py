"""Checking an export: it is opened in the library that it is for, in a process of its own, and its numbers compared.

What is compared depends on what the library does with the model: the outputs of every head in transformers and ONNX
Runtime; in a server, log-probabilities and greedy tokens, vectors, or the probabilities of classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..config import JSONObject, Settings
from ..errors import Error
from ..former import Former
from ..inputs import TensorLike, get_start_token
from ..model import pool_vectors
from ..task import END_MARKED_HEADS, get_frame
from ..text.tokenizer import Tokenizer
from . import huggingface
from .onnx_export import name_outputs
from .reader_process import READER_NAMES, TIMEOUT_SECONDS, run_worker
from .sandbox import make_temporary_folder
from .serving_targets import (
    INSTALL_HINTS,
    SERVING_TARGETS,
    check_reader_support,
    find_missing_packages,
    get_role,
    make_refusal,
    write_serving_export,
)

TOLERANCE = 1e-3  # of the largest number: more than rounding, less than any mistake
GREEDY_TOKENS = 8  # that a server must generate as formers does
SAMPLE_TEXT = "The cat sat on the mat. 한국어 문장도 읽습니다."
SAMPLE_PAIR = "It was 7 o'clock, and nobody came. 아무도 오지 않았다."
CASE_WORDS = {"text": "a text", "pair": "a pair", "long": "an over-long text"}


def check_export(
    former: Former, reader: str, where: Path | None = None, *, pool: str = "mean", normalise: bool = False,
    dtype: torch.dtype | None = None, seconds: int = TIMEOUT_SECONDS,
) -> str:  # fmt: skip
    """Open an export of this model in a reader, and compare tokens and numbers with ours: what was found, in a line.

    `where` is the exported directory (None: one is made for the check and removed), `dtype` the type that it was
    exported with, `pool` and `normalise` those of a model that gives vectors. A reader that is not installed is not
    checked, and the answer says so. An Error says why the reader cannot open it, or what it computes otherwise.
    """
    known = check_reader_support(former, reader)
    if reader == "tei" or find_missing_packages(reader):
        more = f"; it has a class for this model: {known}" if reader in ("vllm", "tei") else ""
        return f"not checked: {READER_NAMES[reader]} is not installed ({INSTALL_HINTS[reader]}){more}"
    with make_temporary_folder() as folder:
        vectors: Settings = {"pool": pool, "normalise": normalise}
        if where is None:
            where = folder / "export"
            if reader in SERVING_TARGETS:
                write_serving_export(former, where, reader, dtype=dtype, **vectors)
            elif reader == "transformers":
                huggingface.write_checkpoint(former, where, dtype=dtype)
            else:
                huggingface.write_sentence_encoder(former, where, dtype=dtype, **vectors)
        if dtype is not None:
            former.to(dtype=dtype)
        former.to("cpu", torch.float32)
        cases = make_cases(former)
        if reader in ("vllm", "ctranslate2"):
            cases = make_server_cases(former, cases, reader)
        facts, tensors = run_worker(reader, Path(where), cases, folder, seconds)
        if reader in ("transformers", "onnx"):
            worst = compare_outputs(former, cases, facts, tensors, reader)
        elif reader == "sentence-transformers":
            worst = compare_embeddings(former, cases, tensors, pool, normalise)
        else:
            worst = compare_server_outputs(former, cases, tensors, reader, pool, normalise)
    texts = ", ".join(CASE_WORDS[case["name"]] for case in cases)
    what = "tokens and numbers" if reader not in ("vllm", "ctranslate2") else describe_role(cases[0]["role"])
    rest = f"the same {what} for {texts}; the largest difference is {worst:.0e}"
    return f"yes: {facts['architecture']} opens in {READER_NAMES[reader]} {facts['version']}: {rest}"


def describe_role(role: str) -> str:
    """Say what was compared with a server."""
    words = {"generate": f"log-probabilities and {GREEDY_TOKENS} greedy tokens", "classify": "probabilities"}
    return words.get(role, "vectors")


def make_server_cases(former: Former, cases: list[JSONObject], reader: str) -> list[JSONObject]:
    """Return the cases that a server reads, as ids: single texts, those of a generator with room to be continued."""
    role = get_role(former, reader)
    server_cases: list[JSONObject] = []
    for case in cases:
        ids, segments = case["ours"] if case.get("pair") is None else encode_case(former, case["text"], None)
        if role == "generate" and former.context is not None:
            ids = ids[: max(2, former.context - GREEDY_TOKENS)]
        rest: JSONObject = {key: case[key] for key in ("name", "decoder") if key in case}
        server_cases.append({**rest, "role": role, "ids": ids, "ours": (ids, segments), "greedy_tokens": GREEDY_TOKENS})
    return server_cases[:1] if former.tokenizer is None else [one for one in server_cases if one["name"] != "pair"]


def make_cases(former: Former) -> list[JSONObject]:
    """Return what both sides read: a text, a pair and a text that is too long, or ids where there is no tokenizer.

    `ids` and `segments` of our own reading stand beside the text under "ours".
    """
    limit = former.context
    c = former.config
    start = next((i for i in (c.start, c.bos, c.pad) if i is not None), 0)
    vocab = former.output_vocab
    first = [start, *(i % vocab for i in range(7, 12))]
    needs_decoder = former.is_encoder_decoder and former.head in ("lm", "none")
    more: JSONObject = {"decoder": first[:limit]} if needs_decoder else {}
    if former.tokenizer is None:
        ids = [(7 * i + 3) % former.config.vocab for i in range(min(limit or 12, 12))]
        return [{"name": "text", "ids": ids, "ours": (ids, None), **more}]
    long = " ".join([SAMPLE_TEXT, SAMPLE_PAIR] * (1 if limit is None else limit // 4 + 1))
    rows = [("text", SAMPLE_TEXT, None), ("pair", SAMPLE_TEXT[:23], SAMPLE_PAIR[:18]), ("long", long, None)]
    kept = rows[:2] if limit is None else rows
    cases: list[JSONObject] = [{"name": name, "text": text, "pair": pair} for name, text, pair in kept]
    return [{**case, "ours": encode_case(former, case["text"], case["pair"]), **more} for case in cases]


def encode_case(former: Former, text: str, pair: str | None) -> tuple[list[int], list[int] | None]:
    """Encode a text or a pair as formers reads it, cut to the model's context, with its segments if it has any."""
    assert former.tokenizer is not None
    find_frame = get_frame if former.head in END_MARKED_HEADS else Tokenizer.get_template
    frame = find_frame(former.tokenizer, pair is not None)
    one = former.tokenizer.encode(text, special=False)
    two = [] if pair is None else former.tokenizer.encode(pair, special=False)
    marks = len(frame.before) + len(frame.between) * (pair is not None) + len(frame.after)
    limit = former.context
    if limit is not None and marks + len(one) + len(two) > limit:
        left, right = truncate_lengths(len(one), len(two), limit - marks)
        one, two = one[:left], two[:right]
    before, a, between, b, after = frame.segments
    middle, middle_kinds = ([], []) if pair is None else (frame.between, between)
    ids = [*frame.before, *one, *middle, *two, *frame.after]
    kinds = [*before, *[a] * len(one), *middle_kinds, *[b] * len(two), *after]
    return ids, kinds if former.can_read_segments else None


def truncate_lengths(one: int, two: int, room: int) -> tuple[int, int]:
    """Shorten two texts to fit into `room`: the longer one is cut first, as in the tokenizers library."""
    short, long = sorted((one, two))
    long = max(short, room - short)
    if short + long > room:
        short, long = room // 2, room // 2 + room % 2
    return (long, short) if one > two else (short, long)


def compare_outputs(
    former: Former, cases: list[JSONObject], facts: JSONObject, tensors: Mapping[str, Tensor],
    reader: str = "transformers",
) -> float:  # fmt: skip
    """Compare what a reader read and computed with ours: the largest difference, or an Error that names the first
    thing that is not the same."""
    for kind in ("missing", "unexpected", "mismatched"):
        if facts.get(kind):
            raise make_refusal(reader, f"tensor {facts[kind][0]} is {kind}", "please report it")
    if former.tokenizer is not None and not facts.get("pads", True):
        why = "there is no token to fill up a batch with"
        raise make_refusal(reader, why, "give the tokenizer a pad token")
    if "padded" in facts:
        away = (torch.tensor(facts["padded"]) - tensors[f"{cases[0]['name']}.logits"][0]).abs().max().item()
        if not away <= TOLERANCE:
            what = f"in a batch with a longer one, the answer to the text differs by {away:.2g}"
            raise Error(f"no, transformers computes something else: {what}", fix="please report it")
    worst = 0.0
    for case in cases:
        name, (ids, segments) = case["name"], case["ours"]
        inputs = {"input_ids": ids, "token_type_ids": segments, "attention_mask": [1] * len(ids)}
        for key, row in inputs.items():
            theirs = tensors.get(f"{name}.{key}")
            if row is None or (theirs is None and "ids" in case):
                continue
            got = [] if theirs is None else theirs[0].tolist()
            if got != row:
                pairs = enumerate(zip(got, row, strict=False))
                at = next((i for i, (x, y) in pairs if x != y), min(len(got), len(row)))
                what = f"the {key} of the {name} " + (f"differ from ours at token {at}" if got else "are not there")
                raise Error(f"no, {READER_NAMES[reader]} reads something else: {what}", fix="please report it")
        ours = compute_outputs(former, ids, segments, case.get("decoder"))
        worst = max(worst, compare_tensors(ours, tensors, name, reader))
    return worst


@torch.inference_mode()
def compute_outputs(
    former: Former, ids: list[int], segments: list[int] | None, decoder: list[int] | None
) -> dict[str, Tensor]:
    """Compute our outputs for one text, under the names that transformers has for them."""
    shape = (1, 1, -1) if former.head in ("choose", "double") else (1, -1)
    arguments: dict[str, TensorLike] = {"ids": torch.tensor(ids).view(shape)}
    if segments is not None:
        arguments["segments"] = torch.tensor(segments).view(shape)
    if decoder is not None:
        arguments["target"] = torch.tensor([decoder])
    if former.head in ("none", "beam"):
        return {} if former.head == "beam" else {"last_hidden_state": former.hidden(**arguments)}
    return name_outputs(former.head, former.logits(**arguments))


@torch.inference_mode()
def compare_embeddings(
    former: Former, cases: list[JSONObject], tensors: Mapping[str, Tensor], pool: str, normalise: bool
) -> float:
    """Compare the vectors of sentence-transformers with ours: the largest difference, or an Error."""
    worst = 0.0
    for case in cases:
        ids, segments = case["ours"]
        if case["pair"] is not None:  # it encodes the first text alone
            ids, segments = encode_case(former, case["text"], None)
        kinds: dict[str, TensorLike] = {} if segments is None else {"segments": torch.tensor([segments])}
        ours = pool_vectors(former.hidden(torch.tensor([ids]), **kinds)[0], pool)
        ours = torch.nn.functional.normalize(ours, dim=-1) if normalise else ours
        away = (tensors[f"{case['name']}.vector"] - ours).abs().max().item()
        worst = max(worst, away)
        if not away <= TOLERANCE * max(1.0, ours.abs().max().item()):
            what = f"the vector of the {case['name']} differs by {away:.2g}"
            raise Error(f"no, sentence-transformers computes something else: {what}", fix="please report it")
    return worst


@torch.inference_mode()
def compare_server_outputs(
    former: Former, cases: list[JSONObject], tensors: Mapping[str, Tensor], reader: str, pool: str, normalise: bool
) -> float:
    """Compare what a server computed with ours: the largest difference, or an Error."""
    worst = 0.0
    for case in cases:
        ids = case["ids"]
        if case["role"] == "generate":
            ours = {"logprobs": compute_logprobs(former, ids, case.get("decoder"))}
            expected = continue_greedily(former, ids, case["greedy_tokens"])
            got = cut_at_end(tensors[f"{case['name']}.greedy"].tolist(), former.config.eos)
            if got != expected:
                what = f"greedy tokens of the {case['name']} are {got}, and ours {expected}"
                raise Error(f"no, {READER_NAMES[reader]} computes something else: {what}", fix="please report it")
        elif case["role"] == "classify":
            ours = {"probabilities": former.logits(torch.tensor([ids]))[0].softmax(-1)}
        else:
            hidden = former.hidden(torch.tensor([ids]))[0]
            vector = pool_vectors(hidden, pool)
            vector = torch.nn.functional.normalize(vector, dim=-1) if normalise else vector
            ours = {"last_hidden_state": hidden} if reader == "ctranslate2" else {"vector": vector}
        worst = max(worst, compare_tensors(ours, tensors, case["name"], reader))
    return worst


def compare_tensors(ours: Mapping[str, Tensor], tensors: Mapping[str, Tensor], case: str, reader: str) -> float:
    """Compare outputs by name: the largest difference, or an Error."""
    worst = 0.0
    for key, value in ours.items():
        if (theirs := tensors.get(f"{case}.{key}")) is None:
            raise make_refusal(reader, f"it gives no {key}", "please report it")
        away = (theirs.float().reshape(value.shape) - value).abs().max().item()
        worst = max(worst, away)
        if not away <= TOLERANCE * max(1.0, value.abs().max().item()):
            what = f"{key} of the {case} differ by {away:.2g}"
            raise Error(f"no, {READER_NAMES[reader]} computes something else: {what}", fix="please report it")
    return worst


def compute_logprobs(former: Former, ids: list[int], decoder: list[int] | None) -> Tensor:
    """Compute the log-probability of each token after the first: of a text, or of the decoder's given the source."""
    arguments = {} if decoder is None else {"target": torch.tensor([decoder])}
    scored = ids if decoder is None else decoder
    log_probs = former.logits(torch.tensor([ids]), **arguments)[0, :-1].log_softmax(-1)
    return log_probs.gather(1, torch.tensor(scored[1:])[:, None])[:, 0]


def continue_greedily(former: Former, ids: list[int], tokens: int) -> list[int]:
    """Return the likeliest next tokens one by one, without a cache, up to the end mark."""
    written = [get_start_token(former.config)] if former.is_encoder_decoder else list(ids)
    before = len(written)
    for _ in range(tokens):
        arguments = {"target": torch.tensor([written])} if former.is_encoder_decoder else {}
        source = ids if former.is_encoder_decoder else written
        written.append(int(former.logits(torch.tensor([source]), **arguments)[0, -1].argmax()))
    return cut_at_end(written[before:], former.config.eos)


def cut_at_end(ids: list[int], eos: int | tuple[int, ...] | None) -> list[int]:
    """Return ids up to the first end mark, without it."""
    ends = eos if isinstance(eos, tuple) else (eos,)
    return ids[: next((place for place, token in enumerate(ids) if token in ends), len(ids))]
