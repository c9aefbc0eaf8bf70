"""Published tokenizer files: the same ids as their references, and nothing a file says is believed."""

from __future__ import annotations

import functools
import io
import json
import tarfile
import unicodedata

import pytest
import tokenizers
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import formers
from formers import Error
from formers.cli.main import main
from formers.data.readers import load_bundled_corpus
from formers.interop.tokenizer_files import load_tokenizer, save_tokenizer
from formers.models import mbart
from formers.registry import list_tokenizer_styles, train_tokenizer
from formers.text import published_files
from formers.text.tokenizer import DecodeStream, Tokenizer
from tests.text.sentencepiece_messages import SMALL_MODEL, encode_message, encode_piece

pytestmark = [
    pytest.mark.filterwarnings("ignore:decomposed Hangul"),
    pytest.mark.filterwarnings("ignore:this tokenizer takes Hangul"),
]
STYLES = list_tokenizer_styles()
TEXTS = [
    "Hello, World! It's 2024.", "안녕하세요 ㅋㅋ 현행법을 개정", unicodedata.normalize("NFD", "안녕하세요 현행법"),
    "naïve café — 😀👍🏽👨\u200d👩\u200d👧", "  two  spaces\tand\na line \r\n", "a\x00b\x01c\x7f\x85\u200bd\ufeff",
    "½\u0301x ﬁ ｆｕｌｌ Ⅻ ㈱", "日本語 テスト ｶﾞ 中文", "e\u0301\u0323 o\u0302", "``quoted'' 1,000 ▁ ▁▁a", "", " ",
    "ﷺ" * 3, "I'll we've DON'T", "ΟΔΟΣ İstanbul ß",
]  # fmt: skip


def test_vocab_txt():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "The"]
    text = "\n".join(pieces) + "\n"
    made = published_files.from_vocab_txt(text, {"do_lower_case": True}, STYLES)
    assert made.encode("The cats") == [2, 5, 6, 7, 3]
    assert made.notes == []
    cased = published_files.from_vocab_txt(text, {}, STYLES)  # there is a capital in it
    assert cased.encode("The cats") == [2, 8, 6, 7, 3]
    assert "there are capitals in the vocabulary" in cased.notes[0]
    plain = published_files.from_vocab_txt(text.replace("The", "[unused1]\n<S>"), {}, STYLES)
    assert plain.encode("The cats") == [2, 5, 6, 7, 3]
    assert "there are no capitals in the vocabulary" in plain.notes[0]
    assert made.encode("the", "cat") == [2, 5, 3, 6, 3]
    assert made.id("mask") == 4
    with pytest.raises(Error, match="is not in the vocabulary"):
        published_files.from_vocab_txt("the\ncat", {}, STYLES)


def test_a_published_vocab_txt_loses_spaces_as_the_reference_does():
    """Only the space before . , ! ? is taken out again; BERT's format does not say where else there was none."""
    vocab = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", *"().,!?:'3"])
    made = published_files.from_vocab_txt(vocab, {"do_lower_case": False}, STYLES)
    for text, back in (("a, b. a! b?", "a, b. a! b?"), ("(a): a'b", "( a ) : a ' b"), ("3.3 a , b", "3. 3 a, b")):
        assert made.decode(made.encode(text)) == back


def test_vocab_json_and_merges():
    vocab = {c: i for i, c in enumerate(["a", "b", "Ġ", "ab", "<|endoftext|>"])}
    made = published_files.from_merges(json.dumps(vocab), "#version: 0.2\na b\n", {}, STYLES)
    assert made.encode("ab ab") == [3, 2, 3]
    assert made.id("eos") == 4
    roberta = {c: i for i, c in enumerate(["<s>", "<pad>", "</s>", "<unk>", "a", "b", "Ġ", "ab", "<mask>"])}
    made = published_files.from_merges(json.dumps(roberta), "a b", {"add_prefix_space": False}, STYLES)
    assert made.encode("ab") == [0, 7, 2]
    assert made.encode("a", "b") == [0, 4, 2, 2, 5, 2]
    assert made.id("mask") == 8
    for vocab, merges in (("[]", "a b"), ('{"a": 0}', "a b"), ("{", "")):
        with pytest.raises(Error, match="the tokenizer failed|JSON"):
            published_files.from_merges(vocab, merges, {}, STYLES)


