"""Names that other libraries, and formers before this version, give to settings and options.

Some are accepted as synonyms; each of the others gets an error that names ours, before any suggestion by spelling. A
target with a dot is a setting (`train.eval_every`), one without is an argument in Python and an option on the command
line (`num_samples`, --num-samples); `precision=fp16` names a value too. A name may mean several things: the first
target that the function, table or command at hand knows is the one. A sentence stands where there is nothing to name.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from .errors import Error

# Accepted, on the command line and in Python.
SYNONYMS: dict[str, tuple[str, ...]] = {
    # transformers, nanoGPT, litgpt: training
    "eval_steps": ("train.eval_every",),
    "save_steps": ("train.save_every",),
    "save_total_limit": ("train.keep_last",),
    "gradient_accumulation_steps": ("train.accumulate",),
    "max_grad_norm": ("train.grad_clip",),
    "max_length": ("tune.seq_length", "train.seq_length", "max_new_tokens"),
    "block_size": ("tune.seq_length", "train.seq_length"),
    "learning_rate": ("train.lr",),
    "lr": ("train.lr",),
    "batch": ("tune.batch_size",),
    "batch_size": ("batch",),
    # transformers: generation
    "num_return_sequences": ("num_samples",),
    "no_repeat_ngram_size": ("no_repeat_ngram",),
    # options of earlier versions that have a better name now
    "way": ("method",),
    "keep": ("label_filter",),
    "sure": ("min_probability",),
    "names": ("label_names",),
    "top": ("top_k",),
    "same": ("same_word",),
    "memory": ("memory_length",),
}
DO_SAMPLE = "do_sample"  # accepted where there is a temperature: False is temperature 0
# What differs from what the other library means by the name.
SYNONYM_NOTES = {"max_length": "max_length is taken as max_new_tokens: the prompt does not count"}

TRAINING_HINTS: dict[str, tuple[str, ...] | str] = {
    # transformers (TrainingArguments and its example scripts), trl
    "num_train_epochs": ("tune.epochs", "train.steps"),
    "max_steps": ("train.steps",),
    "per_device_train_batch_size": ("tune.batch_size", "train.batch_tokens"),
    "per_gpu_train_batch_size": ("tune.batch_size", "train.batch_tokens"),
    "train_batch_size": ("tune.batch_size", "train.batch_tokens"),
    "batch_size": ("tune.batch_size", "train.batch_tokens"),
    "batch": ("train.batch_tokens",),
    "per_device_eval_batch_size": ("batch", "train.eval_batches"),
    "auto_find_batch_size": "choose the size of a batch with tune.batch_size or train.batch_tokens",
    "warmup_ratio": ("tune.warmup_ratio", "train.warmup_steps"),
    "lr_scheduler_type": ("train.schedule",),
    "lr_scheduler": ("train.schedule",),
    "optim": ("train.optimizer",),
    "adam_beta1": ("train.betas",),
    "adam_beta2": ("train.betas",),
    "adam_betas": ("train.betas",),
    "adam_epsilon": ("train.eps",),
    "adam_eps": ("train.eps",),
    "fp16": ("dtype=fp16", "train.precision=fp16"),
    "bf16": ("dtype=bf16", "train.precision=bf16"),
    "fp32": ("dtype=fp32", "train.precision=fp32"),
    "tf32": ("dtype=fp32", "train.precision=fp32"),
    "mixed_precision": ("dtype", "train.precision"),
    "torch_compile": ("train.compile",),
    "gradient_checkpointing": ("train.activation_checkpointing",),
    "dataloader_num_workers": ("train.workers", "workers"),
    "num_workers": ("train.workers", "workers"),
    "eval_strategy": ("train.eval_every",),
    "evaluation_strategy": ("train.eval_every",),
    "save_strategy": ("train.save_every",),
    "load_best_model_at_end": "the best checkpoint is kept and becomes the model (train.keep_best)",
    "metric_for_best_model": ("tune.metric",),
    "early_stopping_patience": ("tune.patience",),
    "label_smoothing_factor": ("tune.label_smoothing", "objective.label_smoothing"),
    "logging_steps": "every step is written to metrics.jsonl in the folder of the run",
    "log_interval": "every step is written to metrics.jsonl in the folder of the run",
    "logging_dir": ("out",),
    "report_to": "say --wandb or --tensorboard",
    "run_name": ("out",),
    "resume_from_checkpoint": ("resume",),
    "overwrite_output_dir": ("overwrite",),
    "full_determinism": ("deterministic", "train.deterministic"),
    "data_seed": ("seed", "train.seed"),
    "do_train": "leave it out: pretrain and finetune train, and evaluate as they go",
    "do_eval": "leave it out: pretrain and finetune evaluate as they go",
    "do_predict": "leave it out: a test file is evaluated at the end (--test)",
    "push_to_hub": "formers export writes a folder, which the tools of the hub upload",
    "use_cpu": ("device=cpu",),
    "no_cuda": ("device=cpu",),
    "deepspeed": ("train.parallel=fsdp",),
    "fsdp": ("train.parallel=fsdp",),
    "ddp": ("train.parallel=ddp",),
    "strategy": ("train.parallel",),
    "nproc_per_node": "start several processes with torchrun --nproc-per-node N -m formers",
    "group_by_length": "leave it out: batches are packed by tokens, without padding",
    "packing": "leave it out: batches are packed by tokens, without padding",
    "remove_unused_columns": ("columns",),
    "train_file": ("train", "data"),
    "train_dataset": ("train", "data.source"),
    "dataset_name": ("train", "data"),
    "validation_file": ("valid", "data.valid"),
    "eval_dataset": ("valid", "data.valid"),
    "test_file": ("test",),
    "validation_split_percentage": ("data.valid_fraction", "held_out"),
    "max_train_samples": ("data.limit",),
    "max_seq_length": ("tune.seq_length", "train.seq_length", "window"),
    "max_source_length": ("tune.seq_length", "train.seq_length"),
    "max_target_length": ("tune.max_output_tokens", "max_new_tokens"),
    "max_answer_length": ("tune.max_answer_tokens",),
    "doc_stride": ("tune.stride", "stride"),
    "source_prefix": ("tune.prefix",),
    "text_column_name": ("columns", "column"),
    "text_column": ("columns", "column"),
    "label_column_name": ("columns",),
    "tokenizer_name": ("tokenizer", "data.tokenizer"),
    "mlm_probability": ("objective.mask_rate", "mask_rate"),
    "problem_type": ("task",),
    "task_name": ("task",),
    "model_name_or_path": "the model comes first, as in: formers finetune MODEL --train FILE",
    "pretrained_model_name_or_path": "the model comes first, as in: formers generate MODEL PROMPT",
    "lora_r": ("lora", "tune.lora"),
    "lora_rank": ("lora", "tune.lora"),
    "freeze_base_model": ("tune.freeze=-1",),
    "layerwise_lr_decay": ("tune.layer_decay",),
    "class_weights": ("tune.balance=true",),
    # litgpt, nanoGPT, PyTorch Lightning
    "max_iters": ("train.steps",),
    "max_epochs": ("tune.epochs", "train.steps"),
    "num_epochs": ("tune.epochs", "train.steps"),
    "eval_interval": ("train.eval_every",),
    "eval_iters": ("train.eval_batches",),
    "eval_batches": ("train.eval_batches",),
    "save_interval": ("train.save_every",),
    "always_save_checkpoint": ("train.save_every",),
    "global_batch_size": ("train.batch_tokens",),
    "micro_batch_size": ("tune.batch_size", "train.batch_tokens"),
    "accumulate_grad_batches": ("train.accumulate",),
    "gradient_clip_val": ("train.grad_clip",),
    "max_norm": ("train.grad_clip",),
    "warmup_iters": ("train.warmup_steps",),
    "lr_warmup_steps": ("train.warmup_steps",),
    "lr_warmup_fraction": ("tune.warmup_ratio", "train.warmup_steps"),
    "lr_decay_iters": ("train.steps",),
    "min_lr": ("train.schedule",),
    "decay_lr": ("train.schedule",),
    "beta1": ("train.betas",),
    "beta2": ("train.betas",),
    "init_from": ("init",),
    "checkpoint_dir": "the model comes first, as in: formers finetune MODEL --train FILE",
    "initial_checkpoint_dir": ("init",),
    "out_dir": ("out",),
    # sentence-transformers
    "evaluation_steps": ("train.eval_every",),
    "checkpoint_save_steps": ("train.save_every",),
    "checkpoint_save_total_limit": ("train.keep_last",),
    "use_amp": ("dtype=bf16", "train.precision=bf16"),
    "steps_per_epoch": ("train.steps",),
    # fairseq
    "max_update": ("train.steps",),
    "max_epoch": ("tune.epochs", "train.steps"),
    "update_freq": ("train.accumulate",),
    "max_sentences": ("tune.batch_size", "train.batch_tokens"),
    "clip_norm": ("train.grad_clip",),
    "warmup_updates": ("train.warmup_steps",),
    "total_num_update": ("train.steps",),
    "tokens_per_sample": ("train.seq_length",),
    "max_source_positions": ("model.context", "tune.seq_length", "train.seq_length"),
    "save_interval_updates": ("train.save_every",),
    "keep_interval_updates": ("train.keep_last",),
    "keep_last_epochs": ("train.keep_last",),
    "keep_best_checkpoints": ("train.keep_best",),
    "validate_interval_updates": ("train.eval_every",),
    "best_checkpoint_metric": ("tune.metric",),
    "save_dir": ("out",),
    "restore_file": ("init",),
    "arch": "the family comes first, as in: formers pretrain transformer --data FILE",
    "criterion": ("objective.name",),
    "mask_prob": ("objective.mask_rate", "mask_rate"),
    "mask_length": ("objective.mean_span_length", "mean_span_length"),
    "poisson_lambda": ("objective.mean_span_length", "mean_span_length"),
    "share_all_embeddings": ("model.shared",),
    # gensim
    "vector_size": ("model.dim",),
    "negative": ("model.negatives",),
    "sg": ("model.kind",),
    "cbow_mean": ("model.kind",),
    # our own earlier names
    "check": ("train.eval_every",),
    "checks": ("tune.evals_per_epoch",),
    "looks": ("train.eval_batches",),
    "save": ("train.save_every",),
    "last": ("train.keep_last",),
    "best": ("train.keep_best",),
    "every": ("train.keep_every",),
    "tokens": ("max_new_tokens", "train.batch_tokens"),
    "ramp": ("train.batch_rampup_steps",),
    "decay": ("train.weight_decay",),
    "clip": ("train.grad_clip",),
    "warmup": ("train.warmup_steps",),
    "warm": ("tune.warmup_ratio",),
    "spike": ("train.spike_factor",),
    "skips": ("train.max_bad_steps",),
    "short": ("train.short_length", "short_seq_prob"),
    "length": ("tune.seq_length", "train.seq_length"),
    "carry": ("train.carry_memory",),
    "checkpointing": ("train.activation_checkpointing",),
    "pieces": ("data.vocab_size", "vocab_size"),
    "held": ("data.valid", "valid"),
    "held_out": ("data.valid_fraction",),
    "between": ("data.label_separator",),
    "kind": ("data.tokenizer_kind", "objective.corruption"),
    "many": ("tune.multilabel",),
    "text": ("tune.label_as_text",),
    "most": ("tune.max_answer_tokens", "max_masked"),
    "output": ("out", "tune.max_output_tokens"),
    "long": ("tune.long_texts",),
    "both": ("tune.both_orders",),
    "auxiliary": ("tune.lm_loss_weight",),
    "smoothing": ("tune.label_smoothing", "objective.label_smoothing"),
}

MODEL_HINTS: dict[str, tuple[str, ...] | str] = {
    # config.json of transformers, and the configurations of litgpt, nanoGPT and fairseq
    "hidden_size": ("model.dim",),
    "d_model": ("model.dim",),
    "n_embd": ("model.dim",),
    "embedding_size": ("model.dim",),
    "encoder_embed_dim": ("model.dim",),
    "num_hidden_layers": ("model.layers",),
    "num_layers": ("model.layers",),
    "n_layer": ("model.layers",),
    "n_layers": ("model.layers",),
    "encoder_layers": ("model.layers",),
    "num_decoder_layers": ("model.decoder_layers",),
    "num_attention_heads": ("model.heads",),
    "num_heads": ("model.heads",),
    "n_head": ("model.heads",),
    "n_heads": ("model.heads",),
    "encoder_attention_heads": ("model.heads",),
    "decoder_attention_heads": ("model.decoder_heads",),
    "d_kv": ("model.head_dim",),
    "intermediate_size": ("model.ff",),
    "n_inner": ("model.ff",),
    "d_ff": ("model.ff",),
    "d_inner": ("model.ff",),
    "encoder_ffn_dim": ("model.ff",),
    "encoder_ffn_embed_dim": ("model.ff",),
    "decoder_ffn_dim": ("model.decoder_ff",),
    "max_position_embeddings": ("model.context",),
    "n_positions": ("model.context",),
    "n_ctx": ("model.context",),
    "block_size": ("model.context",),
    "vocab_size": ("data.vocab_size", "model.vocab"),
    "padded_vocab_size": ("data.vocab_size", "model.vocab"),
    "type_vocab_size": ("model.segments",),
    "hidden_act": ("model.act",),
    "activation_function": ("model.act",),
    "activation": ("model.act",),
    "layer_norm_eps": ("model.eps",),
    "layer_norm_epsilon": ("model.eps",),
    "norm_eps": ("model.eps",),
    "hidden_dropout_prob": ("model.dropout",),
    "resid_pdrop": ("model.dropout",),
    "dropout_rate": ("model.dropout",),
    "attention_probs_dropout_prob": ("model.attention_dropout",),
    "attn_pdrop": ("model.attention_dropout",),
    "embd_pdrop": ("model.embed_dropout",),
    "activation_dropout": ("model.act_dropout",),
    "classifier_dropout": ("model.head_dropout",),
    "initializer_range": ("model.init",),
    "tie_word_embeddings": ("model.tied",),
    "pad_token_id": ("model.pad",),
    "bos_token_id": ("model.bos",),
    "eos_token_id": ("model.eos",),
    "decoder_start_token_id": ("model.start",),
    "relative_attention_num_buckets": ("model.buckets",),
    "num_experts": ("model.experts",),
    "expert_capacity": ("model.capacity",),
    "mem_len": ("model.memory",),
    "num_labels": ("labels",),
    "id2label": ("labels",),
}

GENERATION_HINTS: dict[str, tuple[str, ...] | str] = {
    # transformers, vLLM
    "min_length": ("min_new_tokens",),
    "max_tokens": ("max_new_tokens", "train.batch_tokens"),
    "min_tokens": ("min_new_tokens",),
    "bad_words_ids": ("bad_words",),
    "stop_strings": ("stop",),
    "stopping_criteria": ("stop",),
    "stop_sequences": ("stop",),
    "assistant_model": ("draft",),
    "draft_model": ("draft",),
    "speculative_model": ("draft",),
    "streamer": ("stream",),
    "n": ("num_samples",),
    "best_of": ("num_beams",),
    "beam_width": ("num_beams",),
    "use_beam_search": ("num_beams",),
    "presence_penalty": ("repetition_penalty",),
    "frequency_penalty": ("repetition_penalty",),
    "return_full_text": "leave it out: the prompt is not part of the answer",
    "use_cache": "leave it out: keys and values are always cached",
    "num_beam_groups": "diverse beam search is not implemented: sample instead, with num_samples",
    "diversity_penalty": "diverse beam search is not implemented: sample instead, with num_samples",
    "load_in_8bit": ("dtype=int8",),
    "src_lang": ("source",),
    "source_lang": ("source", "columns"),
    "tgt_lang": ("to",),
    "target_lang": ("to", "columns"),
    "forced_bos_token_id": ("to",),
    # fairseq
    "beam": ("num_beams",),
    "nbest": ("num_samples",),
    "lenpen": ("length_penalty",),
    "max_len_b": ("max_new_tokens",),
    "min_len": ("min_new_tokens",),
    "sampling_topk": ("top_k",),
    "sampling_topp": ("top_p",),
    # our own earlier names
    "beams": ("num_beams",),
    "samples": ("num_samples",),
    "no_repeat": ("no_repeat_ngram",),
    "early": ("early_stopping",),
    "banned": ("bad_words",),
    "normalise": ("length_normalisation",),
    "typical": ("typical_p",),
}

COMMAND_HINTS: dict[str, tuple[str, ...] | str] = {
    # what commands read and write
    "output_dir": ("out",),
    "output_path": ("out",),
    "output_file": ("out",),
    "input": ("file", "data"),
    "input_file": ("file", "data"),
    "json": ("as_json",),
    "torch_dtype": ("dtype",),
    "precision": ("dtype", "train.precision"),
    "device_map": ("device",),
    "max_shard_size": ("shard", "shard_size"),
    "trust_remote_code": "leave it out: no code of a checkpoint is ever run",
    "model_type": ("family",),
    "revision": "name it with the model, as in hub:owner/name@revision",
    "num_proc": ("workers",),
    "preprocessing_num_workers": ("workers",),
    "json_keys": ("column",),
    "seq_length": ("length",),
    "objective_options": ("option",),
    # sentence-transformers
    "normalize": ("normalise",),
    "normalize_embeddings": ("normalise",),
    "pooling": ("pool",),
    "pooling_mode": ("pool",),
    "output_value": ("level",),
    "prompt_name": ("prefix", "tune.prefix"),
    "top_n": ("k", "top_k"),
    # tokenizers, SentencePiece
    "size": ("vocab_size",),
    "min_frequency": ("min_count",),
    "limit_alphabet": ("alphabet",),
    "do_lower_case": ("lower",),
    "lowercase": ("lower",),
    # options of the objectives in earlier versions
    "rate": ("mask_rate", "noise_density"),
    "masked": ("mask_ratio",),
    "random": ("random_ratio",),
    "grams": ("max_ngram",),
    "across": ("across_documents",),
    "streams": ("num_streams",),
    "rows": ("streams_per_batch",),
    "sampled": ("num_sampled",),
    "answer": ("pair_part",),
    "fallback": ("random_fallback",),
    "share": ("target_ratio",),
    "context": ("context_factor",),
    "released": ("as_released",),
    "infill": ("infill_ratio",),
    "mean": ("mean_span_length",),
    "permute": ("permute_ratio",),
    "delete": ("delete_ratio",),
    "insert": ("insert_ratio",),
    "rotate": ("rotate_ratio",),
    "balance": ("balance_weight",),
    "prefix": ("is_prefix_lm",),
    "task": ("task_id",),
    "turns": ("num_turns",),
}
HINT_TABLES = (TRAINING_HINTS, MODEL_HINTS, GENERATION_HINTS, COMMAND_HINTS)

# Other words for tasks and verbs, which are accepted.
TASK_SYNONYMS = {
    "ner": "tag",
    "token-classification": "tag",
    "question-answering": "answer",
    "summarize": "summarise",
    "summarization": "summarise",
}
TASK_HINTS = {
    "text-classification": "classify",
    "sequence-classification": "classify",
    "sentiment-analysis": "classify",
    "classification": "classify",
    "regression": "regress",
    "sts": "regress",
    "pos": "tag",
    "tagging": "tag",
    "qa": "answer",
    "squad": "answer",
    "multiple-choice": "choose",
    "translation": "translate",
    "language-modeling": "lm",
    "causal-lm": "lm",
    "text-generation": "lm",
    "clm": "lm",
    "mlm": "lm",
    "masked-lm": "lm",
}
VERB_SYNONYMS = {"neighbors": "neighbours", "summarize": "summarise"}
# Commands that people look for, and what does it here.
COMMAND_NAME_HINTS = {
    "train": "formers pretrain FAMILY trains on text, formers finetune MODEL on the examples of a task",
    "fit": "formers pretrain FAMILY trains on text, formers finetune MODEL on the examples of a task",
    "predict": "formers classify, score, tag, answer and choose apply a fine-tuned model",
    "sample": "formers generate MODEL PROMPT continues a text",
    "chat": "formers generate MODEL PROMPT continues a text",
    "complete": "formers generate MODEL PROMPT continues a text",
    "fill-mask": "formers fill MODEL TEXT fills the blanks of a text",
    "encode": "formers embed MODEL turns texts into vectors",
    "eval": "formers evaluate MODEL --data FILE measures a model",
    "test": "formers evaluate MODEL --data FILE measures a model",
    "perplexity": "formers evaluate MODEL --data FILE measures a model",
    "convert": "formers import reads a checkpoint, formers export writes one",
    "download": "formers import hub:owner/name OUT fetches a checkpoint from the hub",
    "preprocess": "formers prepare FILES --tokenizer TOKENIZER --out OUT makes a token store",
    "tokenize": "formers tokenizer show TOKENIZER TEXT shows the tokens of a text",
}


def list_targets(name: str) -> Iterator[str]:
    """Yield our names for one of another library, synonyms first; a sentence is not among them."""
    yield from SYNONYMS.get(name, ())
    for table in HINT_TABLES:
        found = table.get(name, ())
        if not isinstance(found, str):
            yield from found


def get_sentence(name: str) -> str | None:
    """The answer to a name that stands for nothing of ours, if there is one."""
    return next((found for table in HINT_TABLES if isinstance(found := table.get(name), str)), None)


def resolve_setting(key: str, tables: Collection[str]) -> str:
    """The dotted name of a setting of one of these tables that is given by a synonym; any other key as it is."""
    table, dot, name = key.rpartition(".")
    for target in SYNONYMS.get(name, ()):
        owner, dotted, _ = target.rpartition(".")
        if dotted and (owner == table if dot else owner in tables):
            return target
    return key


def resolve_settings(given: Mapping[str, Any], tables: Collection[str]) -> dict[str, Any]:
    """Settings with each synonym replaced by our name; one that is given by two names is an error."""
    found: dict[str, str] = {}
    for key in given:
        if (first := found.setdefault(resolve_setting(key, tables), key)) != key:
            raise Error(f"{first} and {key} are the same setting", fix="give one of them")
    return {ours: given[key] for ours, key in found.items()}


def resolve_tables(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables of settings with each synonym inside replaced by our name; what is not a table stays as it is."""
    found = dict(tables)
    for table, values in tables.items():
        if isinstance(values, Mapping):
            dotted = resolve_settings({f"{table}.{name}": value for name, value in values.items()}, ())
            found[table] = {name.removeprefix(f"{table}."): value for name, value in dotted.items()}
    return found


