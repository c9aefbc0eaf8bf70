"""The view page in a browser: every view draws, by mouse and by keyboard, without a request, and can be saved."""

from __future__ import annotations

import html
import json
import re
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from playwright.sync_api import expect

from formers.inspection.page_file import render_page

from . import samples
from .helpers import wait_until, wait_until_drawn

DOCUMENTS = {
    "encoder": samples.make_encoder,
    "decoder": samples.make_decoder,
    "pair": samples.make_pair,
    "convolution": samples.make_convolution,
    "comparison": samples.make_comparison,
}
TABS = {
    "encoder": "overview head model token neuron prediction layers attribution heads states objectives positions",
    "decoder": "overview head model token prediction layers heads positions",
    "pair": "overview head model token prediction layers attribution heads routing",
    "convolution": "overview prediction ngrams mix",
    "comparison": "overview head model token neuron prediction layers attribution heads states objectives positions"
    " changes difference",
}


@pytest.fixture
def write_page(tmp_path):
    def write(document, language: str = "en") -> str:
        path = tmp_path / "view.html"
        path.write_text(render_page(document, language), encoding="utf-8")
        return path.as_uri()

    return write


def list_tabs(page) -> list[str]:
    page.locator("[role=tab]").first.wait_for()  # all of them come at once
    return [tab.get_attribute("id").removeprefix("fv-tab-") for tab in page.locator("[role=tab]").all()]


def open_tab(page, tab: str) -> None:
    page.click(f"#fv-tab-{tab}")
    expect(page.locator(f"#fv-tab-{tab}")).to_have_attribute("aria-selected", "true")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_view_draws_without_a_request(name, open_page, write_page, save_shot):
    address = write_page(DOCUMENTS[name]())
    watch = open_page(address)
    page = watch.page
    assert list_tabs(page) == TABS[name].split()
    for tab in list_tabs(page):
        open_tab(page, tab)
        for canvas in page.locator(".fv-stage canvas").all():
            wait_until_drawn(canvas)
        expect(page.locator(".fv-explain")).to_have_text(re.compile(".{31}"))
        save_shot(page, f"{name}-{tab}")
    assert watch.requests == [address]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["encoder", "pair", "comparison"])
def test_every_view_is_accessible(name, scheme, open_page, write_page, check_access, save_shot):
    page = open_page(write_page(DOCUMENTS[name]()), scheme=scheme).page
    page.locator("details summary").click()
    for tab in list_tabs(page):
        open_tab(page, tab)
        check_access(page)
    save_shot(page, f"{name}-{scheme}-last")


@pytest.mark.parametrize("name", ["encoder", "decoder", "convolution"])
def test_a_picture_that_fits_needs_no_scroll_bars(name, open_page, write_page):
    page = open_page(write_page(DOCUMENTS[name]()), width=1600, height=2400).page
    for tab in list_tabs(page):
        open_tab(page, tab)
        wait_until_drawn(page.locator(".fv-stage canvas"))
        down, across = page.locator(".fv-stage").evaluate(
            "one => [one.scrollHeight - one.clientHeight, one.scrollWidth - one.clientWidth]"
        )
        assert down == 0, tab
        assert across == 0 or tab == "layers", tab  # whose cells hold a word each


def test_packed_arrays_have_the_values_that_python_packed(open_page, write_page):
    page = open_page(write_page(samples.make_encoder())).page
    rng = np.random.default_rng(0)
    values = rng.dirichlet([0.3] * 40, (2, 3, 5)).astype(np.float32)
    read = """([spec, layer, head]) => {
      const {PackedArray} = formersModules["arrays.js"];
      const array = new PackedArray(spec);
      return [Array.from(array.readMatrix(layer, head)), Array.from(array.readQuery(layer, head, 3))];
    }"""
    # In an inline script, top-level names of a classic script are visible to evaluate().
    for spec, tolerance in ((samples.pack_whole(values), 2e-3), (samples.pack_whole(values, 2), 5e-3)):
        matrix, row = page.evaluate(read, [spec, 1, 2])
        assert np.allclose(np.array(matrix).reshape(5, 40), values[1, 2], atol=tolerance)
        assert np.allclose(row, values[1, 2, 3], atol=tolerance)
    floats, _ = page.evaluate(read, [samples.pack_floats(values), 1, 2])
    assert np.array_equal(np.array(floats, np.float32).reshape(5, 40), values[1, 2])
    matrix, row = page.evaluate(read, [samples.pack_top(values, 6), 0, -1])
    kept = np.where(values >= np.sort(values, -1)[..., -6:-5], values, 0)[0].mean(0)
    assert np.allclose(np.array(matrix).reshape(5, 40), kept, atol=5e-3)
    assert np.allclose(row, kept[3], atol=5e-3)