def test_roles():
    options = {"pad_token": {"content": "<p>"}, "eos_token": "<e>", "unk_token": None}
    special = published_files.resolve_special_tokens(options, {"unk": "u"})
    assert special == {"unk": "u", "pad": "<p>", "eos": "<e>"}
    wordpiece, bpe = (train_tokenizer(kind, ["the cat"] * 3, 300).json_text for kind in ("wordpiece", "bpe"))
    assert published_files.guess_special_tokens(wordpiece, STYLES)["mask"] == "[MASK]"
    assert published_files.guess_special_tokens(bpe, STYLES) == {
        "bos": "<|endoftext|>",
        "eos": "<|endoftext|>",
        "unk": "<|endoftext|>",
    }
    assert published_files.guess_special_tokens("no json", STYLES) == {}


@functools.cache
def read_archive(where):
    with tarfile.open(where / "tokenizers.tar.xz") as archive:
        return {m.name.removeprefix("./"): archive.extractfile(m).read() for m in archive.getmembers() if m.isfile()}


def parse_merges(merges):
    return [tuple(line.split(" ")) for line in merges.split("\n") if line and not line.startswith("#version")]


@functools.cache
def load_couple(name, where):
    """Our tokenizer and its reference as a function from text to ids."""
    transformers = pytest.importorskip("transformers")
    has = {k.split("/")[1]: v for k, v in read_archive(where).items() if k.split("/")[0] == name}
    if name in ("t5", "albert"):
        ours = published_files.from_spm(has["spiece.model"], {}, STYLES)
        model = published_files.parse_model(has["spiece.model"])
        if name == "albert":
            vocab = [(p, s) for p, s, _ in model.pieces]
            theirs = transformers.AlbertTokenizer(vocab=vocab, _spm_precompiled_charsmap=model.charsmap)
            return ours, lambda t: theirs(t)["input_ids"]
        peer = pytest.importorskip("sentencepiece").SentencePieceProcessor(model_proto=has["spiece.model"])
        return ours, lambda t: [*peer.encode(t), 1]
    if name == "gpt-neox-20b":
        text = has["tokenizer.json"].decode()
        rust = tokenizers.Tokenizer.from_str(text)
        return Tokenizer(text, published_files.guess_special_tokens(text, STYLES)), lambda t: rust.encode(t).ids
    if "vocab.txt" in has:
        lower = name in ("bert-base-uncased", "ernie-3.0-base-zh")
        text = has["vocab.txt"].decode()
        rows = [line.split("\t")[0] for line in text.split("\n")]
        vocab = {p: i for i, p in enumerate(rows if rows[-1] else rows[:-1])}
        theirs = transformers.BertTokenizer(vocab=vocab, do_lower_case=lower)
        return published_files.from_vocab_txt(text, {"do_lower_case": lower}, STYLES), lambda t: theirs(t)["input_ids"]
    kind = transformers.OpenAIGPTTokenizer if name == "openai-gpt" else transformers.GPT2Tokenizer
    names = ("encoder.json", "vocab.bpe") if name == "gpt2 as first released" else ("vocab.json", "merges.txt")
    vocab, merges = (has[n].decode() for n in names)
    theirs = kind(vocab=json.loads(vocab), merges=parse_merges(merges))
    return published_files.from_merges(vocab, merges, {}, STYLES), lambda t: theirs(t)["input_ids"]


NAMES = (
    "bert-base-uncased", "bert-base-cased", "koelectra", "ernie-3.0-base-zh", "openai-gpt", "gpt2", "gpt-neox-20b",
    "t5", "albert",
)  # fmt: skip


