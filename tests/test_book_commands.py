"""The formers commands of the book run, in the order of each page."""

from __future__ import annotations

import pytest

from tests.page_commands import ROOT, PageFolder, list_formers_commands

# The pages that a newcomer reads first run in the ordinary suite.
FIRST_PAGES = ("README.md", "docs/en/quickstart.md", "docs/ko/quickstart.md")
PAGES = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs/en").rglob("*.md"))]
PAGES = [page for page in PAGES if page not in FIRST_PAGES and list_formers_commands(page)]
# Korean pages whose commands differ from the English ones by more than texts run too.
KOREAN_TOO = ("docs/ko/evaluation.md", "docs/ko/generation.md", "docs/ko/race.md")
# Commands that do not run, by how they start, and why.
NOT_RUN = {
    "serve": "waits for requests; make package starts it",
    "compare": "trains each family several times: a minute on the smallest text; its dry runs do run",
    "pretrain bloom --preset bloom-7b1": "its weights are 28 GB, of which a dry run measures steps",
    "pretrain t5 --data corpus-store --preset t5-small": "a dry run measures steps of the paper's 65,536 tokens",
    "import roberta.base": "a pickle of fairseq's: tests/interop/test_released_checkpoints.py",
    "import path/to/roberta.base/model.pt": "a pickle of fairseq's: tests/interop/test_released_checkpoints.py",
    "import ernie-1.0": "a pickle of Paddle's: tests/interop/test_released_checkpoints.py",
    "import transfo-xl-wt103": "a pickle with its words: tests/interop/test_plain_pickle.py",
}


def find_reason(words: list[str]) -> str | None:
    """Return the entry of NOT_RUN that a command falls under; a dry run is short."""
    if "--dry-run" in words:
        return None
    return next((start for start in NOT_RUN if f"{' '.join(words)} ".startswith(f"{start} ")), None)


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "page", [*FIRST_PAGES, *(pytest.param(page, marks=pytest.mark.book) for page in (*PAGES, *KOREAN_TOO))]
)
def test_the_commands_of_a_page_run(page, model_cache, tmp_path, monkeypatch, capsys):
    """Each command finds the files that the ones before it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(model_cache / "hub"))
    folder = PageFolder(page, tmp_path, model_cache)
    commands = list_formers_commands(page)
    assert commands
    for words in commands:
        if not find_reason(words):
            folder.run(capsys, words)


def drop_texts(words: list[str]) -> list[str]:
    """Return a command without what is said differently in Korean: texts, and the language itself."""
    if "--language" in words:
        words = [*words[: words.index("--language")], *words[words.index("--language") + 2 :]]
    is_text = [not word.isascii() or " " in word or word in ENGLISH_WORDS for word in words]
    return ["TEXT" if found else word for word, found in zip(words, is_text, strict=True)]


ENGLISH_WORDS = ("king", "dull")


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/en/")])
def test_the_korean_page_has_the_same_commands(page):
    """So that those of the English page stand for both; a page that differs runs itself."""
    korean = page.replace("/en/", "/ko/")
    are_same = [drop_texts(words) for words in list_formers_commands(page)] == [
        drop_texts(words) for words in list_formers_commands(korean)
    ]
    assert are_same != (korean in KOREAN_TOO)


def test_every_command_that_does_not_run_is_on_a_page():
    commands = [words for page in (*FIRST_PAGES, *PAGES, *KOREAN_TOO) for words in list_formers_commands(page)]
    assert {find_reason(words) for words in commands} - {None} == set(NOT_RUN)
