"""Embeddings of many texts by formers and by sentence-transformers, on a GPU if there is one.

    python -m benchmarks.embeddings
    python -m benchmarks.embeddings minilm --texts 20000 --profile

Both open the same folder in Hugging Face's form: BERT-base's or MiniLM's shape with random weights, and a WordPiece
tokenizer of 30,522 made-up words; nothing is downloaded. Both get the same list of strings of mixed lengths (most of
them short) and give back normalised float32 vectors on the CPU, in batches as each chooses; tokenizing counts. Weights
are bf16 on a GPU, float32 on a CPU. They take turns, and the medians are compared. sentence-transformers may lie in a
folder of its own on PYTHONPATH (pip install --no-deps --target).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch

import formers
from benchmarks.harness import describe_machine, synchronise_gpu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCAB, ROUNDS = 30_522, 3


def make_vocabulary(draw: random.Random) -> list[str]:
    """Special tokens, letters alone and inside of words, ends of words, and made-up words, the shortest first."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    parts = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
    ends = ["##" + part for part in parts]
    words: dict[str, None] = {}
    known = [*SPECIAL, *letters, *("##" + one for one in letters), *ends]
    while len(words) < VOCAB - len(known):
        words["".join(draw.choice(parts) for _ in range(draw.choice((1, 2, 2, 3, 3, 4))))] = None
    return [*known, *words]


def make_texts(draw: random.Random, words: list[str], count: int) -> list[str]:
    """Texts of 4 to 300 words, most of them short; every eighth word is of two pieces or more."""
    sizes = [int(4 * 75 ** (draw.random() ** 1.5)) for _ in range(count)]
    return [" ".join(w + "s" * (draw.random() < 0.125) for w in draw.choices(words, k=size)) for size in sizes]


def save_model(folder: Path, shape: dict[str, int], vocabulary: list[str]) -> None:
    """Save a BERT with random weights and its tokenizer in Hugging Face's form."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(vocabulary), **shape)).save_pretrained(folder)
    made = BertWordPieceTokenizer({word: number for number, word in enumerate(vocabulary)})
    roles = {f"{word[1:-1].lower()}_token": word for word in SPECIAL}
    PreTrainedTokenizerFast(tokenizer_object=made._tokenizer, model_max_length=512, **roles).save_pretrained(folder)


def compare(name: str, folder: Path, texts: list[str], profile: bool) -> None:
    """Print texts per second of both, their ratio, and how far the vectors are apart."""
    from sentence_transformers import SentenceTransformer

    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    peer = SentenceTransformer(str(folder), device=DEVICE, model_kwargs={"dtype": dtype})
    former = formers.load(folder, device=DEVICE, dtype=dtype)
    candidates = {
        "sentence-transformers": lambda: torch.from_numpy(
            peer.encode(texts, normalize_embeddings=True, show_progress_bar=False)
        ),
        "formers": lambda: former.embed(texts, normalise=True),
    }
    times: dict[str, list[float]] = {key: [] for key in candidates}
    vectors = {}
    for key, run in candidates.items():  # warm
        vectors[key] = run()
    for _ in range(ROUNDS):
        for key, run in candidates.items():
            synchronise_gpu()
            began = time.perf_counter()
            run()
            times[key].append(time.perf_counter() - began)
    medians = {key: statistics.median(some) for key, some in times.items()}
    first, second = vectors.values()
    cosine = (first * second.float()).sum(-1).min()
    tokens = sum(map(len, former.tokenizer.encode_batch(texts))) if former.tokenizer is not None else 0
    for key, seconds in medians.items():
        print(json.dumps({
            "work": f"embeddings, {name}, {len(texts):,} texts of {tokens / len(texts):.0f} tokens", "candidate": key,
            "per_second": round(len(texts) / seconds, 1), "tokens_per_second": round(tokens / seconds),
            "ratio": round(medians["sentence-transformers"] / seconds, 2), "least_cosine": round(float(cosine), 5),
            "seconds": [round(one, 3) for one in times[key]],
        }), flush=True)  # fmt: skip
    if profile:
        print_profile(candidates["formers"])


def print_profile(run: object) -> None:
    """Where formers' time goes: the operations that take most of it, and how long tokenizing alone takes."""
    from torch.profiler import ProfilerActivity, profile

    assert callable(run)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE == "cuda" else [])]
    with profile(activities=activities) as recorded:
        run()
    key = f"self_{DEVICE if DEVICE == 'cpu' else 'device'}_time_total"
    print(recorded.key_averages().table(sort_by=key, row_limit=16, max_name_column_width=60))


def main() -> None:
    """Run the shapes that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shapes", nargs="*", help=", ".join(SHAPES))
    parser.add_argument("--texts", type=int, default=8_000 if DEVICE == "cuda" else 96)
    parser.add_argument("--tiny", action="store_true", help="a model of 2 layers, to try the script")
    parser.add_argument("--profile", action="store_true")
    arguments = parser.parse_args()
    print(json.dumps(describe_machine()), flush=True)
    draw = random.Random(0)
    vocabulary = make_vocabulary(draw)
    words = [word for word in vocabulary if word.isalpha() and len(word) > 1]
    for name in arguments.shapes or SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            save_model(Path(folder), TINY if arguments.tiny else SHAPES[name], vocabulary)
            compare(name, Path(folder), make_texts(draw, words, arguments.texts), arguments.profile)


if __name__ == "__main__":
    main()
