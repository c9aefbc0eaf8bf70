"""fairseq's and Paddle's released files: the same numbers as transformers gives for the same weights, bit for bit the
same tensors, and nothing read without an explicit word."""

from __future__ import annotations

import argparse
import json
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import torch
import transformers

import formers
from formers import Error
from formers.cli.main import app

IDS = torch.tensor([[0, 5, 9, 20, 2], [0, 7, 31, 4, 2]])
SIZES = {"vocab_size": 41, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}


def randomise(model):
    """Give every parameter another value: zeros and ones would hide a wrong name."""
    torch.manual_seed(0)
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.3)
    return model.eval()


def rename_tensors(model, table, drop=()):
    """The tensors of one of transformers' models under other names; the first entry that fits counts."""
    found = OrderedDict()
    for name, value in model.state_dict().items():
        for theirs, released in table:
            if theirs in name:
                name = name.replace(theirs, released)
        if not any(part in name for part in drop):
            found[name] = value
    return found


def check_same_tensors(these, those):
    """Every bit is the same; a second name of the output's bias is not in released files."""
    assert all(torch.equal(these[name], value) for name, value in those.items() if "decoder.bias" not in name)


def build_roberta(kind):
    config = transformers.RobertaConfig(
        **SIZES, max_position_embeddings=18, type_vocab_size=1, layer_norm_eps=1e-5, num_labels=3, pad_token_id=1
    )
    model = randomise(kind(config))
    model.roberta.embeddings.token_type_embeddings.weight.data.zero_()  # fairseq has none
    return model


ROBERTA_LAYER = [
    ("attention.self.query", "self_attn.q_proj"), ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"), ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "self_attn_layer_norm"), ("intermediate.dense", "fc1"), ("output.dense", "fc2"),
    ("output.LayerNorm", "final_layer_norm"),
]  # fmt: skip


def to_fairseq_roberta(model, root="decoder", norm="emb_layer_norm"):
    inside = f"{root}.sentence_encoder."
    table = [
        *ROBERTA_LAYER, ("roberta.embeddings.word_embeddings", inside + "embed_tokens"),
        ("roberta.embeddings.position_embeddings", inside + "embed_positions"),
        ("roberta.embeddings.LayerNorm", inside + norm), ("roberta.encoder.layer.", inside + "layers."),
        ("lm_head.decoder.weight", "lm_head.weight"), ("lm_head.", f"{root}.lm_head."),
        ("classifier.", "classification_heads.mnli."),
    ]  # fmt: skip
    return rename_tensors(model, table, ("token_type", "lm_head.decoder.bias", "position_ids"))


