"""formers demo: the main job on a small scale."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from ..errors import Error
from .screen import Screen, show_line

PROMPTS = {
    "en": ("The people of the United States", "The Government of the ___ States"),
    "ko": ("현행법은", "이에 현행법을 ___ 하려는 것임"),
}


def demo(*, language: Literal["en", "ko"] = "en", out: Path | None = None, seed: int = 0) -> None:
    """Train a small GPT-2 and a small BERT here and now, and look at them.

    Needs no network and about two minutes on two cores: a tokenizer for each, the two models pretrained with their own
    objectives on a small bundled corpus, held beside a unigram on text they have not seen, then a continuation, a
    filled blank and a report to look at.

    formers demo
    formers demo --language ko --out my-demo

    Parameters
    ----------
    language
        en: messages of US presidents; ko: reasons for bills of the National Assembly.
    out
        Where the report and the two models go; formers-demo-LANGUAGE by default.
    seed
        Another seed, other weights.
    """
    console = Screen(wrap=True)
    from ..data.readers import bundled, split
    from ..generation.fill import fill
    from ..generation.text import generate
    from ..inspection.attention import attention
    from ..interop.directory import save
    from ..training.pretrain import pretrain
    from ..training.report import write
    from .progress import progress

    where = room(out or Path(f"formers-demo-{language}"))
    work = where / "runs"
    shutil.rmtree(work, ignore_errors=True)  # of a demo that was stopped
    documents, changes = bundled(language)
    known, held = split(documents)
    console.print(f"{changes}; {len(held):,} held out")
    prompt, blank = PROMPTS[language]
    runs = {}
    for family, goal in (("gpt2", "causal"), ("bert", "masked")):
        with progress(console, family) as tell:
            runs[family] = pretrain(
                family, known, held=held, out=work / family, objective={"name": goal},
                train={"seed": seed, "samples": 0}, tell=tell,
            )  # fmt: skip
    table = Table("held-out text", "unigram, nats", "model, nats", "unigram, right", "model, right", box=None)
    for family, run in runs.items():
        table.add_row(
            family,
            *(f"{score.loss:.2f}" for score in (run.baseline, run.score) if score),
            *(f"{score.accuracy:.1%}" for score in (run.baseline, run.score) if score),
        )
    console.print(table)
    text = prompt + generate(runs["gpt2"].former, prompt, 56, temperature=0.7, top_k=40, seed=seed)
    guesses = fill(runs["bert"].former, blank)
    console.print(Text.assemble("\n", ("GPT-2 continues", "bold"), f" {prompt} …\n{text}"))
    console.print(Text.assemble("\n", ("BERT fills", "bold"), f" {blank}"))
    for guess in guesses:
        console.print(f"  {guess.probability:6.1%}  {guess.token}")
    filled = "\n".join(f"{g.probability:.1%}  {g.text}" for g in guesses)
    samples = {"gpt2": [(f"Continuing “{prompt}”:", text)], "bert": [(f"Filling “{blank}”:", filled)]}
    looked = {"gpt2": attention(runs["gpt2"].former, prompt), "bert": attention(runs["bert"].former, guesses[0].text)}
    clear(where)
    for family, run in runs.items():
        save(run.former, where / family)
    title = "Two language models, trained while you waited" if language == "en" else "기다리는 동안 학습한 두 언어 모델"
    write(
        where / "report.html",
        title,
        f"Corpus: {len(documents):,} bundled documents ({language}).",
        {family: run.folder for family, run in runs.items()},
        samples,
        looked,
        language,
    )
    shutil.rmtree(work)
    here = show_line(where)
    console.print(f"\nReport: {here}/report.html\nModels: {here}/gpt2, {here}/bert (open them with formers.load)")


OWN = ("gpt2", "bert", "report.html", ".formers-demo")  # what a demo writes, and the mark that it was one


def room(where: Path) -> Path:
    """A folder for the demo: a new one, an empty one, or an earlier demo's."""
    try:
        there = where.exists() and any(where.iterdir())
        if there and not any((where / name).exists() for name in (OWN[-1], "report.html")):
            raise Error("exists and is not an earlier demo's", where=where, fix="choose another place with --out")
        where.mkdir(parents=True, exist_ok=True)
        (where / OWN[-1]).touch()
    except OSError as error:
        raise Error(f"cannot write here ({error.strerror})", where=where, fix="choose another with --out") from None
    return where


def clear(where: Path) -> None:
    """Take away what an earlier demo wrote, and nothing else."""
    for name in OWN[:-1]:
        if (where / name).is_dir():
            shutil.rmtree(where / name)
        else:
            (where / name).unlink(missing_ok=True)
