"""The public API: what goes in, what comes out, and what is said when it cannot work."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

import formers
from formers import Error
from formers.former import count_preset_parameters
from formers.inputs import ModelInputs
from formers.nn.attention.kv_cache import KVCache
from formers.registry import FAMILIES, train_tokenizer
from formers.task import Task
from tests.tolerance import assert_equal_weights, assert_near

SMALL = {
    "gpt2": {"vocab": 50, "context": 12, "dim": 12, "layers": 2, "heads": 3},
    "bert": {"vocab": 50, "context": 12, "dim": 12, "layers": 2, "heads": 3, "ff": 20},
    "roberta": {"vocab": 50, "context": 12, "dim": 12, "layers": 2, "heads": 3, "ff": 20},
    "t5": {"vocab": 50, "dim": 12, "layers": 2, "heads": 3, "head_dim": 5, "ff": 20, "buckets": 8, "far": 10},
    "mt5": {"vocab": 50, "dim": 12, "layers": 2, "heads": 3, "head_dim": 5, "ff": 20, "buckets": 8, "far": 10},
}
IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 1, 0]])
KEEP = torch.tensor([[True] * 4, [True, True, True, False]])


def build_model(family, head="auto", **more):
    return formers.build(family, head=head, **{**SMALL[family], **more})


def test_build_is_a_function_of_the_seed():
    one, same, other = build_model("gpt2", seed=1), build_model("gpt2", seed=1), build_model("gpt2", seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), same.model.parameters(), strict=True))
    assert not torch.equal(one.model.body.embed.token.weight, other.model.body.embed.token.weight)


@pytest.mark.parametrize(
    ("family", "head"), [("gpt2", "lm"), ("bert", "pretraining"), ("roberta", "mlm"), ("t5", "lm")]
)
def test_auto_is_the_pretraining_head(family, head):
    assert build_model(family).head == head


def test_on_the_meta_device():
    with torch.device("meta"):
        f = formers.build("t5", preset="t5-11b")
    assert f.device.type == "meta"
    assert sum(p.numel() for p in f.model.parameters()) == 11_307_321_344


def test_a_variants_preset_leads_to_the_variant():
    with torch.device("meta"):
        assert formers.build("t5", preset="mt5-small").family == "mt5"
        assert formers.build("bert", preset="roberta-base").family == "roberta"


COUNTS = [
    ("gpt2", "gpt2", "lm", 124_439_808), ("gpt2", "gpt2-xl", "lm", 1_557_611_200),
    ("gpt", "openai-gpt", "lm", 116_534_784), ("gpt3", "gpt3-175b", "lm", 174_604_259_328),
    ("gpt_neo", "gpt-neo-1.3b", "lm", 1_315_575_808), ("gptj", "gpt-j-6b", "lm", 6_050_882_784),
    ("gpt_neox", "gpt-neox-20b", "lm", 20_554_567_680), ("bloom", "bloom-560m", "lm", 559_214_592),
    ("bloom", "bloom", "lm", 176_247_271_424), ("albert", "albert-base", "none", 11_683_584),
    ("albert", "albert-xxlarge", "none", 222_595_584), ("ernie", "ernie-1.0", "none", 99_866_112),
    ("ernie", "ernie-2.0-base-en", "none", 109_496_064), ("bart", "bart-base", "lm", 139_420_416),
    ("bart", "bart-large", "lm", 406_291_456), ("transformer", "opus-mt", "lm", 73_886_208),
    ("switch", "switch-base-8", "lm", 619_339_008),
    ("bert", "bert-base", "none", 109_482_240), ("bert", "bert-base", "pretraining", 110_106_428),
    ("bert", "bert-large", "none", 335_141_888), ("t5", "t5-small", "lm", 60_506_624),
    ("t5", "t5-base", "lm", 222_903_552), ("t5", "t5-v1_1-small", "lm", 76_961_152),
    ("t5", "t5-v1_1-base", "lm", 247_577_856), ("mt5", "mt5-small", "lm", 300_176_768),
]  # fmt: skip


@pytest.mark.parametrize(("family", "preset", "head", "parameters"), COUNTS)
def test_published_sizes(family, preset, head, parameters):
    with torch.device("meta"):
        model = formers.build(family, head=head, preset=preset).model
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == parameters


def test_tree():
    rows = {row["name"]: row for row in formers.tree()}
    assert set(rows) == set(FAMILIES)
    assert rows["bert"]["year"] == 2018
    assert rows["roberta"]["parent"] == "bert"
    assert "masked language model" in rows["bert"]["new"]
    base, small = rows["bert"]["presets"]["bert-base"], rows["gpt2"]["presets"]["gpt2"]
    assert (base["parameters"], base["head"]) == (109_482_240, "none")
    assert (small["parameters"], small["head"]) == (124_439_808, "lm")
    every = [size for row in rows.values() for size in row["presets"].values()]
    assert all(sum(size["parts"].values()) == size["parameters"] for size in every)
    assert not any("other" in size["parts"] for size in every)


def test_parameters_of_recurrent_decoders_by_part():
    """Cho's decoder has no attention: its parts besides the recurrent layers were listed as an alignment of 4.1 M."""
    presets = formers.tree("seq2seq")[0]["presets"]
    cho, luong = presets["cho-2014"]["parts"], presets["luong-global"]["parts"]
    made = {"context vector": 1_001_000, "initial state": 1_001_000, "readout": 2_101_000}
    assert {
        part: count for part, count in cho.items() if part not in ("embeddings", "recurrent layers", "output")
    } == made
    assert (luong["alignment"], luong["readout"]) == (1_000_000, 2_000_000), "equations 5 and 8: W_c reads [c; h]"
    assert "alignment" not in presets["sutskever-2014"]["parts"]


