"""Files as published: what old checkpoints look like, each written here and loaded."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import formers
from formers import Error

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def write_published(tmp_path):
    """A golden directory to change: (name, change of tensors, change of config) → path, and the untouched model."""

    def make(name, tensors=lambda t: t, config=lambda c: c):
        folder = tmp_path / "published"
        shutil.copytree(GOLDEN / name, folder)
        save_file(tensors(load_file(folder / "model.safetensors")), folder / "model.safetensors")
        about = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config(about)))
        return folder, formers.load(GOLDEN / name)

    return make


def assert_same_model(one, other):
    for (name, value), (again, copy) in zip(
        one.model.state_dict().items(), other.model.state_dict().items(), strict=True
    ):
        assert name == again
        assert torch.equal(value, copy), name
    assert one.config == other.config


def rename_tensors(*pairs):
    def change(tensors):
        out = {}
        for name, value in tensors.items():
            for old, new in pairs:
                name = name.replace(old, new)
            out[name] = value
        return out

    return change


def test_gamma_and_beta(write_published):
    change = rename_tensors(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
    folder, known = write_published("BertForPreTraining-0", change)
    assert any("gamma" in name for name in load_file(folder / "model.safetensors"))
    assert_same_model(formers.load(folder), known)


@pytest.mark.parametrize(
    ("name", "prefix"),
    [("BertForPreTraining-0", "bert."), ("GPT2LMHeadModel-0", "transformer."), ("RobertaForMaskedLM-0", "roberta.")],
)
def test_missing_base_prefix(write_published, name, prefix):
    folder, known = write_published(name, rename_tensors((prefix, "")))
    assert_same_model(formers.load(folder), known)


def test_a_base_prefix_where_none_is_written_today(write_published):
    def change(tensors):
        return {name if name == "lm_head.weight" else "transformer." + name: value for name, value in tensors.items()}

    folder, known = write_published("T5ForConditionalGeneration-1", change)
    assert_same_model(formers.load(folder), known)


def test_leftover_buffers_of_gpt2(write_published):
    def change(tensors):
        return tensors | {
            "transformer.h.0.attn.bias": torch.ones(1, 1, 24, 24).tril(),
            "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        }

    folder, known = write_published("GPT2LMHeadModel-0", change)
    assert_same_model(formers.load(folder), known)


def test_leftover_buffers_of_bert_and_roberta(write_published):
    folder, known = write_published(
        "BertForPreTraining-0", lambda t: t | {"bert.embeddings.position_ids": torch.arange(27)[None]}
    )
    assert_same_model(formers.load(folder), known)


def test_leftover_bias_table_of_t5(write_published):
    extra = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.randn(8, 3)}
    folder, known = write_published("T5ForConditionalGeneration-0", lambda t: t | extra)
    assert_same_model(formers.load(folder), known)


def test_tied_copies(write_published, tmp_path):
    def copies(tensors):
        table = tensors["shared.weight"]
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        return tensors | {name: table.clone() for name in names}

    folder, known = write_published("T5ForConditionalGeneration-0", copies)
    assert_same_model(formers.load(folder), known)
    shutil.rmtree(folder)
    folder, known = write_published(
        "GPT2LMHeadModel-0", lambda t: t | {"lm_head.weight": t["transformer.wte.weight"].clone()}
    )
    assert_same_model(formers.load(folder), known)
    shutil.rmtree(folder)

    def bert(tensors):
        return tensors | {
            "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
            "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
        }

    folder, known = write_published("BertForPreTraining-0", bert)
    assert_same_model(formers.load(folder), known)


def test_a_tied_copy_alone_is_enough(write_published):
    change = rename_tensors(("shared.weight", "encoder.embed_tokens.weight"))
    folder, known = write_published("T5ForConditionalGeneration-0", change)
    assert_same_model(formers.load(folder), known)


def test_a_copy_that_differs_is_an_error_that_names_it(write_published):
    folder, _ = write_published(
        "GPT2LMHeadModel-0", lambda t: t | {"lm_head.weight": t["transformer.wte.weight"] + 1e-3}
    )
    with pytest.raises(Error, match="'lm_head.weight' should be a copy of 'transformer.wte.weight' and is not"):
        formers.load(folder)


def test_t5_whose_config_says_tied_and_whose_file_says_otherwise(write_published):
    """transformers 5 writes tie_word_embeddings: true for every T5; the tensors tell."""
    folder, known = write_published("T5ForConditionalGeneration-1", config=lambda c: c | {"tie_word_embeddings": True})
    assert not known.config.tied
    assert_same_model(formers.load(folder), known)


def test_t5_v11_as_first_published(write_published):
    """No scale_decoder_outputs, tie_word_embeddings false: the head is neither tied nor scaled."""

    def old(config):
        for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act", "classifier_dropout"):
            config.pop(key, None)
        return config | {"tie_word_embeddings": False, "n_positions": 512, "output_past": True}

    folder, known = write_published("T5ForConditionalGeneration-1", config=old)
    model = formers.load(folder)
    assert_same_model(model, known)
    assert not model.config.scaled


def test_old_config_keys(write_published):
    def gpt2(config):
        return config | {
            "n_ctx": 24, "n_special": 0, "predict_special_tokens": True, "output_past": True, "torch_dtype": "float32",
            "task_specific_params": {"text-generation": {"do_sample": True}}, "gradient_checkpointing": False,
        }  # fmt: skip

    folder, known = write_published("GPT2LMHeadModel-0", config=gpt2)
    assert_same_model(formers.load(folder), known)
    shutil.rmtree(folder)

    def bert(config):
        keys = ("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_type")
        return config | dict.fromkeys(keys, 768) | {"position_embedding_type": "absolute", "finetuning_task": "sst-2"}

    folder, known = write_published("BertForPreTraining-0", config=bert)
    assert_same_model(formers.load(folder), known)


def test_config_without_model_type(write_published):
    def strip(config):
        return {k: v for k, v in config.items() if k not in ("model_type", "transformers_version")}

    folder, known = write_published("BertForPreTraining-0", config=strip)
    assert_same_model(formers.load(folder), known)
    about = json.loads((folder / "config.json").read_text())
    del about["architectures"]
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(Error, match="model_type is missing.*--family bert"):
        formers.load(folder)
    bare = formers.load(folder, family="bert")
    assert bare.head == "none"
    ids = torch.tensor([[7, 8, 9]])
    torch.testing.assert_close(bare.hidden(ids), known.hidden(ids))


def test_aliases_of_config_keys(write_published):
    def change(config):
        config["hidden_size"] = config.pop("n_embd")
        config["num_hidden_layers"] = config["n_layer"]
        return config

    folder, known = write_published("GPT2LMHeadModel-0", config=change)
    assert_same_model(formers.load(folder), known)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"num_hidden_layers": 17}))
    with pytest.raises(Error, match="num_hidden_layers and n_layer contradict each other"):
        formers.load(folder)


def test_a_bare_bert_without_its_pooler(write_published, tmp_path):
    def change(tensors):
        return {k.removeprefix("bert."): v for k, v in tensors.items() if k.startswith("bert.") and "pooler" not in k}

    folder, known = write_published("BertForPreTraining-0", change, lambda c: c | {"architectures": ["BertModel"]})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bare = formers.load(folder)
    assert not bare.model.heads
    torch.testing.assert_close(bare.hidden(torch.tensor([[7, 8]])), known.hidden(torch.tensor([[7, 8]])))
    formers.save(bare, tmp_path / "own")
    assert not formers.load(tmp_path / "own").model.heads
    formers.export(bare, tmp_path / "hf")
    assert not any("pooler" in name for name in load_file(tmp_path / "hf" / "model.safetensors"))


def test_untied_bert_with_the_older_name_of_its_bias(write_published):
    """Before version 4.4x an untied head had one bias, named cls.predictions.bias."""

    def change(tensors):
        tensors["cls.predictions.bias"] = tensors.pop("cls.predictions.decoder.bias")
        return tensors

    folder, known = write_published("BertForMaskedLM-1", change)
    assert_same_model(formers.load(folder), known)


LEFTOVERS = {
    "GPTNeoForCausalLM-0": {"transformer.h.1.attn.attention.bias": (1, 1, 24, 24),
                            "transformer.h.1.attn.attention.masked_bias": ()},
    "GPTJForCausalLM-0": {"transformer.h.0.attn.bias": (1, 1, 24, 24), "transformer.h.0.attn.masked_bias": ()},
    "GPTNeoXForCausalLM-0": {"gpt_neox.layers.0.attention.bias": (1, 1, 24, 24),
                             "gpt_neox.layers.0.attention.masked_bias": (),
                             "gpt_neox.layers.0.attention.rotary_emb.inv_freq": (2,)},
    "OpenAIGPTLMHeadModel-0": {"transformer.h.0.attn.bias": (1, 1, 24, 24), "transformer.position_ids": (24,)},
    "AlbertForPreTraining-1": {"albert.embeddings.position_ids": (1, 27)},
    "ErnieForPreTraining-1": {"ernie.embeddings.position_ids": (1, 27)},
    "BartForConditionalGeneration-0": {"model.encoder.version": (1,), "model.decoder.version": (1,)},
}  # fmt: skip


@pytest.mark.parametrize("name", LEFTOVERS)
def test_leftovers_of_the_others(write_published, name):
    folder, known = write_published(
        name, lambda t: t | {key: torch.ones(shape) for key, shape in LEFTOVERS[name].items()}
    )
    assert_same_model(formers.load(folder), known)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_positions_that_are_computed_must_be_the_files(write_published, dtype):
    table = marian_positions(24, 15).to(dtype)
    extra = {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    folder, known = write_published("MarianMTModel-0", lambda t: t | extra)
    assert_same_model(formers.load(folder), known)
    name = "model.decoder.embed_positions.weight"
    for wrong in (table.flip(1), table + 0.1, table[:, :-1], torch.ones(24, 15), torch.ones(())):
        tensors = load_file(folder / "model.safetensors")
        save_file(tensors | {name: wrong.contiguous()}, folder / "model.safetensors")
        with pytest.raises(Error, match=f"'{name}' is not the table"):
            formers.load(folder)


def marian_positions(rows, width):
    """As transformers fills it: numpy, all sines first."""
    power = np.array([[place / 10000 ** (2 * (i // 2) / width) for i in range(width)] for place in range(rows)])
    return torch.from_numpy(np.concatenate([np.sin(power[:, 0::2]), np.cos(power[:, 1::2])], 1)).float()


@pytest.mark.parametrize(
    "old",
    [
        {"rotary_pct": 1.0}, {"rotary_emb_base": 300.0}, {"rope_theta": 300.0}, {"partial_rotary_factor": 1.0},
        {"attention_probs_dropout_prob": 0.3, "hidden_dropout_prob": 0.2}, {"rotary_pct": 1.0, "rope_theta": 9.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "rotary_pct": 0.5, "rotary_emb_base": 7.0},
    ],
    ids=str,
)  # fmt: skip
def test_rotary_settings_of_old_files(write_published, old):
    transformers = pytest.importorskip("transformers")
    folder, _ = write_published(
        "GPTNeoXForCausalLM-0", config=lambda c: {k: v for k, v in c.items() if k != "rope_parameters"} | old
    )
    (folder / "model.safetensors").unlink()
    config = transformers.GPTNeoXConfig.from_pretrained(folder)
    model = transformers.GPTNeoXForCausalLM(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.3)
    about = (folder / "config.json").read_text()
    model.save_pretrained(folder)
    (folder / "config.json").write_text(about)
    f, ids = formers.load(folder), torch.tensor([[5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        assert (f.logits(ids) - model(ids).logits).abs().max() <= 1e-5
    assert (f.config.dropout, f.config.attention_dropout) == (config.hidden_dropout, config.attention_dropout)


def test_bloom_without_biases_is_refused(write_published):
    """transformers' slow_but_exact leaves out two biases of each layer."""
    folder, known = write_published(
        "BloomForCausalLM-0", config=lambda c: c | {"slow_but_exact": True, "pretraining_tp": 2}
    )
    with pytest.raises(Error, match="slow_but_exact: formers cannot honour True"):
        formers.load(folder)
    assert_same_model(formers.load(folder, ignore=["slow_but_exact"]), known)