def is_same_cut(name, ours, theirs, text):
    """Equal ids; or, for T5, two ways to cut the text with the same score, where SentencePiece's own choice hangs on
    the last bit of a 32-bit sum (′′ + ′ or ′ + ′′)."""
    mine, want = ours.encode(text), theirs(text)
    if mine != want and name == "t5":
        score = dict(enumerate(s for _, s, _ in json_scores(ours)))
        return abs(sum(score[i] for i in mine) - sum(score[i] for i in want)) < 1e-4 and len(mine) == len(want)
    return mine == want


@functools.cache
def json_scores(made):
    return [(p, s, 0) for p, s in json.loads(made.json_text)["model"]["vocab"]]


@pytest.mark.parametrize("name", NAMES)
def test_the_same_ids_as_the_reference(name, data):
    ours, theirs = load_couple(name, data)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text), (name, text)
    assert ours.encode_batch(TEXTS) == [ours.encode(t) for t in TEXTS]


ALPHABETS = st.one_of(
    st.text(max_size=30),
    st.text(st.sampled_from("aB ,.'0é한국ᄒ\u1161\u11ab\u0301ㅋ▁\n\t\u3000½ﬁ😀\u200d"), max_size=30),
    st.text(st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3) | st.sampled_from(" .,"), max_size=30),
)


def check_random(name, where, count):
    ours, theirs = load_couple(name, where)
    seen = []

    @settings(max_examples=count, suppress_health_check=list(HealthCheck))
    @given(ALPHABETS)
    def run(text):
        text = text.encode("utf-8", "ignore").decode()
        for token in ours.added_tokens if name == "t5" else ():  # SentencePiece alone knows no special tokens in a text
            text = text.replace(token, "")
        seen.append(text)
        assert is_same_cut(name, ours, theirs, text), (name, text)

    run()
    return len(seen)


@pytest.mark.parametrize("name", NAMES)
def test_random_strings(name, data):
    assert check_random(name, data, 40) >= 40


@pytest.mark.full
def test_random_strings_in_full(data):
    total = sum(check_random(name, data, 12_000) for name in NAMES)
    print(f"published tokenizers: {total:,} random strings, 0 differences")
    assert total >= 100_000


# What a bare vocab.txt was made with: whether text is lower-cased, and whether accents are stripped.
FLAGS = {
    "bert-base-uncased": (True, True), "bert-base-cased": (False, False), "koelectra": (False, False),
    "ernie-3.0-base-zh": (True, True),
}  # fmt: skip


@pytest.mark.parametrize("lower", [None, False, True])
@pytest.mark.parametrize("name", FLAGS)
def test_a_bare_vocabulary_says_how_text_was_read(name, lower, data):
    """Capitals stay where the vocabulary has some, and Hangul is never taken apart where it has syllables; what a
    tokenizer_config.json says about case comes first."""
    transformers = pytest.importorskip("transformers")
    cased, strip = FLAGS[name]
    text = read_archive(data)[f"{name}/vocab.txt"].decode()
    rows = [line.split("\t")[0] for line in text.split("\n")]
    vocab = {p: i for i, p in enumerate(rows if rows[-1] else rows[:-1])}
    flags = {"do_lower_case": cased if lower is None else lower}
    flags["strip_accents"] = strip if lower is None else lower and name != "koelectra"
    theirs = transformers.BertTokenizer(vocab=vocab, **flags)
    ours = published_files.from_vocab_txt(text, {} if lower is None else {"do_lower_case": lower}, STYLES)
    for line in [*TEXTS, "영화 정말 재미있어요. KBS 드라마", "Ñandú ÀÉ Straße"]:
        assert ours.encode(line) == theirs(line)["input_ids"], (name, lower, line)
    if name == "koelectra":
        assert ours.id("unk") not in ours.encode("영화 정말 재미있어요.")