def test_parameters_by_part():
    """BERT-base and ALBERT-base by the sizes of their papers, and the experts of a Switch."""
    d, ff, heads_and_output = 768, 3072, 4 * (768 * 768 + 768)
    parts = count_preset_parameters("bert", "bert-base")
    assert parts == {
        "embeddings": 30522 * d, "positions": (512 + 2) * d, "norms": 2 * d + 12 * 4 * d,
        "attention": 12 * heads_and_output, "feed-forward": 12 * (2 * d * ff + ff + d), "output": d * d + d,
    }  # fmt: skip
    shared = count_preset_parameters("albert", "albert-base")
    assert shared["attention"] == heads_and_output
    assert shared["embeddings"] == 30000 * 128 + 128 * d + d
    switch = count_preset_parameters("switch", "switch-base-8")
    assert switch["experts"] == 12 * 8 * 2 * d * ff
    assert switch["router"] == 12 * 8 * d
    assert count_preset_parameters("elmo", "elmo-original").keys() == {"character CNN", "recurrent layers"}


def test_shapes():
    assert build_model("gpt2").logits(IDS, KEEP).shape == (2, 4, 50)
    both = build_model("bert").logits(IDS, KEEP)
    assert both["mlm"].shape == (2, 4, 50)
    assert both["nsp"].shape == (2, 2)
    assert build_model("bert", "answer").logits(IDS).shape == (2, 4, 2)
    assert build_model("bert", "tag", labels=5).logits(IDS).shape == (2, 4, 5)
    assert build_model("bert", "classify", labels=["a", "b", "c"]).logits(IDS).shape == (2, 3)
    choose = build_model("bert", "choose")
    assert choose.logits(IDS[None].expand(3, 2, 4)).shape == (3, 2)
    assert choose.logits(IDS).shape == (2,)
    double = build_model("gpt2", "double").logits(IDS[None])
    assert double["lm"].shape == (1, 2, 4, 50)
    assert double["choose"].shape == (1, 2)
    assert build_model("t5").logits(IDS, KEEP, target=IDS[:, :3]).shape == (2, 3, 50)
    assert build_model("t5", "classify", labels=3).logits(torch.tensor([[5, 1], [6, 1]])).shape == (2, 3)
    assert build_model("t5", "tag").logits(IDS).shape == (2, 4, 2)


