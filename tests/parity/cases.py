"""Tiny random models of odd shapes, every head class that transformers has for these families.

Nothing here imports transformers at the top: the golden tests run without it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch

from formers.nn.head_pruning import find_attentions
from formers.registry import find_family
from tests.tolerance import Margins, bound_rounding

VOCAB = 61
COMMON = ("Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
HEADS = {
    "GPT2": (*COMMON, "LMHeadModel", "DoubleHeadsModel"),
    "Bert": (*COMMON, "ForPreTraining", "ForMaskedLM", "LMHeadModel", "ForNextSentencePrediction", "ForMultipleChoice"),
    "Roberta": (*COMMON, "ForMaskedLM", "ForCausalLM", "ForMultipleChoice"),
    "Albert": (*COMMON, "ForPreTraining", "ForMaskedLM", "ForMultipleChoice"),
    "Ernie": (
        *COMMON, "ForPreTraining", "ForMaskedLM", "ForCausalLM", "ForNextSentencePrediction", "ForMultipleChoice",
    ),
    "OpenAIGPT": ("Model", "LMHeadModel", "DoubleHeadsModel", "ForSequenceClassification"),
    "GPTNeo": (*COMMON, "ForCausalLM"),
    "GPTJ": ("Model", "ForSequenceClassification", "ForQuestionAnswering", "ForCausalLM"),
    "GPTNeoX": (*COMMON, "ForCausalLM"),
    "Bloom": (*COMMON, "ForCausalLM"),
    "Marian": ("Model", "MTModel", "ForCausalLM"),
    "Bart": (
        "Model", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering", "ForCausalLM",
    ),
    "MBart": (
        "Model", "ForConditionalGeneration", "ForSequenceClassification", "ForQuestionAnswering", "ForCausalLM",
    ),
    "SwitchTransformers": ("Model", "EncoderModel", "ForConditionalGeneration"),
    "T5": (*COMMON, "EncoderModel", "ForConditionalGeneration"),
    "MT5": (*COMMON, "EncoderModel", "ForConditionalGeneration"),
}  # fmt: skip

RENAMED = {"embed_out.weight": "lm_head.weight"}  # by transformers in memory; files keep the old name
PAIRS = ("T5", "MT5", "Bart", "MBart", "Marian", "SwitchTransformers")


@dataclass(frozen=True)
class Case:
    family: str
    ending: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.family}{self.ending}-{self.seed}"

    @property
    def pair(self) -> bool:
        """Encoder and decoder both run."""
        alone = ("EncoderModel", "ForTokenClassification", "ForCausalLM")
        return self.family in PAIRS and self.ending not in alone

    @property
    def shifts(self) -> bool:
        """The decoder's input is the source, shifted."""
        return self.pair and self.ending in ("ForSequenceClassification", "ForQuestionAnswering")

    @property
    def choices(self) -> bool:
        return self.ending in ("ForMultipleChoice", "DoubleHeadsModel")


SEEDS = {"SwitchTransformers": (0, 1, 2, 3), "Marian": (0, 1, 2)}
CASES = [
    Case(family, ending, seed)
    for family, endings in HEADS.items()
    for ending in endings
    for seed in SEEDS.get(family, (0, 1))
]