def test_a_lower_case_vocabulary_of_syllables_keeps_them():
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "영화", "##는", "kbs", "cafe"]
    made = published_files.from_vocab_txt("\n".join(pieces), {}, STYLES)
    assert made.encode("영화는 KBS", special=False) == [5, 6, 7]
    assert published_files.from_vocab_txt("\n".join(pieces), {"do_lower_case": True}, STYLES).encode(
        "영화는 KBS", special=False
    ) == [
        5,
        6,
        7,
    ]
    silent = published_files.from_vocab_txt("\n".join(pieces), {"do_lower_case": True, "strip_accents": None}, STYLES)
    assert silent.encode("영화는 KBS", special=False) == [5, 6, 7]
    apart = published_files.from_vocab_txt(
        "\n".join(pieces), {"do_lower_case": True, "strip_accents": True}, STYLES
    )  # said is said
    assert apart.encode("café", special=False) == [8]


def test_both_forms_of_gpt2(data):
    has = read_archive(data)
    one = published_files.from_merges(has["gpt2/vocab.json"].decode(), has["gpt2/merges.txt"].decode(), {}, STYLES)
    two = published_files.from_merges(has["gpt2/encoder.json"].decode(), has["gpt2/vocab.bpe"].decode(), {}, STYLES)
    assert all(one.encode(t) == two.encode(t) for t in TEXTS)
    assert all(one.decode(one.encode(t)) == t for t in TEXTS)


def test_t5_and_albert_marks(data):
    t5 = published_files.from_spm(read_archive(data)["t5/spiece.model"], {}, STYLES)
    assert len(t5) == 32100
    assert t5.encode("a <extra_id_0> b <extra_id_99>")[-2:] == [32000, 1]
    assert t5.backend.token_to_id("<extra_id_0>") == 32099
    assert (t5.id("pad"), t5.id("eos"), t5.id("unk")) == (0, 1, 2)
    assert t5.decode(t5.encode("Hello, you  there")) == "Hello, you there"
    albert = published_files.from_spm(read_archive(data)["albert/spiece.model"], {}, STYLES)
    assert [albert.id(r) for r in ("pad", "unk", "cls", "sep", "mask")] == [0, 1, 2, 3, 4]
    assert albert.encode("Hello", "You") == [
        2,
        *albert.encode("hello", special=False),
        3,
        *albert.encode("you", special=False),
        3,
    ]
    cased = published_files.from_spm(
        read_archive(data)["albert/spiece.model"], {"do_lower_case": False, "keep_accents": True}, STYLES
    )
    assert cased.encode("Café") != albert.encode("Café")


def test_sentencepiece_text_leads_back_to_the_original(data):
    made = published_files.from_spm(read_archive(data)["t5/spiece.model"], {}, STYLES)
    text = "Hello ½\u0301x " + unicodedata.normalize("NFD", "é") + " end"
    ids, offsets = made.encode_with_offsets(text)
    assert ids == made.encode(text)
    assert text[offsets[0][0] : offsets[0][1]].strip() == "Hello"
    last = offsets[-2]
    assert text[last[0] : last[1]].strip() == "end"


def test_directories(data, tmp_path):
    for name, names in (
        ("t5", ["spiece.model"]),
        ("openai-gpt", ["vocab.json", "merges.txt"]),
        ("koelectra", ["vocab.txt"]),
    ):
        (tmp_path / name).mkdir()
        for file in names:
            (tmp_path / name / file).write_bytes(read_archive(data)[f"{name}/{file}"])
        made = load_tokenizer(tmp_path / name)
        save_tokenizer(made, tmp_path / f"{name}-again")
        again = load_tokenizer(tmp_path / f"{name}-again")
        assert again.fingerprint == made.fingerprint
        assert again.special == made.special
        assert all(again.encode(t) == made.encode(t) for t in TEXTS)
    assert load_tokenizer(tmp_path / "t5" / "spiece.model").encode("a") == load_tokenizer(tmp_path / "t5").encode("a")
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "readme.md").write_text("x")
    with pytest.raises(Error, match="there is no tokenizer here"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(Error, match="not a tokenizer's file"):
        load_tokenizer(tmp_path / "none" / "readme.md")


# SentencePiece models made here, so that these run without the data folder.
ENGLISH, KOREAN = (load_bundled_corpus(language)[0] for language in ("en", "ko"))
CORPUS = [ENGLISH[0][i : i + 400] for i in range(0, 20_000, 400)] + KOREAN[:10]


def train_sentencepiece(**options):
    peer, out = pytest.importorskip("sentencepiece"), io.BytesIO()
    peer.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=out, minloglevel=2, num_threads=1, **options
    )
    return out.getvalue(), peer.SentencePieceProcessor(model_proto=out.getvalue())