def test_padding_is_zero_and_means_nothing():
    f = build_model("gpt2", init=0.3)
    logits = f.logits(IDS, KEEP)
    assert not logits[1, 3].any()
    other = IDS.clone()
    other[1, 3] = 44
    assert torch.equal(f.logits(other, KEEP), logits)
    assert_near(f.logits(IDS[1:, :3]), logits[1:, :3], f.model)
    left = f.logits(IDS.flip(1).roll(1, 1)[1:, :], KEEP.flip(1)[1:])
    assert left.shape == (1, 4, 50)
    assert not left[0, 0].any()


def test_hidden():
    f = build_model("bert")
    every = f.hidden(IDS, KEEP, layer=None)
    assert every.shape == (3, 2, 4, 12)
    assert torch.equal(f.hidden(IDS, KEEP), every[-1])
    assert torch.equal(f.hidden(IDS, KEEP, layer=0), every[0])
    assert torch.equal(f.hidden(IDS, KEEP, layer=-2), every[-2])
    assert not every[:, 1, 3].any()
    with pytest.raises(Error, match="there is no layer 3. Choose 0 to 2"):
        f.hidden(IDS, layer=3)
    t5 = build_model("t5")
    assert t5.hidden(IDS, KEEP).shape == (2, 4, 12)
    assert t5.hidden(IDS, KEEP, target=IDS[:, :2], layer=None).shape == (3, 2, 2, 12)


def test_head_masks():
    f = build_model("gpt2", init=0.3)
    ones = torch.ones(2, 3)
    torch.testing.assert_close(f.logits(IDS, heads=ones), f.logits(IDS))
    off = ones.clone()
    off[1, 2] = 0
    masked = f.logits(IDS, heads=off)
    assert not torch.allclose(masked, f.logits(IDS))
    with torch.no_grad():  # the same as a head whose output projection is zero
        f.model.body.blocks[1].attn.o.weight[:, 8:] = 0
    torch.testing.assert_close(f.logits(IDS), masked)
    t5 = build_model("t5")
    plain = t5.logits(IDS, target=IDS)
    for key in ("encoder", "decoder", "cross"):
        assert not torch.allclose(t5.logits(IDS, target=IDS, heads={key: torch.zeros(2, 3)}), plain)
    for heads, message in (
        (torch.ones(2, 2), "the mask of heads has shape (2, 2)"),
        ({"encoder": ones}, "heads must be one mask"),
    ):
        with pytest.raises(Error) as caught:
            f.logits(IDS, heads=heads)
        assert message in str(caught.value)
    with pytest.raises(Error, match="heads must be a dict"):
        t5.logits(IDS, target=IDS, heads=ones)
    with pytest.raises(Error, match="sideways"):
        t5.logits(IDS, target=IDS, heads={"sideways": ones})


def test_gradients_flow():
    f = build_model("bert")
    sum(x.sum() for x in f.logits(IDS, KEEP).values()).backward()
    assert all(p.grad is not None for p in f.model.parameters())