def make_config(case: Case) -> dict[str, Any]:
    """Odd shapes: head counts that are no power of two, other eps and activations, tied and untied, plain and gated."""
    r = random.Random(f"{case.family}-{case.seed}")
    heads, width = r.choice([1, 3, 5]), r.choice([4, 6, 7])
    layers, ff, eps = r.choice([1, 2, 3]), r.choice([13, 30, 41]), r.choice([1e-3, 1e-5, 1e-12])
    tied = case.seed % 2 == 0
    labels = 2 if case.ending == "ForQuestionAnswering" else 5
    tokens = {"pad_token_id": 0, "bos_token_id": 3, "eos_token_id": 4}
    if case.family == "OpenAIGPT":
        return {
            "vocab_size": VOCAB, "n_positions": 24, "n_embd": heads * width, "n_layer": layers, "n_head": heads,
            "afn": r.choice(["gelu", "relu", "silu"]), "layer_norm_epsilon": eps, "num_labels": labels,
            "summary_type": r.choice(["cls_index", "first"]), "summary_activation": ["gelu_new", "tanh"][case.seed],
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "summary_first_dropout": 0.0, **tokens,
        }  # fmt: skip
    if case.family == "GPTNeo":
        return {
            "vocab_size": VOCAB, "max_position_embeddings": 24, "hidden_size": heads * width, "num_layers": 3,
            "num_heads": heads, "attention_types": [[["global", "local"], 1], [["local"], 1]], "window_size": 4,
            "intermediate_size": r.choice([None, ff]), "activation_function": r.choice(["gelu_new", "relu"]),
            "layer_norm_epsilon": eps, "tie_word_embeddings": tied, "num_labels": labels, "classifier_dropout": 0.0,
            **tokens,
        }  # fmt: skip
    if case.family == "GPTJ":
        width = 6 if tied else 8
        return {
            "vocab_size": VOCAB, "n_positions": 24, "n_embd": heads * width, "n_layer": layers, "n_head": heads,
            "rotary_dim": 4 if tied else 8, "n_inner": r.choice([None, ff]), "layer_norm_epsilon": eps,
            "activation_function": r.choice(["gelu_new", "relu"]), "num_labels": labels, **tokens,
        }  # fmt: skip
    if case.family == "GPTNeoX":
        return {
            "vocab_size": VOCAB, "max_position_embeddings": 24, "hidden_size": heads * 8, "num_hidden_layers": layers,
            "num_attention_heads": heads, "intermediate_size": ff,
            "hidden_act": r.choice(["gelu", "gelu_fast", "relu"]),
            "layer_norm_eps": eps, "use_parallel_residual": tied, "attention_bias": r.choice([True, False]),
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
            "tie_word_embeddings": not tied, "num_labels": labels, "classifier_dropout": 0.0, **tokens,
        }  # fmt: skip
    if case.family == "SwitchTransformers":
        return {
            "vocab_size": VOCAB, "d_model": 12, "d_kv": width, "num_heads": heads, "d_ff": ff, "num_layers": 4,
            "num_decoder_layers": 3, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": r.choice([0, 1, 3]),
            "num_experts": r.choice([3, 4]), "expert_capacity": r.choice([2, 3]), "layer_norm_epsilon": eps,
            "router_bias": False, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
            "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1, "dropout_rate": 0.0,
            "router_jitter_noise": 0.0, "dense_act_fn": r.choice(["relu", "silu"]),
            "tie_word_embeddings": case.seed < 3,
            **({"num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0} if case.seed == 2 else {}),
        }  # fmt: skip
    if case.family in ("Bart", "MBart", "Marian"):
        own = {"share_encoder_decoder_embeddings": tied, "decoder_vocab_size": VOCAB if tied else VOCAB - 4}
        if case.seed == 2:  # sides that could share their embeddings and do not, and a decoder alone that need not
            tied, own = False, {"share_encoder_decoder_embeddings": case.ending != "ForCausalLM"}
        return {
            **(own if case.family == "Marian" and (case.ending != "ForCausalLM" or case.seed == 2) else {}),
            "vocab_size": VOCAB, "max_position_embeddings": 24, "d_model": 15, "encoder_layers": layers,
            "decoder_layers": r.choice([1, 2]), "encoder_attention_heads": 3, "decoder_attention_heads": 5,
            "encoder_ffn_dim": ff, "decoder_ffn_dim": 17, "activation_function": r.choice(["gelu", "relu", "silu"]),
            "scale_embedding": not tied, "tie_word_embeddings": tied, "num_labels": labels, "dropout": 0.0,
            "pad_token_id": 2, "bos_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 1,
        }  # fmt: skip
    if case.family == "Bloom":
        return {
            "vocab_size": VOCAB, "hidden_size": heads * width, "n_layer": layers, "n_head": heads,
            "layer_norm_epsilon": eps, "tie_word_embeddings": tied, "num_labels": labels, **tokens,
            "apply_residual_connection_post_layernorm": not tied,
        }  # fmt: skip
    if case.family == "GPT2":
        return {
            "vocab_size": VOCAB, "n_positions": 24, "n_embd": heads * width, "n_layer": layers, "n_head": heads,
            "n_inner": r.choice([None, ff]), "activation_function": r.choice(["gelu_new", "relu", "silu", "gelu"]),
            "layer_norm_epsilon": eps, "scale_attn_by_inverse_layer_idx": not tied,
            "scale_attn_weights": r.choice([True, False]),
            "tie_word_embeddings": tied, "pad_token_id": 0, "bos_token_id": 3, "eos_token_id": 4, "num_labels": labels,
            "summary_type": r.choice(["cls_index", "first", "mean"]),
            "summary_activation": [None, "gelu_new"][case.seed],
            "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "summary_first_dropout": 0.0,
            "classifier_dropout": 0.0,
        }  # fmt: skip
    if case.family in ("Bert", "Roberta", "Albert", "Ernie"):
        more = {}
        if case.family == "Albert":
            more = {"embedding_size": 5, "num_hidden_groups": 1 if tied else 2, "inner_group_num": 1 if tied else 2,
                    "num_hidden_layers": 3, "classifier_dropout_prob": 0.0, "num_labels": labels}  # fmt: skip
        if case.family == "Ernie":
            more = {"task_type_vocab_size": 4, "use_task_id": not tied}
        return {
            "vocab_size": VOCAB, "max_position_embeddings": 27, "type_vocab_size": 3, "hidden_size": heads * width,
            "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ff,
            "hidden_act": r.choice(["gelu", "gelu_new", "relu", "quick_gelu"]), "layer_norm_eps": eps,
            "is_decoder": case.ending in ("LMHeadModel", "ForCausalLM"), "tie_word_embeddings": tied,
            "pad_token_id": r.choice([0, 1, 2]) if case.family == "Roberta" else 0, "num_labels": labels,
            "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
            **({} if case.family == "Albert" else {"classifier_dropout": 0.0}), **more,
        }  # fmt: skip
    return {
        "vocab_size": VOCAB, "d_model": r.choice([12, 20]), "d_kv": width, "num_heads": heads, "d_ff": ff,
        "num_layers": layers, "num_decoder_layers": r.choice([1, 2]), "layer_norm_epsilon": eps,
        "feed_forward_proj": "relu" if tied else r.choice(["gated-gelu", "gated-silu", "gated-gelu"]),
        "tie_word_embeddings": tied, "relative_attention_num_buckets": r.choice([8, 12]),
        "relative_attention_max_distance": r.choice([9, 20]), "decoder_start_token_id": 0, "pad_token_id": 0,
        "eos_token_id": 1, "num_labels": labels, "dropout_rate": 0.0, "classifier_dropout": 0.0,
    }  # fmt: skip


def build_reference(case: Case) -> Any:
    """Their model, with weights that are nowhere zero."""
    import transformers

    made = getattr(transformers, f"{case.family}Config")(**make_config(case))
    model = getattr(transformers, case.family + case.ending)(made)
    if (
        case.family in ("T5", "MT5") and case.ending == "ForConditionalGeneration" and case.seed % 2
    ):  # a fresh v1.1 is tied by mistake
        model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB, made.d_model))
    for attempt in range(20):
        fill_weights(model, case.seed + 100 + 1000 * attempt)
        decides = "relu" in made.to_dict().values() or case.family == "SwitchTransformers"  # a kink, or a router
        if not decides or is_clear(case, model):
            return model
    raise AssertionError(f"{case.name}: no weights with a margin")


