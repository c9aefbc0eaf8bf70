"""The shell commands of the pages, as a test runs them: in the order of the page, in a folder with small files and tiny
models by the names that the page uses, each made when a command first names it."""

from __future__ import annotations

import functools
import json
import re
import shlex
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import zstandard

import formers
from formers.data.readers import load_bundled_corpus
from formers.registry import train_tokenizer
from formers.training.recipes import get_recipe
from tests.command_line import run_command
from tests.small_models import build_language_model

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# What makes a page's command short enough for a test, by its first words: settings in place of its own. --epochs and
# the like are other names of settings; a value of None takes an option away.
SHORTER: dict[str, dict[str, str | None]] = {
    "pretrain": {
        "--train.steps": "2", "--train.eval_batches": "1", "--train.warmup_steps": "0", "--data.vocab_size": "600",
    },
    "pretrain word2vec": {"--epochs": None, "--train.epochs": "1"},
    "pretrain fasttext": {"--epochs": None, "--train.epochs": "1"},
    "pretrain glove": {"--epochs": None, "--train.epochs": "1"},
    "tokenizer train": {"--vocab-size": "600"},
    "finetune": {"--epochs": None, "--tune.epochs": "1", "--tune.baseline": "false", "--data.vocab_size": "600"},
    "synthetic": {"--count": "12"},
    "try why-attention": {"--translation-steps": "2", "--steps": "2", "--pairs": "100"},
    "try attention-by-hand": {"--steps": "2"},
    "try memory": {"--steps": "2"},
}  # fmt: skip


def list_formers_commands(page: str) -> list[list[str]]:
    """Return the commands of a page's sh blocks that start with formers, without that word."""
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = "\n".join(block for language, block in BLOCK.findall(text) if language == "sh")
    lines = [shlex.split(line, comments=True) for line in blocks.replace("\\\n", " ").splitlines()]
    return [words[1:] for words in lines if words[:1] == ["formers"]]


def has_published_size(words: list[str]) -> bool:
    """Return whether a command trains a model of a published size, or at a paper's pace."""
    preset = words[words.index("--preset") + 1] if "--preset" in words else ""
    return bool(preset) and not preset.endswith("-mini")


def shorten_command(words: list[str]) -> list[str]:
    """Return a command with its settings of SHORTER in place of its own, and a small text for the bundled corpus."""
    if "--dry-run" in words or "--print-config" in words:
        return words
    if words[0] in ("pretrain", "finetune") and has_published_size(words):
        return [*words, "--dry-run", "--train.batch_tokens", "512"]
    words = ["my.txt" if word.startswith("formers/corpus-") else word for word in words]
    if "--resume" in words and "--data" not in words:
        return [*words[:-1], "3"] if words[-2] == "--train.steps" else words
    for option, value in SHORTER.get(" ".join(words[:2]), SHORTER.get(words[0], {})).items():
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
        if value is not None and takes_setting(words, option):
            words += [option, value]
    return words


def takes_setting(words: list[str], option: str) -> bool:
    """Return whether a setting applies: a size of the vocabulary where a tokenizer is trained, a baseline of a task,
    rows where tables are written."""
    if option == "--data.vocab_size":
        has_tokenizer = {"--tokenizer", "--init", "--config"} & {*words} or "corpus-store" in words
        return has_new_words(words) if words[0] == "finetune" else not has_tokenizer
    return not (option == "--tune.baseline" and "lm" in words) and not (option == "--count" and "--out" not in words)


def has_new_words(words: list[str]) -> bool:
    """Return whether a finetune command trains a tokenizer: it starts from a family, with no word vectors."""
    return words[1] in ("transformer", "gpt") or (words[1] == "textcnn" and "--vectors" not in words)


def build_my_bert() -> formers.Former:
    """Build the model that the pages call my-bert: untrained, with a tokenizer of the bundled Korean text."""
    tokenizer = train_tokenizer("wordpiece", load_bundled_corpus("ko")[0][:200], 1024)
    f = formers.build("bert", head="mlm", vocab=len(tokenizer), **{**get_recipe("bert").model, "layers": 4})
    f.tokenizer = tokenizer
    return f


def write_reviews(where: Path, text: str = "text", label: str = "label", comma: str = "\t") -> None:
    """Write twelve labelled texts, different ones into each file."""
    rows = [
        f"{'a fine' if number % 2 else 'a dull'} film {number} {where.name}{comma}{number % 2}" for number in range(12)
    ]
    where.write_text("\n".join([f"{text}{comma}{label}", *rows]) + "\n", encoding="utf-8")


