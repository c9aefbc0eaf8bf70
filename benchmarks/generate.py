"""Generation: GPT-2 124M and BART-base, formers and its peers in one run.

    python -m benchmarks.generate cpu          # GPT-2, 32 + 32 tokens, batch 1 and 8; CTranslate2 if it can be imported
    python -m benchmarks.generate cpu --processor  # the same by the processor's time, for a machine that others use
    python -m benchmarks.generate gpu          # GPT-2 bf16, 128 + 256 tokens; BART-base, 4 beams, 16 x (512 + 128)
    python -m benchmarks.generate gpu --peer   # transformers as well; --profile shows what the kernels take

Greedy, random weights, no end mark; the figure is new tokens per second, with the reading of the prompt in the time.
Where a virtual machine announces AMX and crashes on it, oneDNN is kept to AVX512_CORE_BF16, for all alike.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch

import formers
from benchmarks.harness import describe_machine, exit_with_help, time_in_turns, time_median
from formers.generation.decoding import Options, continue_ids
from formers.generation.runner import Runner
from formers.nn.cpu_inference import check_cpu_bf16

GREEDY_OPTIONS = Options(temperature=0)
Candidate = Callable[[], Any]


def build_hf_gpt2(dtype: torch.dtype) -> Any:
    """transformers' GPT-2."""
    from transformers import GPT2Config, GPT2LMHeadModel, logging

    logging.set_verbosity_error()
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config()).eval().to(dtype)


def build_ctranslate2(model: Any) -> dict[str, Any]:
    """CTranslate2's GPT-2 with the same weights, in fp32 and int8; none if it is not installed."""
    try:
        import ctranslate2
        from ctranslate2.converters import TransformersConverter
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        print(f"without CTranslate2: {error}", flush=True)
        return {}
    made, end = {}, "<|endoftext|>"
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/theirs")
        words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(50256)} | {end: 50256}, unk_token=end))
        marks = {"bos_token": end, "eos_token": end, "unk_token": end}
        PreTrainedTokenizerFast(tokenizer_object=words, **marks).save_pretrained(f"{folder}/theirs")
        for kind in ("float32", "int8"):
            TransformersConverter(f"{folder}/theirs").convert(f"{folder}/{kind}", quantization=kind)
            how = {"device": "cpu", "compute_type": kind, "intra_threads": torch.get_num_threads()}
            made[kind] = ctranslate2.Generator(f"{folder}/{kind}", **how)
    return made


def bench_cpu() -> None:
    """GPT-2 124M, 32 + 32 tokens."""
    clock = time.process_time if "--processor" in sys.argv else time.perf_counter
    peers = {"fp32": build_hf_gpt2(torch.float32), "bf16": build_hf_gpt2(torch.bfloat16)}
    others = build_ctranslate2(peers["fp32"])
    mine = {kind: formers.build("gpt2", eos=None).freeze(kind) for kind in ("fp32", "bf16", "int8")}
    for rows in (1, 8):
        ids = torch.randint(5, 50000, (rows, 32), generator=torch.Generator().manual_seed(rows))
        runs = build_candidates(ids, peers, others, mine)
        time_in_turns(f"GPT-2 124M generate, batch {rows}", rows * 32, runs, rounds=3, clock=clock)


def build_candidates(ids: torch.Tensor, peers: Any, others: Any, mine: Any) -> dict[str, Candidate]:
    """32 new tokens by each of the models."""
    words, runs = [[f"t{i}" for i in row] for row in ids.tolist()], dict[str, Candidate]()
    for kind, model in peers.items():
        how = {"max_new_tokens": 32, "min_new_tokens": 32, "do_sample": False, "pad_token_id": 0}
        runs[f"transformers {kind}"] = partial(model.generate, ids, attention_mask=torch.ones_like(ids), **how)
    for kind, model in others.items():
        how = {"max_length": 32, "min_length": 32, "sampling_topk": 1, "include_prompt_in_result": False}
        runs[f"CTranslate2 {kind}"] = partial(model.generate_batch, words, **how)
    for kind, former in mine.items():
        runs[f"formers {kind}"] = partial(continue_ids, former, ids.tolist(), 32, GREEDY_OPTIONS)
    return runs