def test_gamma_and_beta_of_berts_children(write_published):
    for name in ("AlbertForPreTraining-1", "ErnieForPreTraining-1"):
        change = rename_tensors(("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        folder, known = write_published(name, change)
        assert_same_model(formers.load(folder), known)
        shutil.rmtree(folder)


def test_older_configs_of_the_others(write_published, tmp_path):
    def neox(config):
        rope = config.pop("rope_parameters")
        old = {"rotary_pct": rope["partial_rotary_factor"], "rotary_emb_base": int(rope["rope_theta"])}
        return config | old | {"rope_scaling": None, "model_type": "gpt_neox"}

    folder, known = write_published("GPTNeoXForCausalLM-0", config=neox)
    assert_same_model(formers.load(folder), known)
    formers.export(formers.load(folder), tmp_path / "neox")
    assert_same_model(formers.load(tmp_path / "neox"), known)
    (folder / "config.json").write_text(
        json.dumps(json.loads((folder / "config.json").read_text()) | {"rope_scaling": {"type": "linear", "factor": 2}})
    )
    with pytest.raises(Error, match="rope_scaling: formers cannot honour"):
        formers.load(folder)
    shutil.rmtree(folder)

    def bloom(config):
        config["n_embed"] = config.pop("hidden_size")
        config["num_attention_heads"] = config.pop("n_head")
        return config | {"masked_softmax_fusion": True, "bias_dropout_fusion": True, "offset_alibi": 100}

    folder, known = write_published("BloomForCausalLM-0", config=bloom)
    assert_same_model(formers.load(folder), known)
    shutil.rmtree(folder)
    folder, known = write_published(
        "BartForConditionalGeneration-0",
        config=lambda c: c | {"normalize_before": False, "add_final_layer_norm": False, "classif_dropout": 0.0,
                              "extra_pos_embeddings": 2, "add_bias_logits": False},
    )  # fmt: skip
    assert_same_model(formers.load(folder), known)


def test_bart_without_its_bias_of_zeros(write_published):
    def drop_tensors(tensors):
        assert not tensors.pop("final_logits_bias").any()
        return tensors

    folder, known = write_published("BartForConditionalGeneration-0", drop_tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_same_model(formers.load(folder), known)


def test_a_checkpoint_of_another_family(write_published):
    folder, _ = write_published(
        "GPTNeoForCausalLM-0", config=lambda c: c | {"model_type": "gptj", "architectures": None}
    )
    with pytest.raises(Error, match="gptj|unknown key"):
        formers.load(folder)
    shutil.rmtree(folder)
    folder, _ = write_published("BertForPreTraining-0")
    shutil.copy(GOLDEN / "ErnieForPreTraining-1" / "model.safetensors", folder / "model.safetensors")
    with pytest.raises(Error, match="is missing|unknown tensor"):
        formers.load(folder)


def test_what_is_unknown_or_missing_is_named(write_published):
    folder, _ = write_published(
        "BertForPreTraining-0", lambda t: t | {"bert.encoder.layer.7.output.dense.bias": torch.zeros(4)}
    )
    with pytest.raises(Error, match="unknown tensor 'bert.encoder.layer.7.output.dense.bias'"):
        formers.load(folder)
    shutil.rmtree(folder)

    def drop_tensors(tensors):
        del tensors["bert.encoder.layer.0.attention.self.key.weight"]
        return tensors

    folder, _ = write_published("BertForPreTraining-0", drop_tensors)
    with pytest.raises(Error, match="'encoder.layer.0.attention.self.key.weight' is missing"):
        formers.load(folder)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("quantization_config", {"bits": 4}, "unknown key 'quantization_config'.*--ignore quantization_config"),
        ("add_cross_attention", True, "add_cross_attention: formers cannot honour True"),
        ("pruned_heads", {"0": [1]}, "pruned_heads: formers cannot honour"),
        ("n_layer", "3", "n_layer: setting 'layers' must be int"),
        ("n_layer", 2.5, "setting 'layers' must be int"),
        ("n_head", True, "setting 'heads' must be int"),
        ("n_head", 7, "7 heads do not divide dim"),
        ("activation_function", "gleu", "activation_function: value 'gleu' is not supported"),
        ("layer_norm_epsilon", None, "setting 'eps' must be float"),
        ("attn_pdrop", 1.5, "attention_dropout must be at least 0 and below 1"),
        ("architectures", "GPT2Model", "architectures: 'GPT2Model' is not a list"),
        ("architectures", ["BertModel"], "'BertModel' is not a class of gpt2"),
        ("model_type", "gpt7", "unknown family 'gpt7'"),
        ("model_type", 5, "model_type: 5 is not a name"),
        ("vocab_size", -4, "vocab_size: vocab must be at least 1"),
        ("vocab_size", None, "vocab_size: setting 'vocab' must be int"),
    ],
)
def test_configs_that_cannot_be_honoured(write_published, key, value, message):
    folder, _ = write_published("GPT2LMHeadModel-0", config=lambda c: c | {key: value})
    with pytest.raises(Error, match=message) as caught:
        formers.load(folder)
    assert "config.json" in str(caught.value) or "heads do not divide" in message or "must be at least" in message


def test_an_unknown_key_can_be_ignored_and_survives_export(write_published, tmp_path):
    folder, known = write_published(
        "GPT2LMHeadModel-0", config=lambda c: c | {"my_note": {"한국어": 1}, "add_cross_attention": True}
    )
    model = formers.load(folder, ignore=("my_note", "add_cross_attention"))
    assert_same_model(model, known)
    formers.save(model, tmp_path / "own")
    formers.export(formers.load(tmp_path / "own"), tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["my_note"] == {"한국어": 1}


def test_what_belongs_to_a_checkpoint_survives_import_and_export(write_published, tmp_path):
    def change(config):
        return config | {
            "id2label": {str(i): name for i, name in enumerate("가나다라마")},
            "label2id": {n: i for i, n in enumerate("가나다라마")},
            "problem_type": "single_label_classification", "hidden_act": "gelu_pytorch_tanh", "sep_token_id": 9,
        }  # fmt: skip

    folder, _ = write_published("RobertaForSequenceClassification-1", config=change)
    beside = {
        "generation_config.json": b'{"max_length": 7}',
        "special_tokens_map.json": b'{"mask_token": "<mask>"}',
        "tokenizer_config.json": b'{"model_max_length": 24, "custom": [1, 2]}',
        "added_tokens.json": b'{"<kept>": 7}',
    }
    for name, data in beside.items():
        (folder / name).write_bytes(data)
    model = formers.load(folder)
    assert model.labels == tuple("가나다라마")
    formers.save(model, tmp_path / "own")
    again = formers.load(tmp_path / "own")
    assert again.labels == model.labels
    formers.export(again, tmp_path / "hf")
    for name, data in beside.items():
        assert (tmp_path / "hf" / name).read_bytes() == data
    out = json.loads((tmp_path / "hf" / "config.json").read_text())
    original = json.loads((folder / "config.json").read_text())
    assert out == original


def test_other_heads_take_what_they_can_and_start_the_rest_anew(write_published):
    folder, known = write_published("BertForPreTraining-0")
    with pytest.warns(UserWarning, match=r"new, untrained: heads.classify.out.bias, heads.classify.out.weight"):
        classify = formers.load(folder, head="classify", labels=["no", "yes", "maybe"])
    assert torch.equal(classify.model.heads["classify"].dense.weight, known.model.heads["nsp"].dense.weight)
    assert classify.logits(torch.tensor([[5, 6]])).shape == (1, 3)
    mlm = formers.load(folder, head="mlm")
    ids = torch.tensor([[5, 6, 7]])
    torch.testing.assert_close(mlm.logits(ids), known.logits(ids)["mlm"])
    with pytest.raises(Error, match="BERT has no head 'double'.*It can have"):
        formers.load(folder, head="double")


def test_a_tagger_does_not_inherit_a_classifiers_last_layer(write_published, tmp_path):
    folder, known = write_published("RobertaForSequenceClassification-1")
    with pytest.warns(UserWarning, match="heads.tag.out"):
        tag = formers.load(folder, head="tag")
    assert not torch.equal(tag.model.heads["tag"].out.weight, known.model.heads["classify"].out.weight)
    formers.save(known, tmp_path / "own")
    with pytest.warns(UserWarning, match="heads.tag.out"):
        formers.load(tmp_path / "own", head="tag")


def test_our_own_directory_with_another_head(write_published, tmp_path):
    _, known = write_published("BertForPreTraining-0")
    formers.save(known, tmp_path / "own")
    with pytest.warns(UserWarning, match="heads.choose.out"):
        choose = formers.load(tmp_path / "own", head="choose")
    assert torch.equal(choose.model.heads["choose"].dense.weight, known.model.heads["nsp"].dense.weight)


def test_half_precision_and_shards(write_published, tmp_path):
    _, known = write_published("BertForPreTraining-0")
    formers.export(known, tmp_path / "hf", dtype=torch.bfloat16, shard=900)
    files = sorted(p.name for p in (tmp_path / "hf").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].startswith("model-00001-of-")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["dtype"] == "bfloat16"
    half = formers.load(tmp_path / "hf")
    assert half.dtype == torch.bfloat16
    for (name, value), again in zip(known.model.state_dict().items(), half.model.state_dict().values(), strict=True):
        assert torch.equal(value.bfloat16(), again), name
    assert formers.load(tmp_path / "hf", dtype=torch.float32).dtype == torch.float32
    formers.save(known, tmp_path / "own", shard=900)
    assert (tmp_path / "own" / "model.safetensors.index.json").exists()
    assert_same_model(formers.load(tmp_path / "own"), known)