def write_pairs(where: Path, names: str = "en\tko", comma: str = "\t") -> None:
    """Write thirty pairs of sentences; `names` are the columns."""
    pairs = [f"film {number} {where.stem}{comma}영화 {number}" for number in range(30)]
    where.write_text("\n".join([names, *pairs]) + "\n", encoding="utf-8")


def write_many_pairs(where: Path) -> None:
    """Write as many pairs as an experiment splits."""
    write_rows(where, *(f"film {number} of {number % 7}\t영화 {number} {number % 7}" for number in range(420)))


def write_conll(where: Path) -> None:
    """Write sentences with named entities."""
    sentence = "김소월은\tB-PER\n정주에서\tB-LOC\n태어났다\tO\n{}\tO\n"
    where.write_text("\n".join(sentence.format(f"{where.stem}{number}") for number in range(12)), encoding="utf-8")


def write_squad(where: Path) -> None:
    """Write questions in the form of SQuAD."""
    context = "진달래꽃은 김소월이 쓴 시이다. {}"
    paragraphs = [
        {
            "context": context.format(f"{where.stem} {number}"),
            "qas": [{"id": f"{where.stem}{number}", "question": "누가 썼나?",
                     "answers": [{"text": "김소월", "answer_start": 6}]}],
        }
        for number in range(8)
    ]  # fmt: skip
    content = {"version": "1.0", "data": [{"title": "시", "paragraphs": paragraphs}]}
    where.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def write_rows(where: Path, *rows: str) -> None:
    where.write_text("\n".join(rows) + "\n", encoding="utf-8")


def write_text(where: Path, language: str = "en") -> None:
    """Write documents in which the words are that the pages ask after."""
    words = "The king saw a cat. 고양이가 영화를 보았다. 고양이 king\n\n" * 10
    texts = (text[:1500] for text in load_bundled_corpus(language)[0][:30])
    where.write_text(words + "\n\n".join(texts), encoding="utf-8")


def write_lines(where: Path, language: str = "en") -> None:
    write_rows(where, *(text[:80].replace("\n", " ") for text in load_bundled_corpus(language)[0][:12]))


def write_documents(where: Path) -> None:
    """Write a folder of compressed texts, with a directory of each format's files."""
    documents = load_bundled_corpus("en")[0]
    where.mkdir()
    for number in range(2):
        rows = [json.dumps({"text": text}) for text in documents[number * 20 : number * 20 + 20]]
        (where / f"{number}.jsonl.zst").write_bytes(zstandard.compress("\n".join(rows).encode()))
        if where.name == "corpus":
            (where / f"{number}.txt.zst").write_bytes(zstandard.compress("\n\n".join(documents[:20]).encode()))


def write_compressed(where: Path) -> None:
    where.write_bytes(zstandard.compress("\n\n".join(load_bundled_corpus("en")[0][:30]).encode()))


def write_glue(where: Path) -> None:
    """Write a few rows of three tasks as GLUE publishes them: CoLA has a header in its test file alone, and RTE's has
    no labels."""
    mrpc = ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"]
    mrpc += [f"{n % 2}\t{n}\t{n + 50}\tWe sang {n}.\tThey sang {n}." for n in range(8)]
    cola = [f"gj04\t{n % 2}\t\tWe sang {n}." for n in range(8)]
    rte = [f"{n}\tWe sang {n}.\tThey sang.\t{'not_' * (n % 2)}entailment" for n in range(8)]
    rte = ["index\tsentence1\tsentence2\tlabel", *rte]
    tests = {
        "CoLA": ["index\tsentence", *(f"{n}\tWe sang {n}." for n in range(8))],
        "MRPC": mrpc,
        "RTE": [row.rpartition("\t")[0] for row in rte],
    }
    labelled = {"CoLA": cola, "MRPC": mrpc, "RTE": rte}
    for split, tables in {"train": labelled, "dev": labelled, "test": tests}.items():
        for name, rows in tables.items():
            (where / name).mkdir(parents=True, exist_ok=True)
            write_rows(where / name / f"{split}.tsv", *rows)