@torch.no_grad()
def fill_weights(model: Any, seed: int) -> None:
    """Draw weights that are nowhere zero."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in (p for p in model.parameters() if p.requires_grad):  # not Marian's sinusoids
        centre = 1.0 if parameter.dim() == 1 and parameter.mean() > 0.5 else 0.0
        parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + centre)


@torch.no_grad()
def is_clear(case: Case, model: Any) -> bool:
    """Whether a model's ReLUs and routers decide clearly on the inputs of its case. At 1e-7, rounding decides which
    side of a kink is taken: the outputs agree, the gradients do not, and neither is wrong."""
    with Margins() as margins:
        for side in list_padding_sides(case):
            run_transformers(case, model, draw_inputs(case, side))
    return margins.is_clear()


def list_padding_sides(case: Case) -> list[str]:
    """Padding on the left as well, except where transformers pools the first or the last column, padded or not, and
    where it counts the padding and cannot be handed positions (BART)."""
    pooled = ("ForPreTraining", "ForNextSentencePrediction", "ForMultipleChoice", "DoubleHeadsModel")
    first = case.ending in pooled or (case.family != "T5" and case.ending == "ForSequenceClassification")
    return ["right"] if first or case.family in ("Bart", "MBart", "Marian", "SwitchTransformers") else ["right", "left"]


def draw_inputs(case: Case, side: str = "right") -> dict[str, torch.Tensor]:
    """Padded rows of different lengths."""
    g = torch.Generator().manual_seed(case.seed + 7)
    shape = (2, 3, 11) if case.choices else (3, 11)
    ids = torch.randint(5, VOCAB, shape, generator=g)
    keep = torch.ones(shape, dtype=torch.bool)
    keep[-1, ..., 7:] = False
    keep[0, ..., 9:] = False
    if case.ending == "DoubleHeadsModel" and make_config(case)["summary_type"] == "mean":
        keep[:] = True  # transformers averages over the padding as well
    if case.shifts:
        ids[..., 6] = 1  # one end mark in each row, before the padding
        ids[0, 8] = 12
    if side == "left":
        keep, ids = keep.flip(-1), ids
        if case.shifts:
            ids[ids == 1] = 13
            ids[..., -1] = 1
    given = {"ids": ids, "keep": keep}
    if case.family in ("GPT2", "Bert", "Roberta", "Albert", "Ernie", "OpenAIGPT"):
        given["segments"] = torch.randint(0, 3, shape, generator=g)
    if make_config(case).get("use_task_id"):
        given["tasks"] = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(case.seed))
    if case.pair and not case.shifts:
        given["target"] = torch.randint(5, VOCAB - 4, (3, 8), generator=g)
        given["target_keep"] = torch.ones(3, 8, dtype=torch.bool)
        given["target_keep"][1, 5:] = False
        if side == "left":
            given["target_keep"] = given["target_keep"].flip(-1)
    return given


def rename_extra_inputs(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What is read beside the tokens, by their names."""
    names = {"segments": "token_type_ids", "tasks": "task_type_ids"}
    return {theirs: given[ours] for ours, theirs in names.items() if ours in given}