def decode_greedy(former: Any, ids: torch.Tensor, tokens: int, size: int) -> torch.Tensor:
    """Greedy, the tokens never leaving the device."""
    runner = Runner(former, len(ids), size)
    new = [runner.score_next(ids.tolist()).argmax(-1)]
    for _ in range(tokens - 1):
        new.append(runner.step(new[-1]).argmax(-1))
    return torch.stack(new, 1).cpu()


@torch.inference_mode()
def decode_beams(former: Any, sources: list[list[int]], tokens: int, width: int = 4) -> torch.Tensor:
    """The steps of a beam search without its ends: choosing on the device, parents by the host."""
    texts = len(sources)
    runner = Runner(former, texts * width, tokens + 1, sources, rows_per_source=width)
    total = torch.zeros(texts, width, device=former.device)
    total[:, 1:] = -1e9
    logits = runner.score_next([[former.config.start]] * (texts * width))
    first = torch.arange(texts, device=former.device)[:, None] * width
    for _ in range(tokens):
        scores = (logits.float().log_softmax(-1).view(texts, width, -1) + total[:, :, None]).flatten(1)
        total, best = scores.topk(width, -1)
        parents = (first + best // logits.shape[-1]).flatten()
        runner.reorder_rows(parents)
        logits = runner.step((best % logits.shape[-1]).flatten())
    return total.cpu()


def print_timing(work: str, candidate: str, tokens: int, run: Candidate, repeat: int = 3) -> None:
    """One line; a candidate that fails is reported, and the others still run."""
    try:
        began = time.perf_counter()
        run()
        first = time.perf_counter() - began
        seconds = time_median(run, 1, repeat)
        line = {"per_second": round(tokens / seconds), "ms": round(seconds * 1e3, 1), "first_s": round(first, 1)}
    except Exception as error:
        line = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
    print(json.dumps({"work": work, "candidate": candidate} | line), flush=True)


def bench_gpu() -> None:
    """GPT-2 124M and BART-base in bf16; first our own rows, then those of the peers, one at a time."""
    tiny = not torch.cuda.is_available()
    device, peers = "cpu" if tiny else "cuda", "--peer" in sys.argv
    parts: list[Candidate] = [partial(bench_gpt2, rows, device, tiny) for rows in (1, 8, 64)] + [
        partial(bench_bart, device, tiny)
    ]
    parts += [partial(bench_hf_gpt2, rows, device, tiny) for rows in (1, 8, 64) if peers]
    parts += [partial(bench_hf_bart, device, tiny)] if peers else []
    parts += [partial(profile_gpt2, rows, device) for rows in (1, 64) if "--profile" in sys.argv and not tiny]
    for part in parts:
        try:
            part()
        except Exception as error:
            print(json.dumps({"part": str(part), "error": f"{type(error).__name__}: {str(error)[:300]}"}), flush=True)
    from formers.nn.attention.kernels import decode

    print(json.dumps({"kernels that do not work here": sorted(decode.failed_kernels)}), flush=True)


def choose_sizes(tiny: bool) -> tuple[dict[str, Any], int, int]:
    """GPT-2's sizes, the tokens of a prompt and those to write; small ones show that it runs."""
    return ({"dim": 64, "heads": 2, "layers": 2}, 8, 8) if tiny else ({}, 128, 256)


def make_prompts(rows: int, length: int) -> torch.Tensor:
    """Prompts."""
    return torch.randint(5, 50000, (rows, length), generator=torch.Generator().manual_seed(rows))


def bench_gpt2(rows: int, device: str, tiny: bool) -> None:
    """GPT-2: all that continue_ids does, and the steps alone."""
    small, prompt, tokens = choose_sizes(tiny)
    f, ids = formers.build("gpt2", eos=None, **small).to(device, torch.bfloat16), make_prompts(rows, prompt)
    work = f"GPT-2 124M generate, batch {rows}"
    print_timing(work, "formers", rows * tokens, partial(continue_ids, f, ids.tolist(), tokens, GREEDY_OPTIONS))
    print_timing(work, "formers, steps", rows * tokens, partial(decode_greedy, f, ids, tokens, prompt + tokens))


def profile_gpt2(rows: int, device: str) -> None:
    """What the kernels of GPT-2's steps take."""
    from benchmarks.gpu import print_profile

    f = formers.build("gpt2", eos=None).to(device, torch.bfloat16)
    print_profile(partial(decode_greedy, f, make_prompts(rows, 128), 256, 384), 1)


def bench_hf_gpt2(rows: int, device: str, tiny: bool) -> None:
    """transformers' GPT-2: its usual cache, and the fixed one with a compiled step."""
    _, prompt, tokens = choose_sizes(tiny)
    model, ids = build_hf_gpt2(torch.bfloat16).to(device), make_prompts(rows, prompt).to(device)
    how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
    how |= {"attention_mask": torch.ones_like(ids)}
    work = f"GPT-2 124M generate, batch {rows}"
    print_timing(work, "transformers", rows * tokens, partial(model.generate, ids, **how), 1)
    static = partial(model.generate, ids, cache_implementation="static", **how)
    print_timing(work, "transformers, static and compiled", rows * tokens, static, 1)


def make_sources(tiny: bool) -> tuple[int, int, int, torch.Tensor]:
    """BART's sources: how many, their length, the tokens to write, and the ids."""
    texts, length, tokens = (2, 16, 8) if tiny else (16, 512, 128)
    ids = torch.randint(5, 50000, (texts, length), generator=torch.Generator().manual_seed(0))
    return texts, length, tokens, ids


def bench_bart(device: str, tiny: bool) -> None:
    """BART-base, 4 beams: the search itself, and the steps of one alone."""
    texts, length, tokens, ids = make_sources(tiny)
    small: dict[str, Any] = {"dim": 64, "heads": 2, "layers": 2} if tiny else {"preset": "bart-base"}
    f = formers.build("bart", head="lm", eos=None, **small).to(device, torch.bfloat16)
    work = f"BART-base, 4 beams, {texts} x ({length} + {tokens})"
    print_timing(work, "formers", texts * tokens, partial(continue_ids, f, ids.tolist(), tokens, Options(num_beams=4)))
    print_timing(work, "formers, steps", texts * tokens, partial(decode_beams, f, ids.tolist(), tokens))


def bench_hf_bart(device: str, tiny: bool) -> None:
    """transformers' BART-base, 4 beams."""
    from transformers import BartConfig, BartForConditionalGeneration, logging

    logging.set_verbosity_error()
    texts, length, tokens, ids = make_sources(tiny)
    names = ("d_model", "encoder_ffn_dim", "decoder_ffn_dim", "encoder_layers", "decoder_layers",
             "encoder_attention_heads", "decoder_attention_heads")  # fmt: skip
    small = dict(zip(names, (64, 128, 128, 2, 2, 2, 2) if tiny else (768, 3072, 3072, 6, 6, 12, 12), strict=True))
    torch.manual_seed(0)
    model = BartForConditionalGeneration(BartConfig(**small)).eval().to(device, torch.bfloat16)
    how = {"max_new_tokens": tokens, "min_new_tokens": tokens, "do_sample": False, "num_beams": 4}
    here = ids.to(device)
    run = partial(model.generate, here, attention_mask=torch.ones_like(here), **how)
    print_timing(f"BART-base, 4 beams, {texts} x ({length} + {tokens})", "transformers", texts * tokens, run, 1)


BENCHMARKS = {"cpu": bench_cpu, "gpu": bench_gpu}


def main() -> None:
    """Run the benchmarks that are named."""
    exit_with_help(__doc__)
    check_cpu_bf16(torch.bfloat16, torch.device("cpu"))  # for the peers as well
    names = [word for word in sys.argv[1:] if not word.startswith("--")]
    if not names or set(names) - set(BENCHMARKS):
        sys.exit(__doc__)
    print(json.dumps(describe_machine() | {"isa": os.environ.get("ONEDNN_MAX_CPU_ISA", "all")}), flush=True)
    for name in names:
        BENCHMARKS[name]()


if __name__ == "__main__":
    main()