def resolve_generation_options(given: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Options of generate with each synonym replaced by our name; do_sample becomes a temperature."""
    found: dict[str, Any] = {}
    for key, value in given.items():
        ours = next((target for target in SYNONYMS.get(key, ()) if target in known), key)
        if ours in found or (ours != key and ours in given):
            raise Error(f"{key} and {ours} are the same option", fix="give one of them")
        if key in SYNONYM_NOTES:
            warnings.warn(SYNONYM_NOTES[key], stacklevel=4)
        found[ours] = value
    if (sample := found.pop(DO_SAMPLE, None)) is None:
        return found
    if not isinstance(sample, bool):
        raise Error(f"do_sample is True or False, got {sample!r}", fix="leave it out, or say temperature 0 for False")
    if sample and (found.get("num_beams") or 1) > 1:
        raise Error("beam search does not sample", fix="leave do_sample out, or num_beams")
    if not sample and found.get("temperature"):
        raise Error("do_sample=False and a temperature contradict each other", fix="leave one of them out")
    if found.get("temperature") is None:
        found["temperature"] = 1.0 if sample else 0.0
    return found


def explain_name(name: str, known: Collection[str], tables: Collection[str] = ()) -> str | None:
    """Say what a setting or argument of another library is called here; None for a name that the table does not have.

    `known` are the names that are possible where it was given, `tables` those of other settings, if not all are.
    """
    if (task := TASK_HINTS.get(name.replace("_", "-"))) in known:
        return f"formers calls it {task!r}"
    targets = list(list_targets(name))
    for target in targets:
        path, _, value = target.partition("=")
        bare = path.rpartition(".")[2]
        if bare in known:
            return f"formers calls it {bare!r}" + (f", with the value {value!r}" if value else "")
    if (sentence := get_sentence(name)) is not None:
        return sentence
    dotted = (target for target in targets if "." in target and (not tables or target.partition(".")[0] in tables))
    return next((f"formers calls it {target}" for target in dotted), None)


def explain_option(name: str, options: Collection[str], tables: Collection[str] = ()) -> str | None:
    """Say what an option of another library is called on the command line; None for one that the table does not have.

    `options` are those of the command, `tables` those whose settings it takes as --TABLE.NAME.
    """
    key = name.removeprefix("--").replace("-", "_").replace(".", "_")
    for target in list_targets(key):
        path, _, value = target.partition("=")
        table, dotted, bare = path.rpartition(".")
        for option in (f"--{bare.replace('_', '-')}", *((f"--{path}",) if dotted and table in tables else ())):
            if option in options or "." in option:
                return f"formers calls it {option}" + (f" {value}" if value else "")
    return get_sentence(key)


def resolve_option(name: str, options: Collection[str]) -> str | None:
    """The option of a command that another name is accepted for: --num-return-sequences gives --num-samples."""
    key = name.removeprefix("--").replace("-", "_")
    names = (f"--{target.replace('_', '-')}" for target in SYNONYMS.get(key, ()) if "." not in target)
    return next((option for option in names if option in options), None)


def resolve_task_name(name: str | None) -> str | None:
    """The name of a task that is given by it or by another word for it: "ner" is "tag". None stays None."""
    return TASK_SYNONYMS.get(str(name).lower().replace("_", "-"), name)
