"""The view document of every family: small, complete JSON, a page without network, pictures, readable tokens."""

from __future__ import annotations

import base64
import json
import re
import struct
import unicodedata
import zlib
from xml.etree import ElementTree

import pytest
import torch

import formers
from formers import Error
from formers.inspection.api import DEFAULT_VIEWS, VIEWS
from formers.inspection.document import draw_png, encode_floats, encode_weights
from formers.inspection.sides import describe_written, encode_framed, encode_inputs, find_grapheme_starts
from formers.registry import FAMILIES, train_tokenizer
from tests.small_models import get_verb_model as model


def decode_array(array):
    """Decode an array of a document; of a row of which only the strongest are there, the others are 0."""
    shape = array["shape"]
    data = bytearray(base64.b64decode(array["data"]))
    if array["encoding"] == "f32":
        return torch.frombuffer(data, dtype=torch.float32).reshape(shape) if data else torch.zeros(shape)
    values = torch.frombuffer(data, dtype=torch.uint8).float() if data else torch.zeros(0)
    values = (values / 255) ** array["power"] * array["scale"]
    if array["encoding"] == "u8":
        return values.reshape(shape)
    places = torch.frombuffer(bytearray(base64.b64decode(array["index"])), dtype=torch.uint16).long()
    rows = (*shape[:-1], array["k"])
    return torch.zeros(shape).scatter(-1, places.reshape(rows), values.reshape(rows))


TEXT = "the cat sat on the mat"
PARTS = {"format", "model", "note", "sides", "attention", "neuron", "prediction", "attribution", "heads", "states",
         "objectives", "extra"}  # fmt: skip
ALL_HEADS = [(name, member.definition.pretraining_head) for name, member in FAMILIES.items()]


@pytest.mark.parametrize(("name", "head"), ALL_HEADS)
def test_the_document_of_every_family(name, head):
    f = model(name, head)
    view = f.inspect(TEXT, views="all")
    document = json.loads(json.dumps(view.to_dict(), allow_nan=False))
    assert set(document) <= PARTS
    assert document["format"] == 1
    assert document["model"]["family"] == name
    kinds = ("encoder", "decoder", "encoder-decoder", "recurrent", "convolution", "vectors")
    assert document["model"]["kind"] in kinds
    sizes = {side: len(one["tokens"]) for side, one in document["sides"].items()}
    for kind, one in document.get("attention", {}).items():
        shape = [one["layers"], one["heads"], sizes[one["queries"]], sizes[one["keys"]]]
        assert one["weights"]["shape"] == shape
        weights = view.attention[kind].weights
        assert (decode_array(one["weights"]) - weights).abs().max() <= 0.005
        if one["value_norms"] is not None:
            norms = decode_array(one["value_norms"])
            assert (norms - view.attention[kind].value_norms).abs().max() <= 0.01 * norms.max()
    for key in ("prediction", "attribution", "states"):
        sides = [document[key]["side"]] if "side" in document.get(key, {}) else []
        assert set(sides) <= set(sizes)
    if "prediction" in document and document["prediction"]["method"] != "labels":
        made = document["prediction"]
        assert len(made["positions"]) == len(made["targets"]) == len(made["surprisal"]) == len(made["top"])
    assert repr(view).startswith(f"View({name}: ")


def test_only_what_is_asked_for():
    f = model("gpt2", "lm")
    assert set(f.inspect(TEXT, views="states").to_dict()) == {"format", "model", "note", "sides", "states"}
    assert "neuron" in f.inspect(TEXT, views=["neuron"]).to_dict()
    assert set(DEFAULT_VIEWS) < set(VIEWS)
    for how, word in (
        ({"views": "attentions"}, "no view 'attentions'"), ({"kind": "cross"}, "no attention 'cross'"),
        ({"layer": 9}, "no layer 9"), ({"head": -1}, "no head -1"), ({"objectives": "nothing"}, "not available"),
    ):  # fmt: skip
        with pytest.raises(Error, match=word):
            f.inspect(TEXT, **how)
    for text, word in (("", "the text is empty"), (3, "text must be a string"), (None, "text must be a string")):
        with pytest.raises(Error, match=word):
            f.inspect(text)
    with pytest.raises(Error, match="elmo reads one text"):
        model("elmo", "lm").inspect(TEXT, "x")


