"""Row 14: hostile and mutated files. Each loads or is refused by an Error, within bounds, and causes nothing else.

The mutations run in a process of their own with a memory limit, an alarm for each case and an audit hook that notes
everything that a file must never cause. `python -m tests.faults.test_untrusted FOLDER FIRST LAST` runs some by hand.
"""

from __future__ import annotations

import base64
import faulthandler
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from pathlib import Path

from tests.faults.audit_watch import AuditWatch

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "parity" / "golden"
SECONDS, MEMORY = 20, 2 * 2**30  # bounds of one case: time, and memory above what the libraries take
DEEP, LONG = "@deep@", "@long@"  # stand for JSON that json.dumps cannot write
LINES = ["the quick brown fox jumps over the lazy dog", "한국어 형태소를 배우는 작은 모델", "a b c d e f 0 1 2 3"] * 4
WORDS = [
    "bert", "roberta", "gpt2", "t5", "mt5", "BertModel", "GPT2LMHeadModel", "RobertaForSequenceClassification", "relu",
    "gelu_new", "gated-gelu", "mean", "cls_index", "none", "lm", "mlm", "classify", "F32", "F16", "BF16", "F64", "I64",
    "I32", "U8", "BOOL", "F8_E4M3", "model.safetensors", "../model.safetensors", "/etc/passwd", "a\\b", "\0",
    "os.system", "__reduce__", "[MASK]", "<s>", "Precompiled", "ByteLevel", "WordPiece", "Unigram", "BPE", "Sequence",
    "Split",
]  # fmt: skip
KEYS = [
    "auto_map", "trust_remote_code", "quantization_config", "is_decoder", "num_labels", "id2label", "pad_token_id",
    "eos_token_id", "bos_token_id", "hidden_size", "num_hidden_layers", "n_inner", "head_dim", "weight_map", "offset",
    "decoder_layers", "num_decoder_layers", "buckets", "feed_forward_proj", "initializer_range", "init", "__metadata__",
    "shape", "dtype", "data_offsets", "format", "labels", "special", "tokenizer", "decoder", "decoders", "normalizer",
    "pre_tokenizer", "precompiled_charsmap", "added_tokens", "type", "strip_accents", "cls_token", "unk_token",
    "\ud800",
]  # fmt: skip
NUMBERS = [
    0, -1, 1, 2, 3, 7, 255, 4096, 100_000, 10**6, 2**24, 2**31, -(2**31), 2**32 - 1, 10**9, 10**12, 2**63 - 1, 2**63,
    2**64, 10**30, 10**400, -(10**12), 0.5, -0.0, 1.5, -2.5, 1e-300, 1e308, float("nan"), float("inf"), -float("inf"),
]  # fmt: skip


def make_hostile_value(dice: random.Random):
    """A value that no honest file would hold there, or that an honest one would hold elsewhere."""
    kind = dice.randrange(8)
    if kind < 3:
        return dice.choice(NUMBERS)
    if kind < 5:
        return dice.choice(WORDS)
    choices = [
        None, True, False, "", "x" * 10_000, "\ud800", "a\udc00", "\x1b[31m", "\n\r", [], {}, [[]], [None] * 3,
        [10**9] * 3, [0] * 1000, {"a": {"b": [1]}}, DEEP, LONG, base64.b64encode(b"\xff\xff\xff\x7fabcd").decode(),
        {str(i): f"LABEL_{i}" for i in range(dice.choice([3, 2000]))},
    ]  # fmt: skip
    return dice.choice(choices)