def write_klue(where: Path) -> None:
    """Write a few rows of two tasks as KLUE publishes them."""
    topics = [{"guid": str(n), "title": f"기사 {n}", "label": "스포츠" if n % 2 else "경제"} for n in range(8)]
    pairs = [
        {"guid": str(n), "premise": f"비 {n}", "hypothesis": "물",
         "gold_label": ("entailment", "neutral", "contradiction")[n % 3]} for n in range(9)
    ]  # fmt: skip
    for name, rows in (("ynat", topics), ("klue-nli", pairs)):
        for split in ("train", "dev"):
            file = where / f"{name}-v1.1" / f"{name}-v1.1_{split}.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")


def write_korquad(where: Path) -> None:
    where.mkdir()
    write_squad(where / "KorQuAD_v1.0_dev.json")


def write_csv_of_reviews(where: Path) -> None:
    """Write a table as Korean spreadsheets do, in cp949 and with semicolons."""
    rows = ["review;stars", *(f"재미있는 영화 {number};{number % 2}" for number in range(12))]
    where.write_bytes("\n".join(rows).encode("cp949"))


def write_csv_without_header(where: Path) -> None:
    where.write_bytes("\n".join(f"{number},재미있는 영화 {number}" for number in range(12)).encode("cp949"))


def write_vectors(where: Path) -> None:
    """Write word vectors as GloVe publishes them."""
    write_rows(
        where, *(f"{word} {' '.join(['0.5', str(at)] * 50)}" for at, word in enumerate(("a", "fine", "dull", "film")))
    )


def write_tasks(where: Path) -> None:
    """Write a mixture of two tasks, and the files that it names."""
    sst2 = "{train: sst2.tsv, valid: sst2.dev.tsv, labels: {0: negative, 1: positive}}"
    rte = '{train: rte.tsv, prefix: "rte premise: ", metric: f1_macro}'
    write_rows(where, "strategy: proportional", "tasks:", f"  sst2: {sst2}", f"  rte: {rte}")
    for name in ("sst2.tsv", "sst2.dev.tsv", "rte.tsv"):
        write_reviews(where.with_name(name))