@pytest.fixture(scope="module")
def base_shape():
    """512 tokens through 12 layers of 12 heads, as BERT-base has them."""
    tokenizer = train_tokenizer("wordpiece", [TEXT] * 3, 60)
    f = formers.build("bert", head="mlm", vocab=60, context=512, dim=48, layers=12, heads=12, ff=48)
    f.tokenizer = tokenizer
    words = TEXT.split() * 90
    view = f.inspect(" ".join(words[:510]), layer=3, head=7, views="default,layers,neuron")
    assert len(view.sides["text"].tokens) == 512
    return view


def test_a_long_text_stays_small(base_shape, tmp_path):
    path = base_shape.save(tmp_path / "view.html")
    assert path.stat().st_size <= 4_600_000  # words are shorter here than a real model's, which may take 5 MB
    assert [len(row) for row in base_shape.prediction.layers[3].top] == [1] * 510
    one = base_shape.to_dict()["attention"]["encoder"]
    assert one["weights"]["encoding"] == "top"
    assert one["weights"]["k"] >= 8
    strongest = decode_array(one["weights"])
    real = base_shape.attention["encoder"].weights
    at = real.argmax(-1, keepdim=True)
    assert (strongest.gather(-1, at) - real.gather(-1, at)).abs().max() <= 0.01
    assert one["whole"]["layer"] == 3
    assert one["whole"]["head"] == 7
    assert (decode_array(one["whole"]["weights"]) - real[3, 7]).abs().max() <= 0.005


def test_the_page_needs_no_network(base_shape):
    page = model("bert", "mlm").inspect(TEXT + " </script><script>alert(1)</script>").to_html()
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert not re.findall(r"""@import|url\(\s*["']?(?:https?:)?//""", page)
    assert "alert(1)</script>" not in page


def test_arrays_survive():
    x = torch.rand(3, 4, 50)
    full = decode_array(encode_weights(x))
    assert (full - x).abs().max() <= 0.005
    few = encode_weights(x, 12 * 4 * 10)
    assert few["k"] == 10
    assert (decode_array(few) > 0).sum(-1).max() <= 10
    values = torch.randn(5, 7)
    assert torch.equal(decode_array(encode_floats(values)), values)
    assert decode_array(encode_weights(torch.zeros(2, 3))).sum() == 0