def test_hovering_and_clicking_a_head(open_page, write_page, save_shot):
    page = open_page(write_page(samples.make_encoder())).page
    open_tab(page, "model")
    wait_until_drawn(page.locator(".fv-stage canvas"))
    box = page.locator(".fv-stage canvas").bounding_box()
    page.mouse.move(box["x"] + 64 + 130, box["y"] + 30 + 130)
    tip = page.locator(".fv-tip")
    expect(tip).to_be_visible()
    expect(tip).to_contain_text("layer 2, head 2")
    expect(tip).to_contain_text("bits")
    save_shot(page, "hover-head")
    page.mouse.click(box["x"] + 64 + 130, box["y"] + 30 + 130)
    expect(page.locator("#fv-tab-head")).to_have_attribute("aria-selected", "true")
    assert page.evaluate("[formersViewer.state.layer, formersViewer.state.head]") == [1, 1]
    box = page.locator(".fv-stage canvas").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    expect(tip).to_contain_text("→")


def test_the_keyboard_alone(open_page, write_page):
    page = open_page(write_page(samples.make_encoder())).page
    page.locator("#fv-tab-overview").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#fv-tab-head")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#fv-tab-head")).to_be_focused()
    tabs = page.locator("[role=tab]").all()
    assert [tab.get_attribute("tabindex") for tab in tabs].count("0") == 1
    page.locator(".fv-stage").focus()
    before = page.evaluate("({...formersViewer.state})")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    wait_until(page, f"formersViewer.state.token === {before['token'] + 1}")
    after = page.evaluate("({...formersViewer.state})")
    steps = [after[key] - before[key] for key in ("layer", "head", "token")]
    assert steps == [1, 1, 1]
    expect(page.locator(".fv-live")).to_contain_text("layer 2, head 1")
    expect(page.locator(".fv-stage")).to_have_attribute("aria-label", re.compile("layer 2, head 1"))


def test_the_table_has_the_current_head(open_page, write_page):
    document = samples.make_encoder()
    page = open_page(write_page(document)).page
    open_tab(page, "head")
    page.locator("details summary").click()
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(len(document["sides"]["text"]["tokens"]))
    expect(rows.nth(6)).to_contain_text("river")
    head = page.locator(".fv-controls select").nth(2)
    before = rows.nth(6).inner_text()
    head.select_option(index=4)
    expect(page.locator("caption")).to_contain_text("head 4")
    assert rows.nth(6).inner_text() != before


def test_pictures_and_data_are_saved(open_page, write_page):
    document = samples.make_encoder(samples.KOREAN)
    watch = open_page(write_page(document))
    page = watch.page
    for tab in ("head", "states", "attribution"):
        open_tab(page, tab)
        found = {}
        for kind in ("SVG", "PNG", "JSON"):
            with page.expect_download() as waiting:
                page.get_by_role("button", name=f"Save as {kind}").click()
            found[kind] = Path(waiting.value.path()).read_bytes()
            assert waiting.value.suggested_filename == f"bert-mini-{tab}.{kind.lower()}"
        assert found["PNG"].startswith(b"\x89PNG")
        assert len(found["PNG"]) > 5000
        root = ElementTree.fromstring(found["SVG"])
        words = {node.text for node in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"한국어", "형태소"} <= words
        assert json.loads(found["JSON"]) == document
    assert len([url for url in watch.requests if url.startswith("http")]) == 0


def test_korean_words_and_a_korean_sentence(open_page, write_page, save_shot):
    page = open_page(write_page(samples.make_encoder(samples.KOREAN))).page
    english = page.locator(".fv-explain").inner_text()
    page.get_by_label("Language").select_option("ko")
    expect(page.locator(".fv-explain")).to_contain_text("토큰")
    expect(page.locator(".fv-explain")).not_to_have_text(english)
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    for tab in list_tabs(page):
        open_tab(page, tab)
        wait_until_drawn(page.locator(".fv-stage canvas"))
        save_shot(page, f"korean-{tab}")
    page.get_by_label("언어").select_option("en")
    expect(page.locator("#fv-tab-head")).to_have_text("Head")


def test_the_theme_switch(open_page, write_page, save_shot):
    page = open_page(write_page(samples.make_encoder()), scheme="light").page
    body = page.locator("body")
    expect(body).to_have_css("background-color", "rgb(255, 255, 255)")
    page.get_by_label("Theme").select_option("dark")
    expect(body).to_have_css("background-color", "rgb(21, 26, 34)")
    open_tab(page, "head")
    wait_until(page, "formersViewer.palette.theme === 'dark'")
    save_shot(page, "dark-head")
    page.get_by_label("Theme").select_option("light")
    wait_until(page, "formersViewer.palette.theme === 'light'")