def join_projections(tensors):
    """Put query, key and value into one tensor, as fairseq's first releases have it."""
    joint = OrderedDict()
    for name, value in tensors.items():
        if ".q_proj." in name:
            parts = [tensors[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            joint[name.replace("q_proj.", "in_proj_")] = torch.cat(parts)
        elif ".k_proj." not in name and ".v_proj." not in name:
            joint[name] = value
    return joint


def write_fairseq(where, tensors, legacy=True, **args):
    settings = argparse.Namespace(
        arch="tiny", encoder_attention_heads=2, decoder_attention_heads=2, activation_fn="gelu", dropout=0.1,
        attention_dropout=0.1, no_scale_embedding=True, data=["a", "b"], max_positions=16, **args,
    )  # fmt: skip
    where.mkdir()
    file = {"args": settings, "model": tensors, "optimizer_history": [{"criterion_name": "x"}], "extra_state": {}}
    torch.save(file, where / "model.pt", _use_new_zipfile_serialization=not legacy)
    return where


@pytest.mark.parametrize("form", ["first", "later"])
def test_fairseq_roberta(form, tmp_path):
    model = build_roberta(transformers.RobertaForMaskedLM)
    if form == "first":
        tensors = join_projections(to_fairseq_roberta(model)) | {"decoder.version": torch.tensor([3.0])}
    else:
        tensors = to_fairseq_roberta(model, "encoder", "layernorm_embedding")
    where = write_fairseq(tmp_path / "m", tensors, legacy=form == "first")
    former = formers.load(where, pickle=True)
    assert (former.family, former.head, former.config.heads, former.config.eps) == ("roberta", "mlm", 2, 1e-5)
    with torch.no_grad():
        torch.testing.assert_close(former.logits(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)
    formers.export(former, tmp_path / "back")  # no bit is lost on the way
    again = transformers.RobertaForMaskedLM.from_pretrained(tmp_path / "back").state_dict()
    assert all(
        torch.equal(again[name], value) for name, value in model.state_dict().items() if "decoder.bias" not in name
    )


def test_a_classifier_of_fairseq(tmp_path):
    model = build_roberta(transformers.RobertaForSequenceClassification)
    tensors = to_fairseq_roberta(model) | {"decoder.lm_head.bias": torch.zeros(41)}
    former = formers.load(write_fairseq(tmp_path / "m", tensors), pickle=True)
    assert (former.head, len(former.labels)) == ("classify", 3)
    with torch.no_grad():
        torch.testing.assert_close(former.logits(IDS), model(IDS).logits, atol=1e-5, rtol=1e-5)


def build_bart():
    return randomise(transformers.BartForConditionalGeneration(transformers.BartConfig(
        vocab_size=41, d_model=8, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=12, decoder_ffn_dim=10, max_position_embeddings=16,
    )))  # fmt: skip


def test_fairseq_bart(tmp_path):
    model = build_bart()
    model.final_logits_bias.zero_()
    tensors = rename_tensors(model, [("model.encoder.", "encoder."), ("model.decoder.", "decoder.")])
    tensors = {name: value for name, value in tensors.items() if name.startswith(("encoder.", "decoder."))}
    tensors |= {"encoder.version": torch.tensor([3.0]), "encoder.embed_positions._float_tensor": torch.zeros(1)}
    former = formers.load(write_fairseq(tmp_path / "m", tensors), pickle=True)
    assert (former.family, former.head, former.config.num_decoder_layers) == ("bart", "lm", 1)
    target = torch.tensor([[2, 0, 6], [2, 0, 8]])
    with torch.no_grad():
        expected = model(input_ids=IDS, decoder_input_ids=target).logits
    torch.testing.assert_close(former.logits(IDS, target=target), expected, atol=1e-5, rtol=1e-5)


def test_fairseq_pieces(tmp_path):
    where = write_fairseq(tmp_path / "m", to_fairseq_roberta(build_roberta(transformers.RobertaForMaskedLM)))
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGH"
    (where / "encoder.json").write_text(json.dumps({"ab": 34} | {c: i for i, c in enumerate(letters)}))
    (where / "vocab.bpe").write_text("#version: 0.2\na b\n")
    order = ["34", *map(str, reversed(range(34)))]  # fairseq's own order, the frequent ones first
    (where / "dict.txt").write_text("".join(f"{word} 9\n" for word in [*order, "madeupword0000"]))
    tokenizer = formers.load(where, pickle=True).tokenizer
    assert tokenizer.encode("abc<mask>") == [0, 4, 36, 40, 2]
    (where / "dict.txt").write_text("34 9\nword 9\n")
    with pytest.raises(Error, match=r"dict\.txt, line 2: 'word 9' is not the number"):
        formers.load(where, pickle=True)


def test_pickles_are_read_on_an_explicit_word_only(tmp_path):
    where = write_fairseq(tmp_path / "m", {})
    with pytest.raises(Error, match=r"model\.pt is a pickle.*--pickle"):
        formers.load(where)


class Call:
    """A pickle that would call a function when it is read."""

    def __reduce__(self):
        return print, ("called",)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": Call()}, "it asks for print"),
        ({"encoder_attention_heads": "2"}, "args: encoder_attention_heads is '2'"),
        ({"activation_fn": "gelu_accurate"}, "activation_fn 'gelu_accurate' is not supported"),
    ],
)
def test_fairseq_files_that_hold_something_else(tmp_path, change, message):
    tensors = to_fairseq_roberta(build_roberta(transformers.RobertaForMaskedLM))
    where = write_fairseq(tmp_path / "m", tensors)
    file = torch.load(where / "model.pt", weights_only=False)
    vars(file["args"]).update(change)
    torch.save(file, where / "model.pt")
    with pytest.raises(Error, match=message) as caught:
        formers.load(where, pickle=True)
    assert str(where) in str(caught.value)


def test_settings_in_another_form(tmp_path):
    where = write_fairseq(tmp_path / "m", {})
    torch.save({"cfg": {}, "model": {"x": torch.zeros(1)}}, where / "model.pt")
    with pytest.raises(Error, match="it has no args, the settings of the model"):
        formers.load(where, pickle=True)


def test_another_model_of_fairseq(tmp_path):
    with pytest.raises(Error, match="is neither a RoBERTa nor a BART"):
        formers.load(write_fairseq(tmp_path / "m", {"x": torch.zeros(1)}), pickle=True)


ERNIE_LAYER = [
    ("attention.self.query", "self_attn.q_proj"), ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"), ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "norm1"), ("intermediate.dense", "linear1"), ("output.dense", "linear2"),
    ("output.LayerNorm", "norm2"), ("embeddings.LayerNorm", "embeddings.layer_norm"),
    ("encoder.layer.", "encoder.layers."),
    ("cls.predictions.transform.dense", "cls.predictions.transform"),
    ("cls.predictions.transform.LayerNorm", "cls.predictions.layer_norm"),
    ("cls.predictions.decoder.weight", "cls.predictions.decoder_weight"),
    ("cls.predictions.bias", "cls.predictions.decoder_bias"),
]  # fmt: skip
ERNIE = {  # in the words of Paddle's model_config.json
    "attention_probs_dropout_prob": 0.1, "hidden_act": "relu", "hidden_dropout_prob": 0.1, "hidden_size": 8,
    "initializer_range": 0.02, "max_position_embeddings": 16, "num_attention_heads": 2, "num_hidden_layers": 2,
    "type_vocab_size": 2, "vocab_size": 41, "pad_token_id": 0, "init_class": "ErnieModel",
}  # fmt: skip


def build_ernie(tasks=False):
    config = transformers.ErnieConfig(
        **SIZES, max_position_embeddings=16, hidden_act="relu", layer_norm_eps=1e-5, use_task_id=tasks
    )
    return randomise(transformers.ErnieForPreTraining(config))


def to_paddle(model):
    arrays = {}
    for name, value in rename_tensors(model, ERNIE_LAYER, ("decoder.bias", "position_ids")).items():
        is_table = "embeddings" in name or "decoder_weight" in name
        arrays[name] = (value if is_table or value.dim() != 2 else value.t()).numpy()
    return arrays


def write_paddle(where, content, protocol=2, config=None, name="model_config.json"):
    where.mkdir()
    (where / "model_state.pdparams").write_bytes(pickle.dumps(content, protocol))
    stated = {"init_args": [ERNIE], "init_class": "ErnieForPretraining"} if config is None else config
    (where / name).write_text(json.dumps(stated))
    return where


@pytest.mark.parametrize("protocol", [2, 4])
def test_paddle_ernie(protocol, tmp_path, capsys):
    model = build_ernie()
    arrays = to_paddle(model)
    if protocol == 4:  # an array in Fortran's order, and with its inner name beside it
        arrays = {name: ("inner", np.asfortranarray(array)) for name, array in arrays.items()}
    where = write_paddle(tmp_path / "m", arrays | {"StructuredToParameterName@@": {"a": "b"}}, protocol)
    app(["import", str(where), str(tmp_path / "own"), "--pickle"], result_action="return_value")
    assert "ernie, head pretraining" in capsys.readouterr().out
    former = formers.load(tmp_path / "own")
    with torch.no_grad():
        expected, found = model(IDS), former.logits(IDS)
    torch.testing.assert_close(found["mlm"], expected.prediction_logits, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found["nsp"], expected.seq_relationship_logits, atol=1e-5, rtol=1e-5)
    formers.export(former, tmp_path / "back")
    again = transformers.ErnieForPreTraining.from_pretrained(tmp_path / "back").state_dict()
    assert all(
        torch.equal(again[name], value) for name, value in model.state_dict().items() if "decoder.bias" not in name
    )


def test_paddle_tasks_and_a_newer_config(tmp_path):
    model, stated = build_ernie(tasks=True), {key: value for key, value in ERNIE.items() if key != "init_class"}
    stated |= {"architectures": ["ErnieForMaskedLM"], "model_type": "ernie", "paddlenlp_version": "2.5", "task_id": 0}
    where = write_paddle(tmp_path / "m", to_paddle(model), config=stated, name="config.json")
    former = formers.load(where, pickle=True)
    assert (former.config.tasks, former.config.use_tasks) == (3, True)
    with torch.no_grad():
        expected = model(IDS).prediction_logits
    torch.testing.assert_close(former.logits(IDS)["mlm"], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1], "it does not hold a table"),
        ({"x": 5}, "'x' is not an array"),
        ({"x": Call()}, "'x' is not an array"),
        ({"x": np.array(["a"])}, "array 'x' is not made of plain numbers"),
        ({"x": np.array([{}])}, "array 'x' is not made of plain numbers"),
        ({3: np.zeros(2)}, "a name in it is not text"),
    ],
)
def test_paddle_files_that_hold_something_else(tmp_path, content, message):
    where = write_paddle(tmp_path / "m", content)
    with pytest.raises(Error, match=message) as caught:
        formers.load(where, pickle=True)
    assert "model_state.pdparams" in str(caught.value)
    assert "called" not in str(caught.value)


def test_a_setting_of_paddle_that_is_not_known(tmp_path):
    where = write_paddle(tmp_path / "m", to_paddle(build_ernie()), config={**ERNIE, "surprise": 1})
    with pytest.raises(Error, match="unknown key 'surprise'"):
        formers.load(where, pickle=True)
    assert formers.load(where, pickle=True, ignore=["surprise"]).family == "ernie"
