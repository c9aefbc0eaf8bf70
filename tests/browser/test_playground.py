"""The playground in a browser, against a server with made-up answers: type, write, stop, fill, compare, switch."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect

from . import samples
from .helpers import SECONDS, wait_until, wait_until_drawn
from .stub_server import StubHandler

VERBS = ("inspect", "generate", "fill", "objectives", "family")


@pytest.fixture
def open_playground(open_page, stub_address):
    def open_one(hash_: str = "", **options):
        watch = open_page(f"{stub_address}/playground/{hash_}", **options)
        watch.page.wait_for_selector("#pg-panel")
        return watch

    return open_one


def choose_model(page, name: str, place: int = 0) -> None:
    page.locator(".pg-models select").nth(place).select_option(name)


def test_typing_is_followed_by_the_picture(open_playground, stub_address, save_shot):
    watch = open_playground()
    page = watch.page
    page.wait_for_selector(".fv-stage")
    page.locator("textarea").fill("Fishermen repaired the old boat .")
    wait_until(page, "formersPlayground.viewer?.document.sides.text.text.startsWith('Fishermen')")
    assert page.evaluate("formersPlayground.viewer.state.view") == "overview"
    page.click("#fv-tab-head")
    expect(page.locator("#fv-tab-head")).to_have_attribute("aria-selected", "true")
    page.locator("textarea").fill("Fishermen sold the old boat .")
    wait_until(page, "formersPlayground.viewer.document.sides.text.text.includes('sold')")
    expect(page.locator("#fv-tab-head"), "the view is kept while typing").to_have_attribute("aria-selected", "true")
    page.get_by_label("attribution").check()
    page.wait_for_selector("#fv-tab-attribution")
    save_shot(page, "playground-inspect")
    assert not watch.list_requests(stub_address)


def test_write_stop_and_continue_from_an_alternative(open_playground, stub_address, save_shot):
    watch = open_playground("#generate")
    page = watch.page
    choose_model(page, "gpt2-mini")
    page.locator("textarea").fill("옛날 옛적에")
    page.get_by_label("Tokens").fill("200")
    page.get_by_label("Tokens").blur()
    write, stop = page.get_by_role("button", name="Write", exact=True), page.get_by_role("button", name="Stop")
    write.click()
    wait_until(page, "document.querySelectorAll('.pg-token').length >= 6")
    expect(write).to_be_disabled()
    save_shot(page, "playground-writing")
    stop.click()
    wait_until(page, "document.querySelector('.pg-status').textContent.includes('Stopped by you')")
    until = time.monotonic() + SECONDS
    while StubHandler.open_streams and time.monotonic() < until:
        page.wait_for_timeout(20)
    assert StubHandler.open_streams == 0, "the server's stream ends with the connection"
    count = page.locator(".pg-token").count()
    page.wait_for_timeout(150)
    expect(page.locator(".pg-token")).to_have_count(count)
    expect(write).to_be_enabled()
    page.locator(".pg-token").nth(2).click()
    choices = page.locator(".pg-choice")
    expect(choices).to_have_count(5)
    expect(choices.nth(0), "the chosen token is no alternative").to_be_disabled()
    save_shot(page, "playground-alternatives")
    with page.expect_request("**/generate") as asked:
        choices.nth(2).click()
    body = asked.value.post_data_json
    assert body["ids"] == [0, 1, 4], "two written tokens and the alternative"
    assert body["text"] == "옛날 옛적에"
    wait_until(page, "document.querySelectorAll('.pg-token').length >= 5")
    expect(page.locator(".pg-token").nth(2)).to_have_text("grass")
    stop.click()
    wait_until(page, "!document.querySelector('.pg-main').disabled")
    page.get_by_role("button", name="Look inside this text").click()
    wait_until(page, "formersPlayground.viewer?.document.sides.text.text.startsWith('옛날 옛적에 river')")
    assert not watch.list_requests(stub_address)


def test_a_word_is_hidden_by_click_and_filled(open_playground, save_shot):
    page = open_playground("#fill").page
    page.locator("textarea").fill("The boat lay on the water.")
    page.get_by_role("button", name="Hide “boat”").click()
    page.wait_for_selector(".pg-choice")
    hidden = page.get_by_role("button", name="Show “boat” again")
    expect(hidden).to_have_attribute("aria-pressed", "true")
    expect(hidden).to_be_focused()
    save_shot(page, "playground-fill")
    page.get_by_title("Put in “grass”").click()
    expect(page.locator("textarea")).to_have_value("The grass lay on the water.")


def test_a_text_is_kept_and_compared_with_its_edit(open_playground, save_shot):
    page = open_playground().page
    page.wait_for_selector(".fv-stage")
    page.locator("textarea").fill("The boat lay on the water .")
    wait_until(page, "formersPlayground.viewer.documents[0].sides.text.text.startsWith('The boat')")
    page.get_by_role("button", name="Keep for comparison").click()
    page.locator("textarea").fill("The ship lay on the water .")
    wait_until(page, "formersPlayground.viewer.documents[1]?.sides.text.text.startsWith('The ship')")
    assert page.evaluate("formersPlayground.viewer.documents[0].sides.text.text").startswith("The boat")
    page.click("#fv-tab-difference")
    wait_until_drawn(page.locator(".fv-stage canvas").first)
    save_shot(page, "playground-edited")
    page.get_by_role("button", name="Stop comparing").click()
    wait_until(page, "formersPlayground.viewer.documents.length === 1")


def test_two_models_side_by_side(open_playground, save_shot):
    page = open_playground().page
    page.wait_for_selector(".fv-stage")
    choose_model(page, "bert-other", 1)
    expect(page.locator(".fv-stage")).to_have_count(2)
    expect(page.locator("figcaption").nth(0)).to_have_text(re.compile("^bert-mini"))
    expect(page.locator("figcaption").nth(1)).to_have_text(re.compile("^bert-other"))
    page.click("#fv-tab-head")
    wait_until_drawn(page.locator(".fv-stage canvas").nth(1))
    save_shot(page, "playground-two")
    page.click("#fv-tab-difference")
    expect(page.locator(".fv-stage")).to_have_count(1)
    choose_model(page, "gpt2-mini")
    choose_model(page, "gpt2-other", 1)
    page.click("#pg-verb-generate")
    page.get_by_role("button", name="Write", exact=True).click()
    wait_until(
        page, "[...document.querySelectorAll('.pg-written')].every(e => e.querySelectorAll('.pg-token').length > 4)"
    )
    expect(page.locator(".pg-card")).to_have_count(2)
    save_shot(page, "playground-two-writing")


def test_the_language_switch_and_a_korean_sentence(open_playground, save_shot):
    page = open_playground().page
    page.wait_for_selector(".fv-stage")
    page.get_by_label("Language").select_option("ko")
    page.wait_for_selector(".fv-stage")
    expect(page.locator("#pg-verb-inspect")).to_have_text("들여다보기")
    expect(page.locator("textarea"), "an untouched example follows the language").to_have_value(re.compile("^강가에는"))
    page.locator("textarea").fill("나는 학교에 갔다 .")
    wait_until(page, "formersPlayground.viewer.document.sides.text.text.startsWith('나는 학교에')")
    save_shot(page, "playground-korean")
    for verb in VERBS:
        page.click(f"#pg-verb-{verb}")
        page.wait_for_timeout(400)
        save_shot(page, f"playground-korean-{verb}")
    page.reload()
    page.wait_for_selector("#pg-verb-inspect")
    expect(page.locator("html"), "the language is remembered").to_have_attribute("lang", "ko")


def test_a_korean_browser_gets_korean(open_playground):
    page = open_playground(language="ko-KR").page
    expect(page.locator("#pg-verb-family")).to_have_text("모델 계열")


def test_512_tokens(open_playground, save_shot):
    """Prints the time from the click to the picture, the stub's work included; it asserts none."""
    page = open_playground().page
    page.wait_for_selector(".fv-stage")
    page.locator("textarea").fill(" ".join((samples.ENGLISH.split() * 40)[:512]))
    with page.expect_response("**/inspect") as waiting:
        page.get_by_role("button", name="Show", exact=True).click()
    waiting.value.finished()
    started = time.perf_counter()
    wait_until(page, "formersPlayground.viewer.document.sides.text.tokens.length === 512")
    print(f"\n512 tokens: drawn {1000 * (time.perf_counter() - started):.0f} ms after the answer")
    page.click("#fv-tab-head")
    wait_until_drawn(page.locator(".fv-stage canvas"))
    save_shot(page, "playground-512")