def test_to():
    f = build_model("gpt2")
    assert f.to(dtype=torch.bfloat16) is f
    assert f.dtype == torch.bfloat16
    assert f.logits(IDS).dtype == torch.bfloat16
    assert f.to("cpu").device.type == "cpu"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: build_model("gpt2").logits(torch.tensor([[3, 50]])), "ids[0, 1] is 50, outside the vocabulary of 50"),
        (lambda: build_model("gpt2").logits(torch.tensor([[3, -1]])), "ids[0, 1] is -1"),
        (
            lambda: build_model("gpt2").logits(torch.ones(1, 13, dtype=torch.long)),
            "13 tokens are more than the context of 12",
        ),
        (lambda: build_model("gpt2").logits(torch.tensor([3, 4])), "ids must be (rows, tokens), got (2,)"),
        (
            lambda: build_model("gpt2").logits(torch.zeros(1, 0, dtype=torch.long)),
            "ids must be (rows, tokens), got (1, 0)",
        ),
        (lambda: build_model("gpt2").logits(torch.rand(2, 3)), "ids must be whole numbers, got float32"),
        (
            lambda: build_model("gpt2").logits(IDS, torch.zeros(2, 4, dtype=torch.bool)),
            "row 0 of ids has no token at all",
        ),
        (lambda: build_model("gpt2").logits(IDS, KEEP[:, :3]), "keep (2, 3) does not fit ids (2, 4)"),
        (lambda: build_model("gpt2").logits(IDS, target=IDS), "gpt2 with head 'lm' has no decoder"),
        (lambda: build_model("bert").logits(IDS, segments=IDS), "segments[0, 0] is 5, outside the segments of 2"),
        (lambda: build_model("bert", "none").logits(IDS), "a bare bert has no logits. Load it with a head"),
        (lambda: build_model("t5").logits(IDS), "t5 needs target"),
        (lambda: build_model("t5").logits(IDS, target=IDS[:1]), "target (1, 4) has other rows than ids (2,)"),
        (lambda: build_model("t5", "classify").logits(torch.tensor([[5, 6]])), "row 0 has no end mark (id 1)"),
        (lambda: formers.build("brt"), "unknown family 'brt'. Did you mean 'bert'?"),
        (lambda: formers.build("bert", head="lmm"), "BERT has no head 'lmm'. It can have: none, mlm"),
        (lambda: formers.build("bert", preset="bert-tiny"), "bert has no preset 'bert-tiny'"),
        (lambda: formers.build("bert", layer=2), "bert: unknown setting 'layer'. Did you mean 'layers'?"),
        (lambda: formers.build("bert", dim=50, heads=7), "7 heads do not divide dim 50"),
        (lambda: formers.build("t5", buckets=7), "7 buckets up to distance 128 cannot be laid out"),
        (lambda: formers.build("t5", far=4), "32 buckets up to distance 4"),
        (lambda: formers.build("gpt2", act="gleu"), "unknown activation 'gleu'"),
        (lambda: formers.load("/nowhere/at/all"), "/nowhere/at/all: no such directory"),
    ],
)
def test_bad_input_is_one_line_that_names_the_culprit(call, message):
    with pytest.raises(Error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_directories(tmp_path):
    with pytest.raises(Error, match="the directory is empty"):
        formers.load(tmp_path)
    (tmp_path / "note.txt").write_text("x")
    with pytest.raises(Error, match="neither formers.json nor config.json"):
        formers.load(tmp_path)
    with pytest.raises(Error, match="not a directory"):
        formers.load(tmp_path / "note.txt")


def test_a_directory_of_format_1_is_read(tmp_path):
    f = build_model("bert", "classify", labels=["나쁨", "좋음"], seed=3)
    f.task = dataclasses.asdict(Task(takes_pairs=True, max_answer_tokens=7))
    formers.save(f, tmp_path / "m")
    file = tmp_path / "m" / "formers.json"
    about = {key: value for key, value in json.loads(file.read_text()).items() if key not in ("seal", "files")}
    older = {"takes_pairs": "pair", "max_answer_tokens": "most", "label_as_text": "words"}
    task = {older.get(key, key): value for key, value in about["task"].items()}
    file.write_text(json.dumps({**about, "format": 1, "task": task}))
    assert formers.load(tmp_path / "m").task == f.task
    file.write_text(json.dumps({**about, "task": task}))
    with pytest.raises(Error, match="unknown setting 'pair'"):
        formers.load(tmp_path / "m")


def test_our_directory(tmp_path):
    f = build_model("bert", "classify", labels=["나쁨", "좋음"], seed=3)
    formers.save(f, tmp_path / "m")
    about = json.loads((tmp_path / "m" / "formers.json").read_text())
    assert about["format"] == 2
    assert about["labels"] == ["나쁨", "좋음"]
    again = formers.load(tmp_path / "m")
    assert again.config == f.config
    assert again.labels == ("나쁨", "좋음")
    assert again.tokenizer is None
    assert_equal_weights(again, f)
    assert_near(again.logits(IDS), f.logits(IDS), f.model)
    with pytest.raises(Error, match="exists already"):
        formers.save(f, tmp_path / "m")
    (tmp_path / "m" / "formers.json").write_text(json.dumps({**about, "family": "brt"}))
    with pytest.raises(Error, match="is not as it was written"):
        formers.load(tmp_path / "m")
    about = {key: value for key, value in about.items() if key not in ("seal", "files")}  # edited, and meant
    for change, message in (
        ({"format": 4}, "format 4 is not one of 1 to 3"),
        ({"family": "brt"}, "unknown family 'brt'"),
        ({"head": 5}, "setting 'head' must be str"),
        ({"config": {"layers": "two"}}, "setting 'layers' must be int"),
        ({"config": {"layers": 3, **{k: v for k, v in about["config"].items() if k != "layers"}}}, "is missing"),
        ({"surprise": 1}, "unknown key 'surprise'"),
    ):
        (tmp_path / "m" / "formers.json").write_text(json.dumps({**about, **change}))
        with pytest.raises(Error, match=message):
            formers.load(tmp_path / "m")
    (tmp_path / "m" / "formers.json").write_text("{")
    with pytest.raises(Error, match="not valid JSON"):
        formers.load(tmp_path / "m")
    (tmp_path / "m" / "formers.json").write_text(json.dumps(about))
    data = (tmp_path / "m" / "model.safetensors").read_bytes()
    (tmp_path / "m" / "model.safetensors").write_bytes(data[:-10])
    with pytest.raises(Error, match="bytes of data are declared"):
        formers.load(tmp_path / "m")


def test_a_tokenizer_belongs_to_its_model(tmp_path):

    f = build_model("gpt2", vocab=300)
    f.tokenizer = train_tokenizer("bpe", ["안녕하세요 안녕히 가세요"] * 3, 270)
    formers.save(f, tmp_path / "m")
    again = formers.load(tmp_path / "m")
    assert again.tokenizer.encode("안녕") == f.tokenizer.encode("안녕")
    assert again.tokenizer.special == f.tokenizer.special
    train_tokenizer("bpe", ["something else entirely"] * 3, 270).save(tmp_path / "m" / "tokenizer.json")
    with pytest.raises(Error, match="not the tokenizer that the model was saved with"):
        formers.load(tmp_path / "m")


ODD = {
    "a list that is no table": (lambda f: f.logits([[1, 2], [3]]), "ids cannot be made a tensor"),
    "text": (lambda f: f.logits("abc"), "ids must be numbers, not text"),
    "nothing": (lambda f: f.logits(None), "ids cannot be made a tensor"),
    "complex ids": (lambda f: f.logits(torch.zeros(1, 2, dtype=torch.complex64)), "ids must be whole numbers"),
    "float segments": (lambda f: f.logits(IDS, segments=IDS.float()), "segments must be whole numbers"),
    "text as heads": (lambda f: f.logits(IDS, heads="all"), "heads cannot be made a tensor"),
    "a layer by name": (lambda f: f.hidden(IDS, layer="x"), "layer must be a number"),
    "a memory that is none": (lambda f: f.logits(IDS, memory={}), "keeps earlier tokens in a KVCache, not in a dict"),
    "target_keep alone": (lambda f: f.logits(IDS, target_keep=KEEP), "target_keep is given without target"),
    "keep as numbers": (lambda f: f.logits(IDS, KEEP.long()), "keep must be bool"),
    "no such device": (lambda f: f.to("nowhere"), "the model cannot go to nowhere"),
    "whole-number weights": (lambda f: f.to(dtype=torch.int8), "the model cannot go to"),
}


@pytest.mark.parametrize(("call", "message"), ODD.values(), ids=ODD)
def test_odd_input_is_an_error_of_ours(call, message):
    with pytest.raises(Error, match=message):
        call(build_model("gpt2"))


def test_any_kind_of_whole_number_will_do():
    f = build_model("gpt2")
    want = f.logits(IDS)
    for kind in (torch.uint8, torch.int16, torch.int32):
        assert torch.equal(f.logits(IDS.to(kind)), want)
    assert torch.equal(f.logits(IDS.tolist()), want)


def test_what_is_not_kept_may_be_anything():
    f = build_model("gpt2")
    ids, keep = torch.full((1, 30), -100), torch.zeros(1, 30, dtype=torch.bool)
    ids[0, 20:24], keep[0, 20:24] = IDS[0], True
    torch.testing.assert_close(f.logits(ids, keep)[0, 20:24], f.logits(IDS[:1])[0])


def test_rows_that_advance_by_different_amounts_fill_a_context_each_on_its_own():
    f, cache = build_model("gpt2", context=16), KVCache(2, 16)
    ids = torch.randint(2, 50, (2, 8))
    one, other = torch.zeros(2, 8, dtype=torch.bool), torch.zeros(2, 8, dtype=torch.bool)
    one[0], one[1, :1], other[0, :1], other[1] = True, True, True, True
    with torch.no_grad():
        f.logits(ids, one, memory=cache)
        f.logits(ids, other, memory=cache)
        f.logits(ids[:, :1], memory=cache)  # nine and one, not sixteen and one
        with pytest.raises(Error, match="more than the context|do not fit"):
            f.logits(ids, memory=cache)


def test_segments_only_where_they_are_read():
    with pytest.raises(Error, match="t5 does not read segments"):
        build_model("t5").logits(IDS, segments=IDS * 0, target=IDS)


def test_tasks_only_where_they_are_read():
    ernie = formers.build("ernie", **SMALL["bert"], tasks=3, use_tasks=True, init=0.5)
    plain, tasks = ernie.hidden(IDS), torch.tensor([[0, 1, 2, 0], [2, 2, 0, 0]])
    torch.testing.assert_close(ernie.hidden(IDS, tasks=tasks * 0), plain)
    assert (ernie.hidden(IDS, tasks=tasks) - plain).abs().max() > 1e-3
    assert (ernie.logits(IDS, KEEP, tasks=tasks)["mlm"] - ernie.logits(IDS, KEEP)["mlm"]).abs().max() > 1e-3
    for f, given, message in (
        (ernie, tasks + 1, r"tasks\[0, 2\] is 3, outside the tasks of 3"),
        (ernie, tasks[:1], "does not fit ids"),
        (ernie, tasks.float(), "tasks must be whole numbers"),
        (formers.build("ernie", **SMALL["bert"]), tasks, "ernie does not read tasks"),
        (build_model("bert"), tasks, "bert does not read tasks"),
    ):
        with pytest.raises(Error, match=message):
            f.logits(IDS, tasks=given)


def test_a_cache_reads_left_to_right():
    with pytest.raises(Error, match="reads both ways"):
        build_model("bert", "mlm").logits(IDS, memory=KVCache(2, 8))


def test_a_cache_belongs_to_one_source():
    f, cache = build_model("t5"), KVCache(2, 8)
    f.logits(IDS, target=IDS[:, :1], memory=cache)
    with pytest.raises(Error, match="seen another source"):
        f.logits(IDS.flip(0), target=IDS[:, :1], memory=cache)
    ragged, cache = torch.tensor([[5, 6, 7], [8, 0, 0]]), KVCache(2, 8)
    f.logits(ragged, ragged > 0, target=IDS[:, :1], memory=cache)
    with pytest.raises(Error, match="seen another source"):  # the same tokens, cut otherwise
        f.logits(torch.tensor([[5, 6], [7, 8]]), target=IDS[:, :1], memory=cache)


def test_a_cache_holds_one_type_of_numbers():
    f, cache = build_model("gpt2"), KVCache(2, 8)
    f.logits(IDS, memory=cache)
    f.to(dtype=torch.bfloat16)
    with pytest.raises(Error, match="the cache holds torch.float32 on cpu, new keys are torch.bfloat16"):
        f.logits(IDS, memory=cache)


def test_an_encoder_alone_has_no_decoders_head(tmp_path):
    formers.save(build_model("t5", "tag"), tmp_path / "tag")
    with pytest.raises(Error, match="reads a decoder, and this is an encoder alone"):
        formers.load(tmp_path / "tag", head="lm")
    with pytest.raises(Error, match="encoder alone"):
        build_model("t5", "lm", decoder_layers=0)


@pytest.mark.parametrize("labels", [0, -1, True, "abc", ["a", "a"], [1, 2], [None], 3.5, 10**9, []])
def test_labels_that_make_no_sense(labels):
    with pytest.raises(Error, match="labels must be different names"):
        build_model("bert", "classify", labels=labels)


@pytest.mark.parametrize(
    ("more", "message"),
    [({"eps": -1.0}, "eps must be above 0"), ({"pad": 50}, "pad must be a token"), ({"pad": -3}, "pad must be a token"),
     ({"seed": "a"}, "seed must be"), ({"seed": 2**70}, "seed must be"), ({"preset": 5}, "a preset is a name")],
)  # fmt: skip
def test_settings_that_make_no_sense(more, message):
    with pytest.raises(Error, match=message):
        build_model("bert", **more)


def test_a_family_is_a_name():
    with pytest.raises(Error, match="a family is a name"):
        formers.build(None)


def test_a_model_without_weights(tmp_path):
    with torch.device("meta"):
        f = build_model("gpt2")
    for call in (
        lambda: f.logits(IDS),
        lambda: formers.save(f, tmp_path / "x"),
        lambda: formers.export(f, tmp_path / "x"),
    ):
        with pytest.raises(Error, match="has no weights"):
            call()
    assert not (tmp_path / "x").exists()


def test_types_and_paths_of_load(tmp_path):
    formers.save(build_model("gpt2"), tmp_path / "m")
    assert formers.load(tmp_path / "m", dtype="bfloat16").dtype == torch.bfloat16
    for dtype in (torch.int8, "int8", "nonsense", 5):
        with pytest.raises(Error, match="is not a floating-point type"):
            formers.load(tmp_path / "m", dtype=dtype)
    for path in (None, 5, b"x", [tmp_path]):
        with pytest.raises(Error, match="is not a path"):
            formers.load(path)


def test_a_notebook_shows_what_a_model_is(tmp_path):
    f = build_model("gpt2")
    lines = repr(f).splitlines()
    assert len(lines) == 3
    assert lines[0] == f"Former(gpt2, head lm: {f.num_parameters:,} parameters, float32 on cpu)"
    assert lines[1] == "  reads with: no tokenizer"
    assert "generate" in lines[2]
    assert f.num_parameters == sum(p.numel() for p in f.model.parameters())
    assert "trained to tag" in repr(formers.Former("bert", "tag", None, f.model, task={"name": "tag"}, labels=("O",)))
    with torch.device("meta"):
        assert "parameters" in repr(build_model("gpt2"))


def test_a_model_saves_exports_and_shows_its_attention(tmp_path):
    from formers.registry import train_tokenizer

    f = build_model("bert", vocab=80)
    f.tokenizer = train_tokenizer("bert", ["the cat sat on the mat"], 80, workers=1)
    f.save(tmp_path / "ours")
    f.export(tmp_path / "theirs")
    for where in ("ours", "theirs"):
        assert formers.load(tmp_path / where).fingerprint == f.fingerprint
    with pytest.raises(Error, match="exists already"):
        f.save(tmp_path / "ours")
    f.save(tmp_path / "ours", overwrite=True)
    found = f.attention("the cat")
    assert found.tokens == ["[CLS]", "the", "c", "##at", "[SEP]"]
    assert found.weights["encoder"].shape == (2, 3, 5, 5)
    assert {"save", "export", "attention", "num_parameters", "generate"} <= set(dir(f))
    assert f.generate.__doc__ == formers.generate.__doc__, "help(f.generate) says how"


def test_text_instead_of_ids_is_told_how_to_become_ids():
    from formers.registry import train_tokenizer

    f = build_model("bert", vocab=80)
    with pytest.raises(Error, match="must be numbers, not text.*this model has none: load it with its own"):
        f.logits("the cat")
    f.tokenizer = train_tokenizer("bert", ["the cat sat on the mat"], 80, workers=1)
    for given in ("the cat", ["the cat", "the mat"], f.tokenizer("the cat")):
        for read in (f.logits, f.hidden):
            with pytest.raises(Error, match=r"ids must be numbers, not text.*f\.tokenizer\(texts, padding=True"):
                read(given)
    texts = ["the cat", "the mat sat"]
    batch = f.tokenizer(texts, padding=True, return_tensors="pt")  # as the message says
    f.logits(batch.input_ids, batch.attention_mask.bool())
    elmo = formers.build("elmo", vocab=60, dim=8, cell=8, layers=1, char_dim=4, filters=[[1, 4]], highways=1)
    with pytest.raises(Error, match="formers.text.word_level.encode_sentences"):
        elmo.logits("the cat")


def test_only_public_names_are_listed():
    import formers.nn.block  # an import of a part of it adds nothing

    assert dir(formers) == sorted(formers.__all__)


def test_one_set_of_inputs_for_every_pass():
    f = formers.build("bert", head="mlm", vocab=30, dim=16, heads=2, ff=32, layers=1, context=16)
    ids = torch.tensor([[4, 5, 6], [7, 8, 0]])
    keep = ids != 0
    batch, rows = f.pack_inputs(ModelInputs(ids, keep))
    assert (batch.ids.tolist(), rows) == ([4, 5, 6, 7, 8], (2,))
    assert torch.equal(f.model.logits(f.model(batch), part="mlm"), f.logits(ids, keep)[keep])
    for method, name in ((f.logits, "memry"), (f.hidden, "order"), (f.hidden, "perm_mask")):
        with pytest.raises(Error, match=f"{method.__name__} does not take '{name}'"):
            method(ids, **{name: ids})


def test_keywords_of_transformers_are_taken():
    f = build_model("bert", "mlm", seed=3)
    ids, mask = torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([[1, 1, 1], [1, 1, 0]])
    segments = torch.tensor([[0, 0, 1], [0, 1, 1]])
    assert torch.equal(
        f.logits(ids, attention_mask=mask, token_type_ids=segments), f.logits(ids, mask.bool(), segments)
    )
    t5 = build_model("t5", "lm", seed=3)
    both = t5.logits(ids, attention_mask=mask, decoder_input_ids=ids, decoder_attention_mask=mask)
    assert torch.equal(both, t5.logits(ids, mask.bool(), target=ids, target_keep=mask.bool()))
    with pytest.raises(Error, match="attention_mask and keep are the same input"):
        f.logits(ids, mask.bool(), attention_mask=mask)
    with pytest.raises(Error, match="does not take 'labels'. A loss is computed by an objective"):
        f.logits(ids, labels=ids)