def run_transformers(case: Case, model: Any, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their outputs by our names, zero where there is padding."""
    keep = given["keep"]
    pad = model.config.pad_token_id
    call = {"input_ids": torch.where(keep, given["ids"], pad), "attention_mask": keep.long()}
    call |= rename_extra_inputs(given)
    if not case.pair and case.family not in (*PAIRS, "Bloom"):
        first = keep.long().argmax(-1, keepdim=True)
        positions = (torch.arange(keep.shape[-1]) - first).clamp(min=0)
        call["position_ids"] = positions + (pad + 1 if case.family == "Roberta" else 0)
    if "target" in given:
        call |= {
            "decoder_input_ids": torch.where(given["target_keep"], given["target"], pad),
            "decoder_attention_mask": given["target_keep"].long(),
        }
    if case.shifts:  # their shift runs over the padding; ours over each row's own tokens
        shifted = torch.where(keep, given["ids"], pad).roll(1, -1)
        rows, last = torch.arange(len(shifted)), keep.shape[-1] - 1 - keep.flip(-1).long().argmax(-1)
        begin = given["ids"][rows, last] if case.family == "MBart" else model.config.decoder_start_token_id
        shifted[rows, keep.long().argmax(-1)] = begin
        call |= {"decoder_input_ids": shifted, "decoder_attention_mask": keep.long()}
    if case.family == "Ernie" and case.choices and "tasks" in given:  # theirs forgets to lay them out as rows
        call["task_type_ids"] = given["tasks"].flatten(0, -2)
    if case.ending == "DoubleHeadsModel" and model.config.summary_type == "cls_index":
        places = torch.arange(keep.shape[-1])
        call["mc_token_ids"] = torch.where(keep, places, -1).amax(-1)
    if case.ending == "DoubleHeadsModel":
        call = {k: v.flatten(0, -2) if k not in ("mc_token_ids",) else v.flatten() for k, v in call.items()}
    out = model(**call)
    real = given.get("target_keep", keep)[..., None]
    if case.ending in ("Model", "EncoderModel"):
        return {"hidden": out.last_hidden_state * real}
    if case.ending == "ForQuestionAnswering":
        return {"answer": torch.stack((out.start_logits, out.end_logits), -1) * real}
    if case.ending == "ForPreTraining":
        if case.family == "Albert":
            return {"mlm": out.prediction_logits * real, "sop": out.sop_logits}
        return {"mlm": out.prediction_logits * real, "nsp": out.seq_relationship_logits}
    if case.ending == "DoubleHeadsModel":
        return {"lm": out.logits.view(*keep.shape, -1) * real, "choose": out.mc_logits.view(keep.shape[:-1])}
    return {"logits": out.logits * real if out.logits.shape[:-1] == keep.shape or "target" in given else out.logits}


def run_formers(former: Any, given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Our outputs by the same names."""
    if former.head == "none":
        return {"hidden": former.hidden(**given)}
    got = former.logits(**given)
    return got if isinstance(got, dict) else {"answer" if former.head == "answer" else "logits": got}


def pull_outputs(outputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """One number that depends on every output."""
    g = torch.Generator().manual_seed(11)
    return sum((o * torch.randn(o.shape, generator=g, dtype=o.dtype)).sum() for _, o in sorted(outputs.items()))


def compare_gradients(model, former):
    """Check that every parameter of ours has the gradient of its counterpart in transformers' model."""
    keys = find_family(former.family).definition.hf_format.build_key_map(former.config, former.head)
    parameters = dict(former.model.named_parameters())
    # The largest is the scale: a gradient that is small, or 0 (a key's bias), is a sum of large ones.
    bound = bound_rounding(
        model, max(1.0, *(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None))
    )
    seen = 0
    for move in keys.map_tensors(parameters):
        if parameters[move.ours].grad is None:
            continue
        for name, grad in move.save(parameters[move.ours].grad).items():
            expected = model.get_parameter(RENAMED.get(name, name)).grad
            if expected is None:  # an expert that no token took
                assert not grad.any(), name
                continue
            assert (grad - expected).abs().max() <= bound, name
            seen += 1
    assert seen >= len([p for p in model.parameters() if p.grad is not None and p.grad.any()])


def prune_one_head_per_layer(former) -> None:
    """Prune a head of every attention, another one in each layer."""
    gone: dict = {}
    for (kind, layer), (_, attention) in find_attentions(former.model.body).items():
        gone.setdefault(kind, {})[layer] = [layer % attention.original_heads]
    former.prune(gone if hasattr(former.model.body, "encoder") else next(iter(gone.values())))