def test_objectives_play_and_step(open_page, write_page):
    page = open_page(write_page(samples.make_encoder())).page
    open_tab(page, "objectives")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    wait_until(page, "formersViewer.state.step >= 1")  # it plays; on a slow machine it may be further already
    page.evaluate("formersViewer.update({step: 1, isPlaying: false})")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.get_by_role("button", name="Next step").click()
    wait_until(page, "formersViewer.state.step === 2")
    expect(page.get_by_role("button", name="Next step")).to_be_disabled()
    page.get_by_role("button", name="Previous step").click()
    wait_until(page, "formersViewer.state.step === 1")
    assert page.evaluate("formersViewer.state.isPlaying") is False


def test_512_tokens_of_144_heads(open_page, write_page, save_shot):
    """Prints the times; it asserts none."""
    document = samples.make_long()
    address = write_page(document)
    print(f"\npage: {len(render_page(document)) / 1e6:.2f} MB")
    started = time.perf_counter()
    page = open_page(address).page
    wait_until(page, "window.formersViewer?.shownStages")
    print(f"opened in {time.perf_counter() - started:.2f} s")
    measure = """(patch) => {
      const started = performance.now();
      formersViewer.update(patch);
      formersViewer.shownStages.list[0].stage.canvas.getContext("2d").getImageData(0, 0, 1, 1);
      return performance.now() - started;
    }"""
    views = {view: page.evaluate(measure, {"view": view}) for view in list_tabs(page)}
    print("first draw of a view, ms:", {name: round(ms, 1) for name, ms in views.items()})
    save_shot(page, "long-last")
    for view in ("overview", "head", "token", "model"):
        page.evaluate(measure, {"view": view})
        times = [page.evaluate(measure, {"layer": layer, "head": layer % 12}) for layer in (3, 7, 11, 1, 5)]
        print(f"{view}: a layer switched in {np.median(times):.1f} ms (median of 5, most {max(times):.1f})")
        save_shot(page, f"long-{view}")
    page.evaluate(measure, {"view": "head", "form": "lines", "zoom": 0})
    scroll = """async () => {
      const {frame} = formersViewer.shownStages.list[0].stage;
      let slowest = 0;
      for (let i = 0; i < 20; i++) {
        frame.scrollTop = i * 300;
        const started = performance.now();
        formersViewer.shownStages.list[0].stage.draw();
        slowest = Math.max(slowest, performance.now() - started);
      }
      return slowest;
    }"""
    print(f"lines: slowest of 20 frames while scrolling {page.evaluate(scroll):.1f} ms")
    save_shot(page, "long-lines")
    expect(page.locator("canvas")).to_have_count(1)
    assert page.evaluate("document.querySelectorAll('*').length") < 2500


def test_a_hostile_text_stays_text(open_page, write_page):
    hostile = "</script><script>window.broken=1</script> <img src=http://127.0.0.1:9/x onerror=window.broken=1>"
    document = samples.make_encoder(hostile)
    document["model"]["name"] = "<b>name</b>"
    watch = open_page(write_page(document))
    for tab in list_tabs(watch.page):
        open_tab(watch.page, tab)
    watch.page.locator("details summary").click()
    assert watch.page.evaluate("window.broken") is None
    expect(watch.page.locator("h1")).to_have_text("<b>name</b>")
    assert len(watch.requests) == 1


def test_the_policy_forbids_every_request(open_page, write_page):
    watch = open_page(write_page(samples.make_encoder()))
    answer = watch.page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'sent', (error) => error.name)")
    assert answer == "TypeError"
    assert any("Content Security Policy" in error for error in watch.errors)
    watch.errors.clear()


def test_the_page_in_a_notebook(open_page, tmp_path):
    """A notebook shows the page in a frame that may run scripts and nothing else."""
    frame = (
        f'<iframe sandbox="allow-scripts allow-downloads" srcdoc="{html.escape(render_page(samples.make_encoder()))}"'
    )
    (tmp_path / "notebook.html").write_text(f"{frame} style='width:1000px;height:700px'></iframe>", encoding="utf-8")
    watch = open_page((tmp_path / "notebook.html").as_uri())
    inside = watch.page.frame_locator("iframe")
    inside.locator("#fv-tab-head").click()
    wait_until_drawn(inside.locator(".fv-stage canvas"))
    assert all(not url.startswith("http") for url in watch.requests)


@pytest.mark.parametrize("width", [390, 820])
def test_narrow_screens_do_not_scroll_sideways(width, open_page, write_page, save_shot):
    page = open_page(write_page(samples.make_encoder()), width=width, height=800).page
    for tab in list_tabs(page):
        open_tab(page, tab)
        wait_until_drawn(page.locator(".fv-stage canvas"))
        wait_until(page, f"document.documentElement.scrollWidth <= {width}")
        save_shot(page, f"narrow-{width}-{tab}")