def test_objectives_on_the_own_sentence(open_playground, save_shot):
    page = open_playground("#objectives").page
    page.wait_for_selector(".fv-stage")
    expect(page.locator(".fv-tabs"), "one view needs no tabs").to_be_hidden()
    wait_until(page, "formersPlayground.viewer.state.step >= 2")
    save_shot(page, "playground-objectives")
    with page.expect_request("**/objectives") as asked:
        page.get_by_role("button", name="Draw again").click()
    assert asked.value.post_data_json["seed"] == 1


def test_the_family_tree(open_playground, save_shot):
    page = open_playground("#family").page
    facts = page.locator(".pg-facts")
    expect(facts.locator("h2")).to_have_text("BERT")
    parents = {"textcnn": "convolutional network", "elmo": "LSTM", "vectors": "–", "gptj": "GPT-2"}
    for name in ("t5", "switch", "gptj", "elmo", "gnmt", "textcnn", "vectors", "xlnet"):
        page.locator(".fv-bar select").select_option(name)
        expect(page.locator(".fv-bar select")).to_have_value(name)
        wait_until_drawn(facts.locator("canvas"))
        if name in parents:
            expect(facts.locator("dt:has-text('Parent') + dd")).to_have_text(parents[name])
        save_shot(page, f"family-{name}")
    page.locator(".fv-bar select").select_option("t5")
    expect(facts.locator("table")).to_contain_text("60,506,624")
    expect(facts.locator(".fv-stage")).to_have_attribute("aria-label", re.compile("cross attention"))
    page.locator(".fv-stage").first.focus()
    page.keyboard.press("ArrowDown")
    expect(facts.locator("h2")).to_have_text("mT5")