CASES = {
    "unigram": {"vocab_size": 600},
    "bpe": {"vocab_size": 600, "model_type": "bpe"},
    "bytes": {"vocab_size": 700, "byte_fallback": True, "character_coverage": 0.98},
    "bpe bytes": {"vocab_size": 700, "byte_fallback": True, "model_type": "bpe", "character_coverage": 0.98},
    "no prefix": {"vocab_size": 600, "add_dummy_prefix": False},
    "all spaces": {"vocab_size": 600, "remove_extra_whitespaces": False},
    "identity": {"vocab_size": 600, "normalization_rule_name": "identity"},
    "own symbols": {"vocab_size": 600, "user_defined_symbols": ["<c>", "현행"]},
}


@pytest.mark.parametrize("case", CASES)
def test_any_sentencepiece_model(case):
    data, peer = train_sentencepiece(**CASES[case])
    made = published_files.from_spm(data, {"extra_ids": 0}, STYLES)
    assert len(made) == peer.get_piece_size()
    texts = [*CORPUS[:3], *TEXTS, "the cat<c>sat 현행법", "  a   b  "]
    for text in texts:
        assert made.encode(text, special=False) == peer.encode(text), (case, text)
    for text in CORPUS[:3]:
        ids = made.encode(text, special=False)
        assert made.decode(ids) == peer.decode(ids)
        stream = DecodeStream(made)
        assert "".join(map(stream.push, ids)) + stream.flush() == made.decode(ids)


def test_fairseq_numbers():
    """mBART and XLM-R: four marks of fairseq, then the model's pieces from the fourth on, languages, <mask>."""
    data, peer = train_sentencepiece(vocab_size=600)
    name = "sentencepiece.bpe.model"
    plain = published_files.from_spm(data, {}, STYLES, name=name)
    want = [i + 1 if i else 3 for i in peer.encode("the cat x")]
    assert plain.encode("the cat x") == [0, *want, 2]
    assert plain.encode("the", "cat")[0] == 0
    assert len(plain) == 600 + 2
    made = published_files.from_spm(data, {"src_lang": "ko_KR"}, STYLES, name=name)
    code = made.backend.token_to_id("ko_KR")
    assert code == 601 + mbart.LANGUAGES.index("ko_KR")
    assert made.encode("the cat x") == [*want, 2, code]
    assert made.id("mask") == len(made) - 1
    with pytest.raises(Error, match="is not one of mbart's"):
        published_files.from_spm(data, {"src_lang": "xx"}, STYLES, name=name)


# Beyond these transformers cuts otherwise than SentencePiece: spaces at the end, marks after a letter, jamo.
MBART_50_TEXTS = [
    "Hello, World! It's 2024.", "안녕하세요 ㅋㅋ 현행법을 개정", "naïve café — 😀👍🏽👨\u200d👩\u200d👧",
    "  two  spaces", "日本語 テスト ｶﾞ 中文", "``quoted'' 1,000", "I'll we've DON'T", "ΟΔΟΣ İstanbul ß",
    "the cat<mask> sat", "나는 <mask>에 간다.", "",
]  # fmt: skip