def change_value(value, dice: random.Random):
    """A value of the same type that is a little or much different."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return dice.choice([value + 1, value - 1, -value, value * 2, value * 1000, value // 2, value + 10**9])
    if isinstance(value, float):
        return dice.choice([-value, value * 1e6, value + 1, 0.0])
    if isinstance(value, str) and value:
        at = dice.randrange(len(value))
        return dice.choice([value[:at], value + value, value[:at] + "\0" + value[at:], value.upper(), "../" + value])
    if isinstance(value, list):
        return dice.choice([value + value, value[:-1], value[::-1], {str(i): v for i, v in enumerate(value)}])
    if isinstance(value, dict):
        return dice.choice([list(value), list(value.values()), dict(list(value.items())[1:])])
    return make_hostile_value(dice)


def mutate_json(table, dice: random.Random) -> bytes:
    """JSON with some of its values, keys or types changed."""
    for _ in range(dice.choice([1, 1, 1, 2, 3])):
        places = [(table, key) for key in table]
        for here, key in places:  # grows while it is walked: all places at any depth
            inside = here[key]
            if isinstance(inside, dict | list) and len(places) < 5000:
                places += [(inside, k) for k in (inside if isinstance(inside, dict) else range(len(inside)))]
        here, key = dice.choice([(table, "x"), *places])
        action = dice.choice(["hostile", "hostile", "change", "change", "delete", "add", "rename"])
        if isinstance(here, list) or (key in here and action in ("hostile", "change")):
            here[key] = change_value(here[key], dice) if action == "change" else make_hostile_value(dice)
        elif action == "delete":
            here.pop(key, None)
        elif action == "rename" and key in here:
            here[dice.choice(KEYS)] = here.pop(key)
        else:
            here[dice.choice(KEYS)] = make_hostile_value(dice)
    text = json.dumps(table)
    deep = dice.choice([40, 120, 300, 900, 990, 100_000])
    text = text.replace(f'"{DEEP}"', dice.choice(["[" * deep + "]" * deep, '{"a":' * deep + "1" + "}" * deep]))
    text = text.replace(f'"{LONG}"', dice.choice(["1" * 4000, "1" * 5000, "1e999", '"' + "y" * 10**6 + '"']))
    if dice.random() < 0.05:
        first = json.dumps(next(iter(table), "x"))
        text = "{" + first + ": " + json.dumps(dice.choice(NUMBERS)) + ", " + text[1:]  # a key twice
    return text.encode()


def damage_bytes(data: bytes, dice: random.Random, low: int = 0, high: int | None = None) -> bytes:
    """Bytes flipped, cut off, put in, taken out or doubled, between two places."""
    high = min(len(data), len(data) if high is None else high)
    at = dice.randrange(low, high) if high > low else 0
    length = dice.choice([1, 1, 2, 8, 100, 1000])
    noise = bytes(dice.randrange(256) for _ in range(min(length, 16)))
    kind = dice.randrange(6)
    if kind < 2:
        out = bytearray(data or b"\0")
        for _ in range(dice.choice([1, 1, 2, 8])):
            out[dice.randrange(low, high) if high > low else 0] ^= 1 << dice.randrange(8)
        return bytes(out)
    return [
        data[:at], data[:at] + noise + data[at:], data[:at] + data[at + length :],
        data[:at] + data[at : at + length] * dice.choice([2, 2, 50]) + data[at + length :],
    ][kind - 2]  # fmt: skip


def mutate_tensors(data: bytes, dice: random.Random) -> bytes:
    """A valid safetensors file with one tensor of another name, shape, type or value, less or more."""
    import torch
    from safetensors.torch import load, save

    tensors = load(data)
    name = dice.choice(sorted(tensors))
    old = tensors.pop(name)
    kinds = [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float8_e4m3fn]
    change = dice.randrange(7)
    if change == 0:
        tensors[dice.choice([name + ".x", "", "\0", dice.choice(KEYS[:-1]), name.replace("0", "7")])] = old
    elif change < 3:
        shapes = [old.flatten(), old[None], old.T.contiguous() if old.dim() == 2 else old[:1], old.sum(), old[:0]]
        tensors[name] = dice.choice(shapes)
    elif change < 5:
        tensors[name] = old.to(dice.choice(kinds))
    elif change == 5:
        tensors[name] = torch.full_like(old, dice.choice([float("nan"), float("inf"), 1e30, 0.0]))
    return save({k: v.clone() for k, v in tensors.items()})


def mutate_file(name: str, data: bytes, dice: random.Random) -> bytes:
    """One file with a mutation that fits its kind."""
    if name.endswith(".safetensors"):
        (length,) = struct.unpack("<Q", data[:8])
        kind = dice.randrange(8)
        if kind > 5:
            return mutate_tensors(data, dice)
        if kind == 0:
            return damage_bytes(data, dice)
        if kind == 1:
            return damage_bytes(data, dice, 8, 8 + length)
        if kind == 2:
            size = dice.choice([0, 1, length - 1, length + 1, len(data), len(data) - 8, 10**8, 2**63, 2**64 - 1])
            return struct.pack("<Q", size) + data[8:]
        text = mutate_json(json.loads(data[8 : 8 + length]), dice)
        return struct.pack("<Q", len(text)) + text + data[8 + length :]
    if name.endswith(".json") and dice.random() < 0.7:
        return mutate_json(json.loads(data), dice)
    if name.endswith(".txt") and dice.random() < 0.6:
        lines = data.split(b"\n")
        extra = dice.choice(
            [b"", b"x" * 10**5, b"\xff\xfe", b"a", b"a b c", b" ", b"\0 \0", lines[0], b"\r", b"\n" * 10**5]
        )
        lines[dice.randrange(len(lines))] = extra
        return b"\n".join(lines)
    return damage_bytes(data, dice)


def make_seeds(root: Path) -> None:
    """Honest folders of every form that we read; all mutations start here."""
    import formers
    from formers.registry import train_tokenizer

    bytes_, pieces = train_tokenizer("bpe", LINES, 300), train_tokenizer("wordpiece", LINES, 120)
    table = json.loads(bytes_.json_text)["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in table["merges"]]
    gpt2 = {
        "vocab.json": json.dumps(table["vocab"]),
        "merges.txt": "\n".join(["#version: 0.2", *merges]),
        "tokenizer_config.json": json.dumps({"add_prefix_space": False, "eos_token": {"content": "<|endoftext|>"}}),
        "special_tokens_map.json": json.dumps({"bos_token": "<|endoftext|>"}),
    }
    bert = {
        "vocab.txt": "\n".join(json.loads(pieces.json_text)["model"]["vocab"]) + "\n",
        "tokenizer_config.json": json.dumps({"do_lower_case": True, "strip_accents": None, "cls_token": "[CLS]"}),
    }
    charsmap = base64.b64encode(struct.pack("<I", 1024) + bytes(1024) + b"x\0").decode()
    unigram = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for i, t in enumerate(("<pad>", "</s>", "<unk>"))
        ],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": charsmap},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}, {"type": "NFKC"},
        ]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "post_processor": {
            "type": "TemplateProcessing", "single": [
                {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}},
        },
        "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        "model": {
            "type": "Unigram", "unk_id": 2, "byte_fallback": False,
            "vocab": [[t, -float(i)] for i, t in enumerate(["<pad>", "</s>", "<unk>", "▁", *"abcdefgh한국어", "▁the"])],
        },
    }  # fmt: skip
    t5 = {"tokenizer.json": json.dumps(unigram), "tokenizer_config.json": '{"eos_token": "</s>"}'}
    beside = {
        "GPT2LMHeadModel-0": gpt2, "GPT2ForSequenceClassification-1": {}, "BertForPreTraining-0": bert,
        "BertForMaskedLM-1": {}, "RobertaForMaskedLM-0": {"tokenizer.json": bytes_.json_text},
        "T5ForConditionalGeneration-0": t5, "MT5ForQuestionAnswering-1": {},
    }  # fmt: skip
    for name, files in beside.items():
        shutil.copytree(GOLDEN / name, root / name, ignore=shutil.ignore_patterns("expected.*"))
        for file, text in files.items():
            (root / name / file).write_text(text, encoding="utf-8")
    classifier = formers.load(GOLDEN / "RobertaForSequenceClassification-1")
    classifier.tokenizer = pieces
    formers.export(classifier, root / "shards", shard=20_000)
    formers.save(formers.load(root / "BertForPreTraining-0"), root / "own-shards", shard=5_000)
    formers.save(formers.load(root / "T5ForConditionalGeneration-0"), root / "own")
    for folder in root.iterdir():
        formers.load(folder)


class Late(BaseException):
    """The time of a case is over."""


def use_former(former, scratch: Path, dice: random.Random) -> None:
    """What loads must also work: text in and out, numbers, and sometimes a copy in both formats."""
    import torch

    import formers

    if former.tokenizer is not None:
        ids = former.tokenizer.encode("the quick 한국어", "dog 0")
        former.tokenizer.decode(ids[:20])
        assert former.tokenizer.fingerprint
        assert len(former.tokenizer) >= 0
    ids = torch.tensor([[0, 1]])
    with torch.no_grad():
        former.hidden(ids)
    if dice.random() < 0.1:
        for write in (formers.save, formers.export):
            shutil.rmtree(scratch / "copy", ignore_errors=True)
            write(former, scratch / "copy")
        shutil.rmtree(scratch / "copy")


def load_and_use(folder: Path, scratch: Path, dice: random.Random) -> str:
    """Load a folder: "load", "error", or what went wrong."""
    import formers

    try:
        use_former(formers.load(folder, head=dice.choice(["auto"] * 6 + ["none", "lm", "classify"])), scratch, dice)
    except formers.Error as error:
        text = str(error).replace(str(folder), "")
        if not text.isprintable() or len(text) > 1200:
            return f"an error that is not one short line: {text[:300]!r}"
        return "error"
    return "load"


def prepare_case(root: Path, number: int, names: list[Path]) -> tuple[str, Path, random.Random, dict[Path, bytes]]:
    """Prepare mutation `number`: one file (now and then two) of one folder; what to put back afterwards."""
    dice = random.Random(f"formers {number}")
    folder = dice.choice(names)
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    about = [p for p in files if p.suffix != ".safetensors"]
    chosen = {dice.choice(about if dice.random() < 0.7 else files) for _ in range(dice.choice([1, 1, 1, 2]))}
    before, label = {}, []
    for path in sorted(chosen):
        before[path] = path.read_bytes()
        path.unlink()  # a model of an earlier case may still have the old file mapped
        chance = dice.random()
        if chance < 0.01:
            label.append(f"{path.name} removed")
        elif chance < 0.03:
            other = dice.choice(sorted(p for p in root.rglob("*") if p.suffix == path.suffix and p.is_file()))
            shutil.copyfile(other, path)
            label.append(f"{path.name} from {other.relative_to(root)}")
        else:
            path.write_bytes(mutate_file(path.name, before[path], dice))
            label.append(path.name)
    return f"{number} {folder.name}: {', '.join(label)}", folder, dice, before


PLANTED = {
    "exec": lambda: eval("1 + 1"),
    "import": lambda: __import__("this_module_is_not_there"),
    "open": lambda: open("/etc/hostname").close(),
    "os.system": lambda: os.system("true"),
    "socket.__new__": lambda: __import__("socket").socket(),
    "os.listdir": lambda: os.listdir("/"),
    "KeyError": lambda: {}["x"],
    "MemoryError": lambda: bytearray(4 * MEMORY),
    "Late": lambda: time.sleep(SECONDS + 5),
    "SystemExit": lambda: sys.exit(3),
}


def run_cases(root: Path, first: int, last: int, planted: bool) -> None:
    """Run mutations first..last-1 in this process and print what happened as JSON."""
    global SECONDS
    import socket  # noqa: F401  (what is planted needs it; nothing else does)

    import formers
    from formers.registry import FAMILIES

    warnings.simplefilter("ignore")
    assert all(member.definition for member in FAMILIES.values())  # a config without model_type asks every member
    names, scratch = sorted(p for p in root.iterdir() if p.is_dir()), root.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    os.chdir(scratch)  # what removes a folder names its files without a path
    for member in FAMILIES.values():
        assert member.definition
    for folder in names:  # everything that is imported at first use is imported before the watch begins
        for head in ("auto", "none", "lm", "classify", "nonsense"):
            try:
                former = formers.load(folder, head=head)
                use_former(former, scratch, random.Random(3))
                for write in (formers.save, formers.export):
                    write(former, scratch / "copy")
                    shutil.rmtree(scratch / "copy")
            except formers.Error:
                pass
    virtual = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (virtual + MEMORY, virtual + MEMORY))
    watch, progress = AuditWatch(root, scratch), os.open(root.parent / "progress", os.O_RDWR | os.O_CREAT)
    figures = {"loads": 0, "errors": 0, "bad": [], "slowest": 0.0, "from": ""}

    def late(*_):
        raise Late

    signal.signal(signal.SIGALRM, late)
    if planted:
        SECONDS = 1
    plants = list(PLANTED.values())
    for number in range(first, last):
        label, folder, dice, before = prepare_case(root, number, names)
        os.pwrite(progress, label.encode().ljust(500), 0)
        began, watch.seen = time.process_time(), []
        faulthandler.dump_traceback_later(3 * SECONDS, exit=True)  # the backstop for code that no signal interrupts
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        try:
            watch.armed = True
            what = plants[number]() or "load" if planted else load_and_use(folder, scratch, dice)
        except BaseException as error:
            what = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        finally:
            watch.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
        spent = time.process_time() - began
        if spent > figures["slowest"]:
            figures |= {"slowest": spent, "from": label}
        if watch.seen or what not in ("load", "error") or spent > SECONDS:
            figures["bad"].append(f"{label}: {what} {watch.seen[:3]}")
        else:
            figures["loads" if what == "load" else "errors"] += 1
        for path, data in before.items():
            path.unlink(missing_ok=True)
            path.write_bytes(data)
    figures["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    figures["left"] = [p.name for p in scratch.iterdir()]
    print(json.dumps(figures))


def run_in_children(root: Path, first: int, last: int, *more: str) -> dict:
    """Run the cases in a process of their own; a crash is noted as such, and the next case runs in a new process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RUST_BACKTRACE": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    total = {"loads": 0, "errors": 0, "bad": [], "slowest": 0.0, "from": "", "peak": 0.0, "left": []}
    while first < last:
        work = root.parent / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(root, work)
        command = [sys.executable, "-m", "tests.faults.test_untrusted", str(work), str(first), str(last), *more]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=False)
        if done.returncode == 0:
            part = json.loads(done.stdout.splitlines()[-1])
            first = last
        else:
            at = (root.parent / "progress").read_text().strip()
            part = {"bad": [f"{at}: exit {done.returncode}: {done.stderr[-1500:]}"]}
            first = int(at.split()[0]) + 1
        total |= {k: total[k] + v for k, v in part.items() if k in ("loads", "errors", "bad", "left")}
        if part.get("slowest", 0) > total["slowest"]:
            total |= {"slowest": part["slowest"], "from": part["from"]}
        total["peak"] = max(total["peak"], part.get("peak", 0))
        if len(total["bad"]) > 200:
            break
    return total


def test_mutated_files(tmp_path, full):
    """10,000 mutations in full, some hundreds in every run: 0 crashes, 0 executions."""
    count = 10_000 if full else 200
    make_seeds(tmp_path / "seeds")
    result = run_in_children(tmp_path / "seeds", 0, count)
    print(
        f"\nrow 14: {count:,} mutations: {len(result['bad'])} crashes or executions, {result['loads']:,} loads, "
        f"{result['errors']:,} typed errors; slowest {result['slowest']:.2f} s, peak {result['peak']:.2f} GiB"
    )
    assert not result["bad"], "\n".join(result["bad"][:20])
    assert result["loads"] + result["errors"] == count
    assert min(result["loads"], result["errors"]) > count // 20, "the mutations are too weak or too strong"
    assert not result["left"]


def test_the_oracle_notices(tmp_path):
    """What must never happen, done on purpose: each is seen."""
    make_seeds(tmp_path / "seeds")
    result = run_in_children(tmp_path / "seeds", 0, len(PLANTED), "planted")
    assert len(result["bad"]) == len(PLANTED)
    for name, line in zip(PLANTED, result["bad"], strict=True):
        assert name in line, line


if __name__ == "__main__":
    run_cases(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), "planted" in sys.argv)
