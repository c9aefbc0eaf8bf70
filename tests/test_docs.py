"""README and docs: their Python runs, their commands exist, their links resolve, their Korean keeps to its terms."""

from __future__ import annotations

import ast
import importlib.util
import io
import json
import re
import shlex
import subprocess
import tokenize
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

import formers
from formers.cli.main import app
from formers.config import HF_ACTIVATIONS
from formers.interop.huggingface import FIXED_VALUES
from formers.registry import FAMILIES
from formers.training.config_merge import FinetuneDataConfig, PretrainDataConfig, TuneConfig
from formers.training.train_config import TrainConfig
from formers.training.word_vectors.word2vec import VectorTrainConfig
from tests.comparison.toy_records import make_race
from tests.page_commands import BLOCK, build_my_bert

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")]
PAGES += sorted((ROOT / "docs").rglob("*.md"))


def list_blocks(kind: str):
    for page in PAGES:
        for number, (language, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8"))):
            if language == kind:
                yield pytest.param(text, id=f"{page.relative_to(ROOT)}-{number}")


def list_python():
    """Yield the pages' Python; of blocks that differ in comments alone, such as those of a translation, the first."""
    programs = set()
    for block in list_blocks("python"):
        program = ast.dump(ast.parse(block.values[0]))
        if program not in programs:
            programs.add(program)
            yield block


@pytest.fixture(scope="module")
def trained_models(tmp_path_factory):
    """What the pages take for granted beside the bundled models: one called my-bert (untrained here)."""
    folder = tmp_path_factory.mktemp("docs")
    f = build_my_bert()
    formers.save(f, folder / "my-bert")
    return folder


@pytest.mark.filterwarnings("ignore:new, untrained")
@pytest.mark.parametrize("text", list(list_python()))
def test_python(text, trained_models, monkeypatch, tmp_path, capsys):
    for part in trained_models.iterdir():
        (tmp_path / part.name).symlink_to(part)
    if '"runs/first/model"' in text:  # the quick start trains it
        (tmp_path / "runs" / "first").mkdir(parents=True)
        (tmp_path / "runs" / "first" / "model").symlink_to(trained_models / "my-bert")
    monkeypatch.chdir(tmp_path)
    exec(compile(text, "docs", "exec"), {})
    assert "�" not in capsys.readouterr().out


def list_commands():
    for block in list_blocks("sh"):
        for line in block.values[0].replace("\\\n", " ").splitlines():  # a line may be continued
            if words := shlex.split(line, comments=True):
                yield pytest.param(words, id=" ".join(words))


@pytest.mark.parametrize("words", list(list_commands()))
def test_commands_exist(words):
    if words[0] == "make":
        targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[1] in targets
        words = ["formers", words[1], *shlex.split(words[2].removeprefix("ARGS="))] if len(words) > 2 else []
    if words and words[0] == "formers":
        app.parse_args(words[1:], exit_on_error=False, print_error=False)
    elif words and words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert set(re.findall(r"\[(\w+)\]", words[-1])) <= set(extras)
        assert not words[-1].startswith("formers"), "no index has formers: install it from a clone"
    elif words[:2] == ["serve", "run"]:  # Ray's own command, with a builder of ours and its options
        module, _, builder = words[2].partition(":")
        assert builder in list_definitions(ROOT / "src" / (module.replace(".", "/") + ".py"))
    elif words[:2] == ["python", "-m"]:  # a script of benchmarks/, which reads its own options
        source = (ROOT / (words[2].replace(".", "/") + ".py")).read_text(encoding="utf-8")
        assert all(f'"{word}"' in source for word in words if word.startswith("--"))
    elif words[:1] == ["python"] and words[1].startswith("scripts/"):
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        assert f'"{words[2]}"' in source, "a stage that the script does not have"
        assert all(f'"{word}"' in source for word in words if word.startswith("--"))
    else:
        assert not words, "a command that nothing checks"


@pytest.mark.parametrize("text", [*list_blocks("bash"), *list_blocks("sh")])
def test_shell_syntax(text):
    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


FORMERS_IN_BASH = re.compile(r"(?:-m formers\.cli\.main|(?:^|&&|;)\s*formers)\s+([^'&;|#\n]+)", re.MULTILINE)


def test_commands_in_bash_exist():
    """Those that torchrun, Slurm or a script starts: the part after the name of the program."""
    seen = 0
    for block in list_blocks("bash"):
        for words in FORMERS_IN_BASH.findall(block.values[0].replace("\\\n", " ")):
            app.parse_args(shlex.split(words), exit_on_error=False, print_error=False)
            seen += 1
    assert seen > 5


def load_script(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def list_definitions(path: Path) -> set[str]:
    """The functions, classes and tables of a Python file; a method is CLASS.NAME."""
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return names


def list_anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page):
    """Pages, pictures, anchors, and functions of the code (FILE.py#NAME)."""
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", BLOCK.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if link.startswith("https://"):
            continue
        if not target.exists():
            broken.append(f"{link}: no such file")
        elif anchor and target.suffix == ".py" and anchor not in list_definitions(target):
            broken.append(f"{link}: no such function, class or table")
        elif anchor and target.suffix == ".md" and anchor not in list_anchors(target):
            broken.append(f"{link}: no such heading")
    assert not broken, "\n".join(broken)


def list_options(command) -> set[str]:
    """The options of a command and of its subcommands."""
    arguments = command.assemble_argument_collection() if command.default_command else ()
    names = {name for argument in arguments for name in argument.names}
    return names.union(*(list_options(command[name]) for name in command if not name.startswith("-")))


def test_settings_and_options_in_prose_exist():
    """Commands in code blocks are parsed by another test; these are the ones in running text."""
    configs = {
        "train": (TrainConfig, VectorTrainConfig),
        "data": (PretrainDataConfig, FinetuneDataConfig),
        "tune": (TuneConfig,),
    }
    settings = {f"{table}.{field.name}" for table, kinds in configs.items() for kind in kinds for field in fields(kind)}
    options = list_options(app) | {"--help"}
    options |= {"--kill-on-bad-exit", "--shutdown-timeout", "--signal"}  # of srun, torchrun and sbatch
    options |= {"--scale"}  # of scripts/train_shipped.py
    missing = []
    for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        if page.parent.name == "coming-from":  # the first column of its tables names the other library's options
            text = re.sub(r"^\|[^|]*\|", "|", text, flags=re.MULTILINE)
        prose = " ".join(span for span in re.findall(r"`([^`\n]+)`", text) if not span.startswith("python -m "))
        names = {*re.findall(r"(?<![\w./-])(?:--)?((?:train|data|tune)\.[a-z_]+)\b", prose)} - settings
        names |= {*re.findall(r"(?<![\w-])--[a-z][a-z-]*(?![\w.-])", prose)} - options
        missing += [f"{page.relative_to(ROOT)}: {name}" for name in sorted(names)]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("language", ["en", "ko"])
def test_walks_link_the_functions_they_name(language):
    """Every link into the code shows the name it leads to, and both languages name the same ones."""
    links = {}
    for name in ("en", "ko"):
        text = (ROOT / "docs" / name / "architecture.md").read_text(encoding="utf-8")
        links[name] = re.findall(r"\[`([\w.]+)`\]\(\.\./\.\./(src/[\w/]+\.py)#([\w.]+)\)", text)
    assert len(links[language]) > 20
    assert all(shown == name for shown, _, name in links[language])
    assert sorted(links["en"]) == sorted(links["ko"])


def test_the_family_pages_are_up_to_date():
    script = load_script("make_family")
    for language in script.TITLES:
        page = script.DOCS / language / "family.md"
        assert page.read_text(encoding="utf-8") == script.make_page(language), "run python scripts/make_family.py"


def test_the_recipe_pages_are_up_to_date():
    script = load_script("make_recipes")
    for language in script.INTRODUCTIONS:
        page = script.DOCS / language / "recipes.md"
        assert page.read_text(encoding="utf-8") == script.make_page(language), "run python scripts/make_recipes.py"


def test_the_race_pages_are_up_to_date():
    script = load_script("make_race")
    records = script.read_record_lines(script.RECORDS)
    for language in script.NOT_RUN:
        page = script.DOCS / language / "race.md"
        want = script.make_page(language, records)
        assert page.read_text(encoding="utf-8") == want, "run python scripts/make_race.py"
        for page, want in script.make_family_pages(language, records).items():
            assert page.read_text(encoding="utf-8") == want, "run python scripts/make_race.py"
        report = script.ComparisonReport(records, language)
        for name, figure in (one for budget in report.measures.budgets for one in report.draw_pictures(budget).items()):
            picture = (script.RECORDS.parent / f"{language}-{name}").read_text(encoding="utf-8")
            assert picture == script.to_standalone_svg(figure), "run python scripts/make_race.py"


def test_a_family_page_says_its_place_in_the_race():
    script = load_script("make_race")
    records = make_race({"bert": [0.70, 0.74], "gpt2": [0.80], "bloom": [0.60]}, bert=1.1, gpt2=2.2, bloom=2.1)
    pages = {page.stem: text for page, text in script.make_family_pages("en", records).items()}
    assert "| Budget A: 10 epochs | 1 of 3 | 80.00 | 2 of 2 | 2.2000 |" in pages["gpt2"]
    assert "| Budget A: 10 epochs | 2 of 3 | 72.00 ± 2.83 (2) | – | – |" in pages["bert"], "masked: not ranked by bits"
    assert "about 1,000 parameters" in pages["gpt2"], "a rank means little without the size of the race"
    assert "Budget A" not in pages["t5"], "it has no records"
    pages = {page.stem: text for page, text in script.make_family_pages("ko", records).items()}
    assert "| 예산 A: 10 에포크 | 3개 중 1위 | 80.00 | 2개 중 2위 | 2.2000 |" in pages["gpt2"]


def test_the_picture_of_the_rooms_is_up_to_date():
    script = load_script("make_rooms")
    assert script.PICTURE.read_text(encoding="utf-8") == script.draw(), "run python scripts/make_rooms.py"


def test_the_picture_of_the_rooms_refuses_a_cycle():
    script = load_script("make_rooms")
    assert script.sort_into_levels({"a": {"b"}, "b": set(), "c": {"b"}}) == [["b"], ["a", "c"]]
    assert script.reduce_edges({"a": set(), "b": {"a"}, "c": {"a", "b"}}, ["a", "b", "c"]) == [("b", "a"), ("c", "b")]
    with pytest.raises(ValueError, match="cycle"):
        script.sort_into_levels({"a": {"b"}, "b": {"a"}})


def test_every_page_is_there_in_korean():
    english, korean = (
        {path.relative_to(folder).as_posix() for path in folder.rglob("*.md")}
        for folder in (ROOT / "docs" / "en", ROOT / "docs" / "ko")
    )
    assert korean == english | {"README.md"}
    assert {f"family/{name}.md" for name in FAMILIES} <= english


# Korean terms that practitioners do not use, and what to write instead (docs/ko/architecture.md lists the terms).
FORBIDDEN_KOREAN = {
    r"배우[고는면며지]|배[운울웁웠]": "학습하다",
    r"(?<!글)머리(?!글)": "헤드 (of a model), 헤더 (of a file)",
    r"섞음": "가중합",
    r"값어치": "평가, 성능",
    r"사상[되하될된]": "매핑",
    r"가족": "모델 계열",
    r"낱말": "단어",
    r"라벨": "레이블",
    r"에폭": "에포크",
    r"폴더": "디렉터리",
    r"웜업": "워밍업",
    r"(?<![계심다])층": "레이어",
    r"사전학습": "사전 학습",
    r"미세조정": "미세 조정",
    r"\d %(?! of| without| \|$)": "the number without a space before %",
    r"척도": "지표",
    r"견[주줍줄]": "비교하다",
    r"목적 함수": "학습 목표",
    r"떼어 둔 글": "검증 텍스트",
    r"가르[치친칩]": "학습시키다, 미세 조정하다",
}
# One term per thing in English: words that neither the pages nor the source use, and the field's term.
FORBIDDEN_ENGLISH = {
    r"foret[eo]ll?": "predict",
    r"learnt": "learned",
    r"warm-up": "warmup",
    r"held-out (text|examples)": "validation text, validation examples",
    r"right (first )?guesses": "accuracy",
    r"\bmeasures? of\b": "metric",
    r"no number": "not finite",
    r"\b(goes|go) on\b": "continue, resume",
    r"by (itself|themselves)\b": "by default, automatically",
    r"\bpast one device\b": "distributed training",
    r"\bjudged\b": "evaluated, scored",
}
ENGLISH_PAGES = [*(ROOT / "docs" / "en").rglob("*.md"), *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING"))]
ENGLISH_PAGES += [ROOT / "CHANGELOG.md"]
ENGLISH_PAGES += [ROOT / "src" / "formers" / room / "strings.js" for room in ("inspection/page", "serving/playground")]


@pytest.mark.parametrize("path", sorted(ENGLISH_PAGES), ids=lambda p: str(p.relative_to(ROOT)))
def test_english_terms(path):
    if path.name == "family.md":
        pytest.skip("made from the model files")
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    assert not find_forbidden(text)


def find_forbidden(text: str) -> list[str]:
    return [f"{m.group()} → {term}" for pattern, term in FORBIDDEN_ENGLISH.items() for m in re.finditer(pattern, text)]


SOURCE = ROOT / "src" / "formers"


def test_english_terms_in_source():
    """Docstrings, comments and messages use the terms of the pages."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline):
            if tokenize.tok_name[token.type] in ("STRING", "COMMENT", "FSTRING_MIDDLE"):
                found += [f"{name}:{token.start[0]}: {hit}" for hit in find_forbidden(" ".join(token.string.split()))]
    assert not found, "\n".join(found)


def list_prose(path: Path):
    """Yield the comments, docstrings and names of functions of a Python file, with their lines."""
    text = path.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (words := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), " ".join(words.split())
        if isinstance(node, ast.FunctionDef):
            yield node.lineno, node.name.replace("_", " ")


def test_english_terms_in_tests_and_benchmarks():
    """Strings are left out: they may be texts that models read."""
    found = []
    for path in sorted((*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"))):
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}:{line}: {hit}" for line, words in list_prose(path) for hit in find_forbidden(words)]
    assert not found, "\n".join(found)


KOREAN_SOURCES = [
    *sorted((ROOT / "docs" / "ko").rglob("*.md")),
    *(ROOT / "src" / "formers" / name for name in ("reports/translations.py", "interop/model_card.py")),
    *(ROOT / "src" / "formers" / folder / "strings.js" for folder in ("inspection/page", "serving/playground")),
]


@pytest.mark.parametrize("path", KOREAN_SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_korean_terms(path):
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, term in FORBIDDEN_KOREAN.items():
            found += [f"line {number}: {match.group()} → {term}" for match in re.finditer(pattern, line)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "ko").rglob("*.md")), ids=lambda p: str(p.relative_to(ROOT)))
def test_korean_register(path):
    """Sentences end in 합니다체 (or 하세요), never in 한다체."""
    text = BLOCK.sub("", path.read_text(encoding="utf-8"))
    assert not re.findall(r"[^\s]*(?<!니)다\.(?=\s|$)", text)


# Values that no config of a supported model has; a rule that reads a key's value rejects one of them if it is choosy.
UNUSUAL_VALUES = (True, False, 3, 0.5, "unusual", [["unusual"], 1], {"rope_type": "unusual"})


def list_refused_settings() -> dict[tuple[str, str], set[str] | None]:
    """Return (key, family) → the only accepted values, as JSON, for every key of a config of which formers refuses
    values. None: a rule of the family's file rejects values, and does not say as a list which ones it takes."""
    refused: dict[tuple[str, str], set[str] | None] = {}
    for name, member in FAMILIES.items():
        for form in filter(None, (member.definition.hf_format, member.definition.bilm_format)):
            fixed = {**form.config_map.fixed_values, **(FIXED_VALUES if form is member.definition.hf_format else {})}
            for key, values in fixed.items():
                refused[key, name] = {json.dumps(value) for value in values}
            for key in (*form.config_map.rules, *form.config_map.legacy_rules):
                if any(is_refused(form.config_map.get_rule(key).read, value) for value in UNUSUAL_VALUES):
                    refused[key, name] = None
    return refused


def is_refused(read, value) -> bool:
    """Return whether a rule rejects a value with an error of its own; values of a wrong type break other rules."""
    try:
        read(value)
    except formers.Error:
        return True
    except (AttributeError, TypeError, ValueError, ArithmeticError):
        return False
    return False


def list_documented_refusals(language: str) -> dict[tuple[str, str], set[str]]:
    """Return (key, family) → the accepted values, as JSON, of the table of settings that are not supported."""
    page = (ROOT / f"docs/{language}/checkpoints.md").read_text(encoding="utf-8")
    section = re.search(r"^### (?:Settings that are not supported|지원하지 않는 설정)$(.*?)^## ", page, re.M | re.S)
    assert section
    exported = [name for name, member in FAMILIES.items() if member.definition.hf_format]
    listed = {}
    for line in section[1].splitlines():
        if line.startswith("| `"):
            _, keys, names, accepted, _, reason, _ = (cell.strip() for cell in line.split("|"))
            assert reason, line
            names = exported if names in ("every family", "모든 모델 계열") else names.split(", ")
            for key in re.findall(r"`([\w.]+)`", keys):
                for name in names:
                    assert (key, name) not in listed, "listed twice"
                    listed[key, name] = set(re.findall(r"`([^`]+)`", accepted))
    return listed


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_table_of_refused_settings_is_that_of_the_code(language):
    refused, listed = list_refused_settings(), list_documented_refusals(language)
    assert not refused.keys() - listed.keys(), "refused and not in the table"
    assert not listed.keys() - refused.keys(), "in the table and not refused"
    for (key, name), values in refused.items():
        if values is not None:
            same = {json.dumps(float(value)) for value in values if value == "0"}  # 0 and 0.0 are one value
            assert values - same == listed[key, name], (key, name)
        for form in filter(None, (FAMILIES[name].definition.hf_format, FAMILIES[name].definition.bilm_format)):
            for value in listed[key, name] if key in form.config_map.rules else ():
                if key != "rope_parameters":
                    assert form.config_map.get_rule(key).read(json.loads(value))


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_activations_that_are_refused_are_listed(language):
    known = pytest.importorskip("transformers.activations").ACT2CLS
    page = (ROOT / f"docs/{language}/checkpoints.md").read_text(encoding="utf-8")
    sentence = re.search(r"^(?:Of the activations|transformers에 있는 활성화 함수)[^.]*\.", page, re.MULTILINE)
    assert sentence
    listed = set(re.findall(r"`(\w+)`", sentence[0]))
    assert not listed & HF_ACTIVATIONS.keys(), "supported by now"
    assert known.keys() - HF_ACTIVATIONS.keys() <= listed