def train_mbart_50(folder, options):
    """Write a directory as mBART-50 is published, around a small model, and open it with transformers."""
    transformers = pytest.importorskip("transformers")
    data, _ = train_sentencepiece(vocab_size=600)
    folder.mkdir()
    (folder / "sentencepiece.bpe.model").write_bytes(data)
    (folder / "tokenizer_config.json").write_text(json.dumps(options))
    language = options.get("src_lang") or "en_XX"
    return transformers.MBart50Tokenizer.from_pretrained(folder, src_lang=language)


@pytest.mark.parametrize("language", [None, "ko_KR", "sl_SI"])
def test_mbart_50_by_transformers(tmp_path, language):
    """52 languages after the pieces, then <mask>; a text begins with its language and ends with </s>."""
    _, model = train_sentencepiece(vocab_size=600)
    options = {"tokenizer_class": "MBart50Tokenizer", "src_lang": language, "tgt_lang": None}
    peer = train_mbart_50(tmp_path / "m", options)
    made = load_tokenizer(tmp_path / "m")
    assert len(made) == len(peer) == 600 + 1 + 52 + 1
    assert [made.backend.token_to_id(code) for code in mbart.LANGUAGES_50] == list(range(601, 653))
    for role in ("bos", "pad", "eos", "unk", "mask", "cls", "sep"):
        if getattr(peer, f"{role}_token") is not None:
            assert made.id(role) == getattr(peer, f"{role}_token_id"), role
    for text in MBART_50_TEXTS:
        assert made.encode(text) == peer(text)["input_ids"], text
    assert made.encode("the cat", "sat") == peer("the cat", "sat")["input_ids"]
    for text in TEXTS:
        assert made.encode(text)[1:-1] == [i + 1 if i else 3 for i in model.encode(text)], text
    ids = made.encode("the cat sat on 현행법")
    assert (made.backend.id_to_token(ids[0]), ids[-1]) == (language or "en_XX", 2)
    assert made.decode(ids) == peer.decode(ids, skip_special_tokens=True)


def test_mbart_50_is_recognised(tmp_path):
    """By the class in tokenizer_config.json or in config.json, or by its languages; otherwise it is mBART's."""
    ids = {}
    for name, options, config in (
        ("class", {"tokenizer_class": "MBart50TokenizerFast", "src_lang": "ko_KR"}, {}),
        ("config", {"src_lang": "ko_KR"}, {"tokenizer_class": "MBart50Tokenizer"}),
        ("codes", {"src_lang": "ko_KR", "additional_special_tokens": list(mbart.LANGUAGES_50)}, {}),
        ("old", {"src_lang": "ko_KR"}, {"tokenizer_class": "MBartTokenizer"}),
    ):
        train_mbart_50(tmp_path / name, options)
        (tmp_path / name / "config.json").write_text(json.dumps(config))
        ids[name] = load_tokenizer(tmp_path / name).encode("the cat")
    assert ids["class"] == ids["config"] == ids["codes"]
    assert ids["class"][0] == ids["old"][-1], "the same code at the other end"
    assert ids["class"][1:] == ids["old"][:-1]
    data, _ = train_sentencepiece(vocab_size=600)
    options = {"tokenizer_class": "MBart50Tokenizer", "src_lang": "xx"}
    with pytest.raises(Error, match="src_lang 'xx' is not one of mbart's"):
        published_files.from_spm(data, options, STYLES, name="sentencepiece.bpe.model")