# The files that the pages name. A page's own comes first: "PAGE NAME", where a name means another form there.
FILES: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(("my.txt", "corpus.txt", "reviews.txt", "book.txt", "long.txt"), write_text),
    "ko.txt": lambda where: write_text(where, "ko"),
    **dict.fromkeys(("texts.txt", "test.txt", "prompts.txt", "sentences.txt", "articles.txt"), write_lines),
    **dict.fromkeys(
        ("reviews.tsv", "reviews.dev.tsv", "reviews.test.tsv", "sst2.tsv", "sst2.dev.tsv", "rte.tsv", "rte.test.tsv",
         "trec.tsv", "cr.tsv", "few.tsv", "train.tsv", "dev.tsv", "test.tsv", "nsmc.train.tsv", "nsmc.test.tsv"),
        write_reviews,
    ),
    **dict.fromkeys(("train.conll", "dev.conll", "test.conll"), write_conll),
    **dict.fromkeys(("KorQuAD_v1.0_train.json", "KorQuAD_v1.0_dev.json"), write_squad),
    **dict.fromkeys(("ratings_train.txt", "ratings_test.txt"), lambda where: write_reviews(where, "document", "label")),
    **dict.fromkeys(("pairs.tsv", "en-ko.tsv"), write_pairs),
    **dict.fromkeys(("tatoeba.en-ko.tsv", "multi30k.en-de.tsv"), write_many_pairs),
    "docs/en/experiments.md pairs.tsv": write_many_pairs,
    "pairs.txt": lambda where: write_pairs(where, "film\t영화"),
    "my-pairs.tsv": write_pairs,
    "pairs.csv": lambda where: write_pairs(where, "de,en", ","),
    "corpus": write_documents,
    "data": write_documents,
    "corpus.txt.zst": write_compressed,
    "lines.txt": lambda where: write_rows(where, "배를 타고 건넜다", "배가 아프다", "배를 먹었다"),
    "blimp.jsonl": lambda where: write_rows(where, '{"good": "The cats are here.", "bad": "The cats is here."}'),
    "copa.jsonl": lambda where: write_rows(where, '{"text": "It rained", "choices": [" so", " but"], "label": 0}'),
    "lambada.jsonl": lambda where: write_rows(where, '{"text": "The cat sat on the mat"}'),
    "similarity.tsv": lambda where: write_rows(
        where, "text\tother\tlabel", *(f"A man {n}\tA boy {n}\t{n / 2}" for n in range(8))
    ),
    "nli.tsv": lambda where: write_rows(
        where, "premise\thypothesis\tlabel", *(f"A man {n}\tA boy\t{'not ' * (n % 2)}so" for n in range(8))
    ),
    "copa.train.jsonl": lambda where: write_rows(
        where, *(f'{{"text": "It rained {n}", "choices": ["so", "but"], "label": {n % 2}}}' for n in range(8))
    ),
    "tasks.yaml": write_tasks,
    "GLUE": write_glue,
    "klue_benchmark": write_klue,
    "korquad": write_korquad,
    "old.csv": write_csv_without_header,
    "glove.6B.100d.txt": write_vectors,
    "docs/en/data.md reviews.csv": write_csv_of_reviews,
    "docs/en/vectors.md reviews.csv": lambda where: write_reviews(where, "review", "label", ","),
    "docs/en/finetuning.md reviews.csv": lambda where: write_reviews(where, "document", "class", ","),
    "docs/en/finetuning.md en-de.tsv": lambda where: write_pairs(where, "en\tde"),
    "docs/en/finetuning.md dev.tsv": lambda where: write_rows(where, "text\ten\tde\tlabel", *PAIR_ROWS),
    "docs/en/finetuning.md pairs.tsv": lambda where: write_pairs(where, "premise\thypothesis"),
    "docs/en/tutorials/translator.md dev.tsv": write_pairs,
    "docs/en/tutorials/translator.md my-pairs.tsv": write_pairs,
    "docs/en/family/mbart.md pairs.tsv": lambda where: write_pairs(where, "text\ttarget"),
}  # fmt: skip
PAIR_ROWS = [f"a film {number}\ta film {number}\tein Film\t{number % 2}" for number in range(6)]
# What the pages name and a command makes (of formers, shortened like theirs).
MADE: dict[str, str] = {
    "my-tokenizer": "tokenizer train bert my.txt --vocab-size 600 --out my-tokenizer",
    "another": "tokenizer train bpe my.txt --vocab-size 600 --out another",
    "corpus-store": "prepare my.txt --tokenizer my-t5 --out corpus-store",
    "run.yaml": "pretrain bert --data my.txt --print-config > run.yaml",
    "runs/bert-classify-1": "finetune my-bert --train reviews.tsv --out runs/bert-classify-1",
    "runs/bert-answer-1": "finetune my-bert --task answer --train KorQuAD_v1.0_train.json --out runs/bert-answer-1",
    "runs/squad": "finetune my-bert --task answer --train KorQuAD_v1.0_train.json --out runs/squad",
    "runs/similarity": "finetune my-bert --task regress --train similarity.tsv --out runs/similarity",
    "runs/nli": "finetune my-bert --train nli.tsv --columns text=premise,other=hypothesis --out runs/nli",
    "runs/copa": "finetune my-bert --task choose --train copa.train.jsonl --out runs/copa",
    "runs/names": "finetune my-bert --task tag --train train.conll --out runs/names",
    "runs/films": "finetune textcnn --train reviews.tsv --out runs/films",
    "runs/glue": "evaluate my-bert GLUE --suite glue --tasks CoLA,MRPC,RTE --finetune-to runs/glue",
    "runs/klue": "evaluate my-bert klue_benchmark --suite klue --tasks TC,NLI --finetune-to runs/klue",
    "runs/words": "pretrain fasttext --data my.txt --out runs/words",
    "runs/ko": "pretrain bert --data ko.txt --out runs/ko",
    "runs/gpt2-1": "pretrain gpt2 --data my.txt --out runs/gpt2-1",
}


def build_my_gpt2() -> formers.Former:
    """Build a decoder with a context for examples, and a tokenizer that has common words whole."""
    tokenizer = train_tokenizer("gpt2", [*load_bundled_corpus("en")[0][:60], " there a " * 50], 1200)
    f = formers.build("gpt2", vocab=len(tokenizer), dim=16, heads=2, ff=32, layers=4, context=512)
    f.tokenizer = tokenizer
    return f


