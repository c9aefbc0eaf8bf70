"""The playground against the real server with small models: every view of real documents, writing, the token."""

from __future__ import annotations

import re

import pytest
import torch
from playwright.sync_api import expect

from formers.inputs import get_start_token
from formers.inspection import effort
from formers.serving.settings import ServerLimits, ServerSettings
from tests.serving.server_thread import run_in_thread
from tests.serving.small_models import build_small

from .helpers import wait_until, wait_until_drawn

KOREAN = "고양이가 앉았다 🙂 then it flew"


@pytest.fixture(scope="module")
def models():
    return {
        "bert": build_small("bert", "mlm"), "gpt2": build_small("gpt2", "lm"), "t5": build_small("t5", "lm"),
        "xlnet": build_small("xlnet", "lm"), "switch": build_small("switch", "lm", experts=4, sparse=1),
        "seq2seq": build_small("seq2seq", "lm", attention="additive"),
        "classifier": build_small("bert", "classify", labels=["bad", "good"]),
        "tagger": build_small("bert", "tag", labels=["O", "B-PER", "I-PER"]),
        "textcnn": build_small("textcnn", "classify", labels=["bad", "good"]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(models):
    with run_in_thread(models) as running:
        yield running


def choose_model(page, name: str, place: int = 0) -> None:
    page.locator(".pg-models select").nth(place).select_option(name)


def wait_for_view(page, name: str) -> None:
    wait_until(page, f"formersPlayground.viewer?.documents[0].model.name === '{name}'")
    wait_until(page, "formersPlayground.status.textContent === ''")


def test_every_view_of_every_kind_of_model(open_page, server, models, save_shot):
    watch = open_page(f"{server.address}/playground/")
    page = watch.page
    wait_for_view(page, "bert")
    page.locator("textarea").fill(KOREAN)
    for extra in ("attribution", "head costs", "dimensions"):
        page.get_by_label(extra).check()
    for name in models:
        choose_model(page, name)
        wait_for_view(page, name)
        expect(page.locator("[role=alert]")).to_have_text("")
        tabs = [tab.get_attribute("id") for tab in page.locator(".fv-tabs [role=tab]").all()]
        assert {"fv-tab-overview", "fv-tab-prediction"} <= set(tabs), name
        for tab in tabs:
            page.click(f"#{tab}")
            wait_until_drawn(page.locator(".fv-stage canvas").first)
            save_shot(page, f"served-{name}-{tab.removeprefix('fv-tab-')}")
        page.click("#fv-tab-overview")
    choose_model(page, "gpt2")
    choose_model(page, "bert", 1)
    expect(page.locator(".fv-stage")).to_have_count(2)
    assert not watch.list_requests(server.address)


def test_write_and_continue_from_an_alternative(open_page, server, models):
    watch = open_page(f"{server.address}/playground/#generate")
    page = watch.page
    choose_model(page, "gpt2")
    page.locator("textarea").fill("the cat")
    for label, value in (("Temperature", "0"), ("Tokens", "6")):
        page.get_by_label(label).fill(value)
        page.get_by_label(label).blur()
    page.get_by_role("button", name="Write", exact=True).click()
    wait_until(page, "document.querySelector('.pg-status').textContent.includes('Stopped after')")
    written = page.evaluate("formersPlayground.writers[0].tokens.map((one) => one.piece).join('')")
    assert written == models["gpt2"].generate("the cat", 6, temperature=0)
    page.locator(".pg-token").nth(1).click()
    other = page.evaluate("formersPlayground.writers[0].tokens[1].alternatives[2].id")
    page.locator(".pg-choice").nth(2).click()
    wait_until(page, "formersPlayground.writers[0].tokens.length === 6 && !formersPlayground.writers[0].isRunning")
    page.locator("textarea").fill("the cat " * 100)
    page.get_by_role("button", name="Write", exact=True).click()
    expect(page.locator("[role=alert]")).to_contain_text("and the model reads 64 at once")
    expect(page.locator(".pg-status"), "of a text before this one").to_have_text("")
    watch.errors.clear()  # the browser's own line about the status 400
    page.locator("textarea").fill("the cat")
    page.get_by_role("button", name="Write", exact=True).click()
    wait_until(page, "document.querySelector('.pg-status').textContent.includes('Stopped after')")
    page.locator(".pg-token").nth(1).click()
    page.locator(".pg-choice").nth(2).click()
    wait_until(page, "formersPlayground.writers[0].tokens.length === 6 && !formersPlayground.writers[0].isRunning")
    ids = page.evaluate("formersPlayground.writers[0].tokens.map((one) => one.id)")
    front = models["gpt2"].tokenizer.encode("the cat", special=False)
    assert ids[1] == other
    assert ids[2:] == models["gpt2"].continue_ids([[*front, *ids[:2]]], 4, temperature=0)[0]
    assert not watch.list_requests(server.address)


def test_blanks_are_filled_as_the_library_fills_them(open_page, server, models):
    page = open_page(f"{server.address}/playground/#fill").page
    page.locator("textarea").fill("the cat sat on the mat")
    page.get_by_role("button", name="Hide “cat”").click()
    expect(page.locator(".pg-choice")).to_have_count(8)
    shown = [words.strip() for words in page.locator(".pg-choice b").all_inner_texts()]
    assert shown == [one.token.strip() for one in models["bert"].fill("the ___ sat on the mat", 8)]


def test_objectives_of_all_families(open_page, server, save_shot):
    page = open_page(f"{server.address}/playground/#objectives").page
    page.locator("textarea").fill("the cat sat on the mat and the dog ran")
    wait_until(page, "formersPlayground.viewer?.document.objectives.length > 4")
    names = page.locator(".fv-controls option").all_inner_texts()
    for family in ("bert", "albert", "xlnet", "bart", "t5", "ernie"):
        assert any(name.startswith(family) for name in names), family
    for number in range(len(names)):
        page.locator(".fv-controls select").select_option(index=number)
        page.evaluate("formersPlayground.viewer.update({step: 99, isPlaying: false})")
        page.wait_for_timeout(800)
        save_shot(page, f"objective-{number}")


def test_the_token_opens_the_page_and_stays_out_of_it(open_page, models):
    limits = ServerLimits()
    settings = ServerSettings(port=0, token="a-secret-of-the-test", limits=limits)
    with run_in_thread(models, ["bert"], settings=settings) as server:
        watch = open_page(f"{server.address}/playground/?token=a-secret-of-the-test")
        watch.page.wait_for_selector(".fv-stage")
        assert "token" not in watch.page.url
        assert "a-secret" not in watch.page.evaluate("document.cookie")
        without = open_page(f"{server.address}/playground/")
        expect(without.page.locator("body")).to_contain_text("token is missing")
        without.errors.clear()


def test_an_answer_continues_from_an_alternative(open_page, server, models, save_shot):
    """The alternatives of an encoder-decoder's answer are continued after a prefix of the decoder."""
    watch = open_page(f"{server.address}/playground/#generate")
    page = watch.page
    choose_model(page, "t5")
    page.locator("textarea").fill("the cat sat on the mat")
    for label, value in (("Temperature", "0"), ("Tokens", "6")):
        page.get_by_label(label).fill(value)
        page.get_by_label(label).blur()
    page.get_by_role("button", name="Write", exact=True).click()
    wait_until(page, "document.querySelector('.pg-status').textContent.includes('Stopped after')")
    page.locator(".pg-token").nth(1).click()
    save_shot(page, "served-t5-alternatives")
    other = page.evaluate("formersPlayground.writers[0].tokens[1].alternatives[2].id")
    page.locator(".pg-choice").nth(2).click()
    wait_until(page, "formersPlayground.writers[0].tokens.length === 6 && !formersPlayground.writers[0].isRunning")
    ids = page.evaluate("formersPlayground.writers[0].tokens.map((one) => one.id)")
    assert ids[1] == other
    source = torch.tensor([models["t5"].tokenizer.encode("the cat sat on the mat")])
    for count in range(2, 6):
        row = torch.tensor([[get_start_token(models["t5"].config), *ids[:count]]])
        assert ids[count] == int(models["t5"].logits(source, target=row)[0, -1].argmax())
    assert not watch.list_requests(server.address)


def test_a_long_text_is_shown_in_parts(open_page, server, save_shot):
    watch = open_page(f"{server.address}/playground/")
    page = watch.page
    wait_for_view(page, "bert")
    page.locator("textarea").fill("the cat sat on the mat and the dog ran " * 30)
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator(".fv-window")).to_contain_text("tokens 0 to 61 of")
    save_shot(page, "served-window")
    page.locator(".fv-window select").select_option("1")
    wait_until(page, "formersPlayground.viewer.documents[0].sides.text.window.index === 1")
    expect(page.locator(".fv-window")).to_contain_text("tokens 62 to 123 of")
    choose_model(page, "classifier", 1)  # which reads as many tokens: one note for both
    expect(page.locator(".fv-stage")).to_have_count(2)
    expect(page.locator(".fv-window")).to_have_count(1)
    choose_model(page, "gpt2", 1)  # other tokens: a note for each, with its name
    expect(page.locator(".fv-window")).to_have_count(2)
    expect(page.locator(".fv-window").nth(1)).to_contain_text("gpt2: ")
    choose_model(page, "", 1)
    page.locator("textarea").fill("the cat sat")
    expect(page.locator(".fv-window")).to_have_count(0)
    assert not watch.list_requests(server.address)


def test_what_was_left_out_is_computed_by_a_click(open_page, server, monkeypatch, save_shot):
    monkeypatch.setattr(effort, "MAX_DEFAULT_FLOPS", {False: 10.0})
    page = open_page(f"{server.address}/playground/").page
    wait_for_view(page, "bert")
    expect(page.locator("#fv-tab-layers")).to_have_count(0)
    save_shot(page, "served-left-out")
    page.get_by_role("button", name="Compute prediction by layer").click()
    page.wait_for_selector("#fv-tab-layers")
    page.get_by_role("button", name="Compute each token hidden in turn").click()
    wait_until(page, "formersPlayground.viewer.documents[0].prediction.method === 'masked'")
    expect(page.locator(".fv-left-out")).to_have_count(0)


def test_the_steps_of_objectives_follow_the_language(open_page, server, save_shot):
    page = open_page(f"{server.address}/playground/#objectives", language="ko-KR").page
    wait_until(page, "formersPlayground.viewer?.document.objectives.length > 4")
    names = page.locator(".fv-controls option").all_inner_texts()
    for number in range(len(names)):
        page.locator(".fv-controls select").select_option(index=number)
        page.evaluate("formersPlayground.viewer.update({step: 99, isPlaying: false})")
        page.wait_for_timeout(800)
        save_shot(page, f"objective-ko-{number}")
        page.locator(".fv-table summary").click()  # the table is drawn when it is opened
        page.locator(".fv-table tbody tr").first.wait_for()
        cells = page.locator(".fv-table tbody tr").evaluate_all(  # at once: it may be drawn anew meanwhile
            "rows => rows.map(row => [1, 3].map(i => row.querySelectorAll('td')[i].textContent))"
        )
        page.locator(".fv-table summary").click()
        assert cells
        assert all(re.search("[가-힣]", cell) for row in cells for cell in row)
    page.locator(".fv-switches select").first.select_option("en")
    wait_until(page, "formersPlayground.viewer?.document.objectives.length > 4")
    page.locator(".fv-table summary").click()
    cell = page.locator(".fv-table tbody tr td:nth-child(2)").first
    expect(cell).to_have_text(re.compile("[a-z]"))
    expect(cell).not_to_have_text(re.compile("[가-힣]"))


@pytest.mark.parametrize("language", ["en-US", "ko-KR"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_of_the_server_is_accessible(scheme, language, open_page, server, models, check_access, save_shot):
    """axe-core on every verb and on every view of every kind of model, as the server sends them."""
    page = open_page(f"{server.address}/playground/", scheme=scheme, language=language).page
    wait_for_view(page, "bert")
    for box in page.locator(".pg-check input").all():
        box.check()
    for name in models:
        choose_model(page, name)
        wait_for_view(page, name)
        for tab in page.locator(".fv-tabs [role=tab]").all():
            tab.click()
            wait_until_drawn(page.locator(".fv-stage canvas").first)
            check_access(page)
        page.click("#fv-tab-overview")
    page.locator(".fv-table summary").click()
    check_access(page)
    page.click("#pg-verb-generate")
    choose_model(page, "t5")
    page.locator(".pg-actions input").nth(1).fill("0")  # greedy: a drawn end could come after one token
    page.locator(".pg-actions input").nth(1).blur()
    page.locator(".pg-main").click()
    wait_until(page, "document.querySelectorAll('.pg-token').length > 2 && !formersPlayground.writers[0].isRunning")
    page.locator(".pg-token").nth(1).click()
    check_access(page)
    save_shot(page, f"served-{scheme}-{language}-generate")
    choose_model(page, "bert")
    page.click("#pg-verb-fill")
    page.locator(".pg-word").nth(1).click()
    page.wait_for_selector(".pg-choice")
    check_access(page)
    save_shot(page, f"served-{scheme}-{language}-fill")
    page.click("#pg-verb-objectives")
    wait_until(page, "formersPlayground.viewer?.document.objectives?.length > 4")
    page.evaluate("formersPlayground.viewer.update({step: 99, isPlaying: false})")
    page.wait_for_timeout(800)
    check_access(page)
    page.click("#pg-verb-family")
    page.wait_for_selector(".pg-facts h2")
    check_access(page)
    save_shot(page, f"served-{scheme}-{language}-family")
    page.click("#pg-verb-inspect")
    wait_for_view(page, "bert")
    page.locator("textarea").fill("the cat sat on the mat and the dog ran " * 30)
    page.locator(".pg-main").click()
    page.wait_for_selector(".fv-window")
    wait_for_view(page, "bert")
    check_access(page)
    choose_model(page, "classifier", 1)
    expect(page.locator(".fv-stage")).to_have_count(2)
    check_access(page)
    save_shot(page, f"served-{scheme}-{language}-two")