def test_pictures(tmp_path):
    f = model("t5", "lm")
    view = f.inspect(TEXT, "the mat", views="attention")
    drawn = view.save(tmp_path / "head.svg", kind="cross", layer=1, head=2).read_text(encoding="utf-8")
    tree = ElementTree.fromstring(drawn)
    labels = [one.text for one in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert len(labels) == len(view.sides["source"].tokens) + len(view.sides["target"].tokens)
    assert not re.findall(r"""(?:src|href)=|url\(""", drawn)
    data = view.save(tmp_path / "head.png", kind="cross", layer=1, head=2).read_bytes()
    weights = view.attention["cross"].weights[1, 2]
    assert read_png(data) == (8 * weights.shape[1], 8 * weights.shape[0])
    assert json.loads(view.save(tmp_path / "v.json").read_text(encoding="utf-8")) == json.loads(
        json.dumps(view.to_dict())
    )
    with pytest.raises(Error, match="not written as .pdf"):
        view.save(tmp_path / "view.pdf")
    with pytest.raises(Error, match="no attention to draw"):
        model("textcnn", "classify").inspect(TEXT).save(tmp_path / "x.svg")
    both = f.inspect(TEXT, "the mat", views="states", compare="the log")
    with pytest.raises(Error, match="not written as .svg"):
        both.save(tmp_path / "x.svg")
    assert "compare" in json.loads(both.save(tmp_path / "both.json").read_text(encoding="utf-8"))


def read_png(data):
    """The width and height of a PNG, whose checksums and pixels must fit."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, pixels, size = 8, b"", (0, 0)
    while at < len(data):
        (length,), name = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length]) == (zlib.crc32(name + body),)
        size = struct.unpack(">II", body[:8]) if name == b"IHDR" else size
        pixels += body if name == b"IDAT" else b""
        at += 12 + length
    assert len(zlib.decompress(pixels)) == size[1] * (1 + 3 * size[0])
    return size


def test_darker_is_stronger():
    rows = zlib.decompress(draw_png(torch.tensor([[0.0, 1.0]]), cell=1).split(b"IDAT")[1].split(b"IEND")[0][:-8])
    assert rows[1:4] == b"\xff\xff\xff"
    assert sum(rows[4:7]) < 300


EMOJI = "안녕하세요 👩‍👩‍👧 🇰🇷 ❤️ 좋아요 don't 👍🏽!"


@pytest.mark.parametrize("name", [n for n in FAMILIES if n not in ("vectors", "elmo")])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.filterwarnings("ignore")
def test_korean_and_emoji_are_whole(name, form, monkeypatch):
    """Every visible character stands in one token, and together they are the text."""
    monkeypatch.setattr("formers.inspection.sides.find_room", lambda former: None)  # the small models read 40 tokens
    f = model(name, FAMILIES[name].definition.pretraining_head)
    text = unicodedata.normalize("NFC", EMOJI)
    side = encode_framed(f, f.tokenizer, unicodedata.normalize(form, EMOJI), None)
    assert side.text == text
    shown = [token.text for token in side.tokens if not token.is_special]
    letters = {side.text[a:b] for a, b in spans_of(side.text)}
    for word in shown:
        assert "�" not in word
        for a, b in spans_of(word):
            assert word[a:b] in letters or word[a:b] in "▁", (word, word[a:b])
    joined = "".join(shown).replace("▁", "")
    want = "".join(side.text.split())
    assert all(letter in joined for letter in want if not letter.isspace())
    for token in side.tokens:
        assert token.is_joined == (token.text == "" and not token.is_special)


def spans_of(text):
    starts = find_grapheme_starts(text)
    return list(zip(starts, [*starts[1:], len(text)], strict=bool(starts)))


def test_graphemes():
    assert [EMOJI[a:b] for a, b in spans_of(EMOJI)] == [
        *"안녕하세요 ", "👩‍👩‍👧", " ", "🇰🇷", " ", "❤️", *" 좋아요 don't ", "👍🏽", "!",
    ]  # fmt: skip
    flags = "🇰🇷🇺🇸"
    assert [flags[a:b] for a, b in spans_of(flags)] == ["🇰🇷", "🇺🇸"]
    jamo = unicodedata.normalize("NFD", "한글")
    assert len(spans_of(jamo)) == 2
    assert find_grapheme_starts("") == []


def test_bytes_are_merged_into_the_first_piece():
    tokenizer = train_tokenizer("bpe", ["the cat"] * 3, 270)
    f = formers.build("gpt2", vocab=300, dim=8, layers=1, heads=2)
    f.tokenizer = tokenizer
    tokens = encode_inputs(f, "한a").sides["text"].tokens
    words = [token.text for token in tokens if not token.is_special]
    assert words == ["한", "", "", "a"]
    assert [token.is_joined for token in tokens if not token.is_special] == [False, True, True, False]
    ids = tokenizer.encode("한a", special=False)
    text, _, written = describe_written(tokenizer, ids)
    assert text == "한a"
    assert "".join(token.text for token in written) == "한a"


def test_blanks_and_special_spellings():
    f = model("bert", "mlm")
    side = encode_inputs(f, "the ___ sat").sides["text"]
    assert [token.piece for token in side.tokens][1:3] == ["the", "[MASK]"]
    plain = encode_inputs(model("bert", "classify"), "the [MASK] sat").sides["text"]
    assert "[MASK]" not in [token.piece for token in plain.tokens]


def test_notebook():
    view = model("bert", "mlm").inspect(TEXT)
    shown = view._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "allow-same-origin" not in shown
    pytest.importorskip("anywidget")
    widget = view.make_widget(400)
    assert widget.page == view.to_html()
    assert widget.height == 400


def test_a_widget_without_its_library(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(Error, match=r'needs anywidget. pip install "formers\[notebook\]"'):
        model("bert", "mlm").inspect(TEXT, views="states").make_widget()