def test_mbart_50_translates_as_transformers(tmp_path):
    """A directory as it is published: the source's language leads the source, the target's is written first."""
    transformers = pytest.importorskip("transformers")
    peer = train_mbart_50(tmp_path / "m", {"tokenizer_class": "MBart50Tokenizer", "src_lang": None})
    torch.manual_seed(3)
    config = transformers.MBartConfig(
        vocab_size=len(peer), d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=64,
        decoder_start_token_id=2, forced_eos_token_id=None, init_std=0.5, tokenizer_class="MBart50Tokenizer",
    )  # fmt: skip
    theirs = transformers.MBartForConditionalGeneration(config).eval()
    theirs.save_pretrained(tmp_path / "m")
    ours = formers.load(tmp_path / "m")
    for source, target in (("ko_KR", "en_XX"), ("en_XX", "sl_SI")):
        peer.src_lang = source
        for text in ("the cat sat on the mat", "현행법을 개정"):
            ids = theirs.generate(
                **peer(text, return_tensors="pt"), forced_bos_token_id=peer.convert_tokens_to_ids(target),
                max_new_tokens=12, num_beams=1, do_sample=False,
            )[0]  # fmt: skip
            assert ids[:2].tolist() == [2, peer.convert_tokens_to_ids(target)]
            want = peer.decode(ids, skip_special_tokens=True)
            assert want
            got = ours.translate(text, source=source, to=target, max_new_tokens=12)
            assert got == want, (source, target, text)


def test_mbart_50_tokenizer_json(tmp_path):
    """What transformers saves as a tokenizer.json, and what formers saves, both read the same."""
    peer = train_mbart_50(tmp_path / "m", {"tokenizer_class": "MBart50Tokenizer", "src_lang": "ko_KR"})
    peer.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "tokenizer.json").exists()
    made, saved = load_tokenizer(tmp_path / "m"), load_tokenizer(tmp_path / "saved")
    save_tokenizer(made, tmp_path / "own")
    own = load_tokenizer(tmp_path / "own")
    for text in MBART_50_TEXTS:
        assert own.encode(text) == made.encode(text)
        assert saved.encode(text) == peer(text)["input_ids"], text
    assert saved.id("mask") == own.id("mask") == made.id("mask") == len(made) - 1


def test_xlnet():
    data, peer = train_sentencepiece(
        vocab_size=600, control_symbols=["<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]
    )
    made = published_files.from_spm(data, {}, STYLES)
    ids = peer.encode("the cat")
    assert made.encode("the cat") == [*ids, made.id("sep"), made.id("cls")]
    assert made.is_left_padded
    assert made.encode("The Café", special=False) == peer.encode("The Cafe")


def test_marian(tmp_path):
    """Two models and one table of numbers: each side reads its own language, both decode all numbers."""
    source, one = train_sentencepiece(vocab_size=500)
    target, two = train_sentencepiece(vocab_size=600)
    names = sorted({p for m in (one, two) for p in map(m.id_to_piece, range(m.get_piece_size()))} | {"<pad>", ">>ko<<"})
    vocab = json.dumps({p: i for i, p in enumerate(names)})
    made = published_files.from_marian(source, target, vocab, {}, STYLES)
    assert made.target is not None
    for text in CORPUS[:3]:
        for side, peer in ((made, one), (made.target, two)):
            want = [names.index(peer.id_to_piece(i)) for i in peer.encode(text)]
            assert side.encode(text) == [*want, names.index("</s>")]
            assert made.decode(want) == peer.decode(peer.encode(text))
    assert made.encode(">>ko<< the cat")[0] == names.index(">>ko<<")
    (tmp_path / "m").mkdir()
    for name, content in (("source.spm", source), ("target.spm", target), ("vocab.json", vocab.encode())):
        (tmp_path / "m" / name).write_bytes(content)
    again = load_tokenizer(tmp_path / "m")
    assert again.fingerprint == made.fingerprint
    assert again.fingerprint != Tokenizer(made.json_text, made.special).fingerprint


def test_a_model_by_hand():
    made = published_files.from_spm(encode_message(*SMALL_MODEL), {"extra_ids": 0}, STYLES)
    assert made.encode("ab a") == [2, 3, 2, 1]
    assert made.encode("x") == [4, 0, 1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 40,
        b"\x0a\xff\xff\xff\x7f",
        encode_message(*SMALL_MODEL[1:]),
        encode_message(*SMALL_MODEL, SMALL_MODEL[2]),
        encode_message(*SMALL_MODEL, encode_piece("")),
        encode_message(*SMALL_MODEL, encode_piece("x" * 2000)),
        encode_message(*SMALL_MODEL, (1, 5)),
        encode_message(*SMALL_MODEL, encode_piece("x", float("nan"))),
        encode_message(*SMALL_MODEL, encode_piece("x", 0.0, 9)),
        encode_message(*SMALL_MODEL, (2, encode_message((3, 3)))),
        encode_message(*SMALL_MODEL, (2, encode_message((24, 1)))),
        encode_message(*SMALL_MODEL, (3, encode_message((2, b"\xff\xff\xff\xff")))),
        encode_message(*SMALL_MODEL, (3, encode_message((5, 0)))),
        encode_message(*SMALL_MODEL, (1, encode_message((1, b"\xff")))),
        encode_message(*SMALL_MODEL, (2, encode_message((3, b"x")))),
        encode_message(
            *SMALL_MODEL, *(encode_piece(chr(0x4E00 + i) * 300) for i in range(2000)), (2, encode_message((3, 2)))
        ),
    ],
)
def test_broken_models_are_our_errors(data):
    with pytest.raises(Error):
        published_files.from_spm(data, {}, STYLES)