# The tiny models that the pages name: as formers keeps them, as others publish them, and on the hub.
MODELS: dict[str, Callable[[], formers.Former]] = {
    "my-bert": build_my_bert,
    "my-gpt2": build_my_gpt2,
    "my-gpt2-xl": build_my_gpt2,
    "my-t5": functools.partial(build_language_model, "t5"),
    "my-bart": functools.partial(build_language_model, "bart", context=512),
    "my-ernie": functools.partial(build_language_model, "ernie"),
    "my-mbart": functools.partial(build_language_model, "mbart", context=512),
    "my-roberta": functools.partial(build_language_model, "roberta", context=512),
}
PUBLISHED: dict[str, Callable[[], formers.Former]] = {
    "path/to/bert-base-uncased": build_my_bert,
    "path/to/downloaded/gpt2": build_my_gpt2,
    "gpt2-folder": build_my_gpt2,
    "path/to/elmo": functools.partial(build_language_model, "elmo"),
    "published-elmo": functools.partial(build_language_model, "elmo"),
}
HUB: dict[str, Callable[[], formers.Former]] = {
    "klue/bert-base": build_my_bert,
    "klue/roberta-base": functools.partial(build_language_model, "roberta", context=512),
    "openai-community/gpt2": build_my_gpt2,
    "bigscience/bloom-560m": functools.partial(build_language_model, "bloom"),
    "EleutherAI/gpt-neo-125m": functools.partial(build_language_model, "gpt_neo"),
    "EleutherAI/pythia-160m": functools.partial(build_language_model, "gpt_neox"),
    "EleutherAI/gpt-j-6b": functools.partial(build_language_model, "gptj"),
    "facebook/mbart-large-50-many-to-many-mmt": functools.partial(build_language_model, "mbart", context=512),
    "google/mt5-small": functools.partial(build_language_model, "mt5"),
    "Helsinki-NLP/opus-mt-ko-en": functools.partial(build_language_model, "transformer", context=512),
}


def publish(former: formers.Former, repo: str, hub: Path) -> None:
    """Put a model into the cache of the hub's client, as if it had been downloaded."""
    folder, commit = hub / f"models--{repo.replace('/', '--')}", "0" * 40
    formers.export(former, folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)


class PageFolder:
    """The folder in which the commands of a page run; `cache` keeps the models that were built for other pages."""

    def __init__(self, page: str, folder: Path, cache: Path) -> None:
        self.page, self.folder, self.cache, self.hub = page, folder, cache, cache / "hub"

    def run(self, capsys, words: list[str]) -> None:
        """Run a command, shortened, with what it names; an error says which command failed, and what it said."""
        words = shorten_command(words)
        for name in list_names(words):
            self.make(capsys, name)
        words = [self.insert_files(word) for word in words]
        words, target = (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code, out, err = run_command(capsys, *words)
        assert code == 0, f"{self.page}: formers {shlex.join(words)}\n{out}\n{err}"
        if target:
            (self.folder / target).write_text(out, encoding="utf-8")

    def insert_files(self, word: str) -> str:
        """Do what the shell does with $(cat FILE)."""
        return re.sub(r"\$\(cat (\S+)\)", lambda m: (self.folder / m[1]).read_text(encoding="utf-8").strip(), word)

    def make(self, capsys, name: str) -> None:
        """Make what a name stands for, if it stands for something and is not there."""
        page = self.page.replace("docs/ko/", "docs/en/")
        if (self.folder / name).exists():
            return
        if write := FILES.get(f"{page} {name}", FILES.get(name)):
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            write(self.folder / name)
        elif name in MADE:
            self.run(capsys, shlex.split(MADE[name]))
        elif name == "tokenizer.json":
            self.make(capsys, "my-bert")
            shutil.copy(self.folder / "my-bert" / name, self.folder / name)
        elif build := MODELS.get(name, PUBLISHED.get(name)):
            if not (self.cache / name).exists():
                (formers.save if name in MODELS else formers.export)(build(), self.cache / name)
            shutil.copytree(self.cache / name, self.folder / name)
        elif name.startswith("hub:") and not (self.hub / f"models--{name[4:].replace('/', '--')}").exists():
            publish(HUB[name[4:]](), name[4:], self.hub)


def list_names(words: list[str]) -> Iterator[str]:
    """Yield what may name something to read in a command: its words and their parts, but not what it writes."""
    written = {number + 1 for number, word in enumerate(words) if word in ("--out", "--finetune-to", ">")} - {0}
    written |= {2} if words[0] in ("import", "export") else set()
    for number, word in enumerate(words):
        if number not in written:
            for part in [word, *re.split(r"[=, ()]", word.removesuffix("/"))]:
                yield part
                if "/" in part and not part.startswith("hub:"):
                    yield from (part.split("/")[0], "/".join(part.split("/")[:2]))
