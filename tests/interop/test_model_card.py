"""The model card of an export: what the run knows, in the language of the text."""

from __future__ import annotations

import json

import pytest
import torch
import yaml

import formers
from formers import Error
from formers.cli.main import main
from formers.interop.model_card import CARD_TEXTS, detect_language, write_licence_note
from formers.registry import train_tokenizer

ENGLISH = ["The cat sat on the mat.", "It was seven o'clock, and nobody came."]
KOREAN = ["고양이가 매트 위에 앉아 있다.", "일곱 시였지만 아무도 오지 않았다."]


def build_model(texts=ENGLISH, **more):
    f = formers.build("bert", vocab=120, context=16, dim=8, layers=1, heads=2, ff=16, **more)
    f.tokenizer = train_tokenizer("wordpiece", texts, 120)
    return f


def read_card(folder, name="README.md"):
    _, front, body = (folder / name).read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(front), body


def test_the_card_says_what_the_run_knows(tmp_path):
    f = build_model(head="classify", labels=["no", "yes|maybe"])
    f.training_info = {
        "steps": 1200, "task": "classify", "init": "hub:lab/base", "validation": {"accuracy": 0.91234, "loss": 0.3},
        "data": {"sources": ["reviews.csv"], "documents": 5000},
    }  # fmt: skip
    formers.save(f, tmp_path / "own")
    again = formers.load(tmp_path / "own")
    assert again.training_info == f.training_info
    formers.export(again, tmp_path / "hf", dtype=torch.bfloat16)
    front, body = read_card(tmp_path / "hf")
    assert front == {
        "language": "en", "license": None, "library_name": "transformers", "pipeline_tag": "text-classification",
        "tags": ["formers", "bert"],
    }  # fmt: skip
    lines = [line for line in body.splitlines() if line.startswith("| ") and line != "| | |"]
    rows = dict(line[2:-2].split(" | ", 1) for line in lines)
    assert rows["training steps"] == "1,200"
    assert rows["validation"] == "accuracy 0.9123, loss 0.3"
    assert rows["training data"] == "reviews.csv, 5,000 documents"
    assert rows["started from"] == "hub:lab/base"
    assert rows["weights"] == "bfloat16"
    assert rows["labels"] == "no, yes\\|maybe"
    assert 'BertForSequenceClassification.from_pretrained("path/to/hf")' in body
    assert not (tmp_path / "hf" / "README.ko.md").exists()


def test_facts_that_nobody_vouches_for_do_no_harm(tmp_path):
    formers.save(build_model(), tmp_path / "own")
    path = tmp_path / "own" / "formers.json"
    about = {key: value for key, value in json.loads(path.read_text()).items() if key != "seal"}  # it is edited
    odd = {"steps": "many", "init": "<script>\n---\n# x", "data": [1], "validation": {"a": "b", "c": True, "d": 1}}
    path.write_text(json.dumps(about | {"training": odd}))
    formers.export(formers.load(tmp_path / "own"), tmp_path / "hf")
    front, body = read_card(tmp_path / "hf")
    assert front["library_name"] == "transformers"
    assert "| started from | &lt;script> --- # x |" in body
    assert "| validation | d 1 |" in body
    assert "many" not in body
    path.write_text(json.dumps(about | {"training": 3}))
    with pytest.raises(Error, match="'training' must be"):
        formers.load(tmp_path / "own")


def test_a_korean_card_for_korean_text(tmp_path, capsys):
    f = build_model(KOREAN)
    formers.export(f, tmp_path / "hf")
    front, body = read_card(tmp_path / "hf")
    assert front["language"] == "ko"
    assert "README.ko.md" in body
    korean = (tmp_path / "hf" / "README.ko.md").read_text(encoding="utf-8")
    assert "| 모델 계열 | bert" in korean
    assert "불러오는 방법" in korean
    formers.save(f, tmp_path / "own")
    with pytest.raises(SystemExit) as end:
        main(["export", str(tmp_path / "own"), str(tmp_path / "en"), "--language", "en"])
    assert end.value.code == 0
    assert not (tmp_path / "en" / "README.ko.md").exists()
    with pytest.raises(Error, match="no model card in 'fr'"):
        formers.export(f, tmp_path / "fr", language="fr")
    assert not (tmp_path / "fr").exists()


def test_the_values_of_a_korean_card_are_korean(tmp_path):
    f = build_model(KOREAN, head="classify", labels=["부정", "긍정"])
    f.training_info = {
        "steps": 1200, "task": "classify", "objective": "mlm", "validation": {"accuracy": 0.91234, "odd": 0.3},
        "data": {"sources": ["reviews.csv"], "documents": 5000, "tokens": 70000},
    }  # fmt: skip
    formers.export(f, tmp_path / "hf")
    korean = (tmp_path / "hf" / "README.ko.md").read_text(encoding="utf-8")
    for row in (
        "헤드 | 분류 (classify)", "최대 입력 길이 | 토큰 16개", "학습 목표 | 마스크 언어 모델 (mlm)",
        "과제 | 분류 (classify)", "레이블 | 부정, 긍정",
        "학습 데이터 | reviews.csv, 토큰 70,000개, 문서 5,000개", "검증 결과 | 정확도 0.9123, odd 0.3",
    ):  # fmt: skip
        assert f"| {row} |" in korean
    english = (tmp_path / "hf" / "README.md").read_text(encoding="utf-8")
    assert "| longest input | 16 tokens |" in english
    assert "| head | classify |" in english