def test_absurd_options():
    for options in ({"extra_ids": 10**9}, {"extra_ids": "many"}):
        with pytest.raises(Error):
            published_files.from_spm(encode_message(*SMALL_MODEL), options, STYLES)
    with pytest.raises(Error, match="does not number its pieces"):
        published_files.from_marian(encode_message(*SMALL_MODEL), encode_message(*SMALL_MODEL), '{"a": 5}', {}, STYLES)


@pytest.mark.parametrize("name", ["t5", "albert"])
def test_raw_text_is_what_sentencepiece_makes_of_it(name, data):
    """SentencePiece itself knows no special tokens in a text."""
    sentencepiece_ = pytest.importorskip("sentencepiece")
    model = read_archive(data)[f"{name}/spiece.model"]
    theirs = sentencepiece_.SentencePieceProcessor(model_proto=model)
    ours = published_files.from_spm(model, {"do_lower_case": False, "keep_accents": True}, STYLES)
    for token in ("</s>", "<pad>", "<s>", "[CLS]", "[SEP]", "[MASK]", "<extra_id_0>", "<unk>"):
        for text in (token, f"one {token} two", f"one{token}two", f"{token}{token}"):
            control = any(theirs.is_control(i) for i in theirs.encode(text))
            assert not control
            assert ours.encode(text, special=False, parse_special=False) == theirs.encode(text), text
    for text in TEXTS:
        plain = ours.encode(text, special=False)
        assert ours.encode(text, special=False, parse_special=False) == plain or ours.has_special_spelling(text)


def test_what_a_vocab_txt_leaves_open_is_said(tmp_path, capsys):
    small = "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "the", "cat"])
    (note,) = published_files.from_vocab_txt(small, {}, STYLES).notes
    assert "text is made lower case" in note
    assert '{"do_lower_case": false}' in note
    (note,) = published_files.from_vocab_txt(small + "\n##A\nThe", {}, STYLES).notes
    assert "text keeps its case" in note
    assert '{"do_lower_case": true}' in note
    assert published_files.from_vocab_txt(small, {"do_lower_case": True}, STYLES).notes == []
    (tmp_path / "vocab.txt").write_text(small, encoding="utf-8")
    (tmp_path / "t.txt").write_text("the cat\nthe cat the\n", encoding="utf-8")
    for words in (
        ("tokenizer", "show", tmp_path, "The cat"),
        ("prepare", tmp_path / "t.txt", "--tokenizer", tmp_path, "--out", tmp_path / "s"),
        ("show", "mlm", "--text", "the cat the cat", "--tokenizer", tmp_path),
    ):
        with pytest.raises(SystemExit) as end:
            main([*map(str, words)])
        assert not end.value.code
        said = capsys.readouterr()
        assert "Note: nothing beside vocab.txt says" in " ".join((said.out + said.err).split())