def test_what_a_model_cannot_do_is_said(open_playground):
    page = open_playground("#generate").page
    expect(page.locator(".pg-error")).to_contain_text("bert-mini cannot do this")
    page.get_by_role("button", name="gpt2-other").click()
    expect(page.get_by_role("button", name="Write", exact=True)).to_be_enabled()
    expect(page.locator(".pg-models select").first).to_have_value("gpt2-other")


def test_an_emptied_text_has_no_picture(open_playground):
    page = open_playground().page
    page.wait_for_selector(".fv-stage")
    page.locator("textarea").fill("")
    expect(page.locator(".fv-stage")).to_have_count(0)
    expect(page.locator(".pg-status")).to_have_text("Type a text to see it at work.")
    page.locator("textarea").fill("The boat lay on the water .")
    wait_until(page, "formersPlayground.viewer?.document.sides.text.text.startsWith('The boat')")
    expect(page.locator(".pg-status")).to_have_text("")


def test_an_error_of_the_server_is_shown_with_its_remedy(open_playground):
    watch = open_playground()
    page = watch.page
    page.wait_for_selector(".fv-stage")
    page.locator("textarea").fill("please refuse this")
    page.wait_for_selector("[role=alert] .pg-error")
    expect(page.locator("[role=alert]")).to_contain_text("longer than the model reads")
    expect(page.locator("[role=alert]")).to_contain_text("take a shorter text")
    page.locator("textarea").fill("please accept this")
    wait_until(page, "!document.querySelector('[role=alert] .pg-error')")
    watch.errors.clear()  # the browser's own line about the status 400


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_verb_is_accessible(scheme, open_playground, check_access, save_shot):
    page = open_playground(scheme=scheme).page
    page.wait_for_selector(".fv-stage")
    for verb in VERBS:
        choose_model(page, "gpt2-mini" if verb == "generate" else "bert-mini")
        page.click(f"#pg-verb-{verb}")
        if verb == "generate":
            page.get_by_label("Tokens").fill("8")
            page.get_by_role("button", name="Write", exact=True).click()
            wait_until(page, "document.querySelectorAll('.pg-token').length === 8")
            page.locator(".pg-token").nth(1).click()
        if verb == "fill":
            page.locator(".pg-word").nth(1).click()
            page.wait_for_selector(".pg-choice")
        if verb == "family":
            page.wait_for_selector(".pg-facts h2")
        if verb in ("inspect", "objectives", "family"):
            wait_until_drawn(page.locator(".fv-stage canvas").first)
        check_access(page)
        save_shot(page, f"playground-{scheme}-{verb}")