@pytest.mark.parametrize("family", formers.registry.FAMILIES)
def test_every_head_task_and_objective_has_a_korean_name(family):
    from formers.objectives.registry import OBJECTIVES

    (about,) = formers.tree(family)
    assert {*about["heads"], *about["tasks"], *OBJECTIVES} <= CARD_TEXTS["ko"].value_names.keys()


def test_the_vocabulary_tells_the_language():
    for kind in ("bpe", "unigram", "wordpiece"):
        assert detect_language(train_tokenizer(kind, KOREAN * 3, 330)) == "ko"
        assert detect_language(train_tokenizer(kind, ENGLISH * 3, 330)) == "en"
    assert detect_language(None) == "en"


def test_the_card_of_a_sentence_encoder(tmp_path):
    formers.export(build_model(), tmp_path / "st", to="sentence-transformers")
    front, body = read_card(tmp_path / "st")
    assert (front["library_name"], front["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert 'SentenceTransformer("path/to/st")' in body


def shrink_shipped_models(monkeypatch, tmp_path):
    """Put a small model under the name formers/bert-mini, with the record of the shipped one."""
    from formers.interop import shipped_models

    record = json.loads((shipped_models.SHIPPED_FOLDER / "bert-mini" / "card.json").read_text(encoding="utf-8"))
    place = tmp_path / "pretrained"
    place.mkdir()
    f = build_model(head="mlm")
    f.training_info = {"steps": 7, "objective": "mlm"}
    formers.save(f, place / "bert-mini", storage="int8")
    (place / "bert-mini" / "card.json").write_text(json.dumps(record), encoding="utf-8")
    monkeypatch.setattr(shipped_models, "SHIPPED_FOLDER", place)
    return record


def test_a_shipped_model_keeps_its_licence(tmp_path, monkeypatch):
    """The licence, the languages and the texts survive loading, saving, and an export of the copy."""
    record = shrink_shipped_models(monkeypatch, tmp_path)
    formers.save(formers.load("formers/bert-mini"), tmp_path / "copy")
    for number, source in enumerate(("formers/bert-mini", tmp_path / "copy")):
        formers.export(formers.load(source), tmp_path / f"hf{number}")
        front, body = read_card(tmp_path / f"hf{number}")
        assert front["license"] == "cc-by-sa-3.0"
        assert front["language"] == ["en", "ko"]
        assert "formers/bert-mini, which comes with formers, under [CC BY-SA 3.0](https://creativecommons.org" in body
        assert record["data"][0] in body
        assert "`license` above" not in body
        korean = (tmp_path / f"hf{number}" / "README.ko.md").read_text(encoding="utf-8")
        assert record["korean"]["data"][0] in korean


@pytest.mark.filterwarnings("ignore:new, untrained")
def test_what_is_trained_from_a_shipped_model_says_so(tmp_path, monkeypatch):
    shrink_shipped_models(monkeypatch, tmp_path)
    rows = [{"text": "the cat sat" if n % 2 else "nobody came", "label": str(n % 2)} for n in range(20)]
    run = {"tune": {"epochs": 1.0}, "device": "cpu"}
    formers.finetune("formers/bert-mini", rows, out=tmp_path / "a", **run)
    formers.finetune(tmp_path / "a" / "model", rows, out=tmp_path / "b", **run)  # of that again
    for name, base in (("a", "formers/bert-mini"), ("b", "model")):
        formers.export(formers.load(tmp_path / name / "model"), tmp_path / f"hf-{name}")
        front, body = read_card(tmp_path / f"hf-{name}")
        assert (front["license"], front["language"]) == ("cc-by-sa-3.0", ["en", "ko"])
        assert "Derived from formers/bert-mini" in body
        assert "same or a compatible licence" in body
        assert f"| started from | {base} |" in body
    formers.pretrain(text=ENGLISH * 20, family="bert", init="formers/bert-mini", out=tmp_path / "c",
                     train={"steps": 1, "seq_length": 16})  # fmt: skip
    assert formers.load(tmp_path / "c" / "model").training_info["origins"][0]["changed"] is True


def test_damaged_origins_do_no_harm(tmp_path, monkeypatch):
    shrink_shipped_models(monkeypatch, tmp_path)
    card = tmp_path / "pretrained" / "bert-mini" / "card.json"
    for text in ("{", "[]", '{"license": 3}', '{"license": "x: y\\n- z", "title": "t"}', '{"license": "mit"}'):
        card.write_text(text)
        assert "origins" not in formers.load(card.parent).training_info
    card.write_text('{"license": "mit", "title": "t|<b>", "languages": ["en", "x]\\n"], "data": "no", "korean": 3}')
    formers.export(formers.load(card.parent), tmp_path / "hf")
    front, body = read_card(tmp_path / "hf")
    assert (front["license"], front["language"]) == ("mit", "en")
    assert "formers/t\\|&lt;b>" in body


def test_a_new_head_and_other_exports_keep_the_licence(tmp_path, monkeypatch):
    shrink_shipped_models(monkeypatch, tmp_path)
    with pytest.warns(UserWarning, match="new, untrained"):
        f = formers.load("formers/bert-mini", head="classify", labels=["a", "b"])
    formers.export(f, tmp_path / "st", to="sentence-transformers")
    assert read_card(tmp_path / "st")[0]["license"] == "cc-by-sa-3.0"
    write_licence_note(tmp_path, f)
    assert "CC BY-SA 3.0" in (tmp_path / "LICENCE.md").read_text(encoding="utf-8")
