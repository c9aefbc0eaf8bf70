"""The playground against the real server with small models: every view of real documents, writing, the token."""

from __future__ import annotations

import pytest

from formers.serving.settings import ServerLimits, ServerSettings
from tests.serving.server_thread import run_in_thread
from tests.serving.small_models import build_small

from .helpers import wait_until

KOREAN = "고양이가 앉았다 🙂 then it flew"


@pytest.fixture(scope="module")
def models():
    return {
        "bert": build_small("bert", "mlm"), "gpt2": build_small("gpt2", "lm"), "t5": build_small("t5", "lm"),
        "xlnet": build_small("xlnet", "lm"), "switch": build_small("switch", "lm", experts=4, sparse=1),
        "seq2seq": build_small("seq2seq", "lm", attention="additive"),
        "classifier": build_small("bert", "classify", labels=["bad", "good"]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(models):
    with run_in_thread(models) as running:
        yield running


def choose_model(page, name: str, place: int = 0) -> None:
    page.locator(".pg-models select").nth(place).select_option(name)


def wait_for_view(page, name: str) -> None:
    wait_until(page, f"formersPlayground.viewer?.documents[0].model.name === '{name}'", 60)
    wait_until(page, "formersPlayground.status.textContent === ''", 60)


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
        assert page.locator("[role=alert]").inner_text() == ""
        tabs = [tab.get_attribute("id") for tab in page.locator(".fv-tabs [role=tab]").all()]
        assert {"fv-tab-overview", "fv-tab-prediction"} <= set(tabs), name
        for tab in tabs:
            page.click(f"#{tab}")
            page.wait_for_timeout(40)
            save_shot(page, f"served-{name}-{tab.removeprefix('fv-tab-')}")
        page.click("#fv-tab-overview")
    choose_model(page, "gpt2")
    choose_model(page, "bert", 1)
    wait_until(page, "document.querySelectorAll('.fv-stage').length === 2", 60)
    assert not watch.list_requests(server.address)


def test_write_and_go_on_from_an_alternative(open_page, server, models):
    watch = open_page(f"{server.address}/playground/#generate")
    page = watch.page
    choose_model(page, "gpt2")
    page.locator("textarea").fill("the cat")
    for label, value in (("Temperature", "0"), ("Tokens", "6")):
        page.get_by_label(label).fill(value)
        page.get_by_label(label).blur()
    page.get_by_role("button", name="Write", exact=True).click()
    wait_until(page, "document.querySelector('.pg-status').textContent.includes('Stopped at')")
    written = page.evaluate("formersPlayground.writers[0].tokens.map((one) => one.piece).join('')")
    assert written == models["gpt2"].generate("the cat", 6, temperature=0)
    page.locator(".pg-token").nth(1).click()
    other = page.evaluate("formersPlayground.writers[0].tokens[1].alternatives[2].id")
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
    page.wait_for_selector(".pg-choice")
    shown = [words.strip() for words in page.locator(".pg-choice b").all_inner_texts()]
    assert shown == [one.token.strip() for one in models["bert"].fill("the ___ sat on the mat", 8)]


def test_objectives_of_all_families(open_page, server, save_shot):
    page = open_page(f"{server.address}/playground/#objectives").page
    page.locator("textarea").fill("the cat sat on the mat and the dog ran")
    wait_until(page, "formersPlayground.viewer?.document.objectives.length > 4", 120)
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
        assert "token is missing" in without.page.content()
        without.errors.clear()
