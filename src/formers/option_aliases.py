"""Names that other libraries, and formers before this version, give to settings and options.

Some are accepted as synonyms; each of the others gets an error that names ours, before any suggestion by spelling. A
target with a dot is a setting (`train.eval_every`), one without is an argument in Python and an option on the command
line (`num_samples`, --num-samples); `precision=fp16` names a value too. A name may mean several things: the first
target that the function, table or command at hand knows is the one. A sentence stands where there is nothing to name.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from .errors import Error

Value = TypeVar("Value")
GivenOptions = dict[str, Any]  # dynamic: options by name, of any type until Options has checked them


def parse_names(table: str) -> dict[str, tuple[str, ...]]:
    """Read lines of "our names: their names; …" as a table from each of their names to ours."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in ";".join(row for row in table.split("\n") if not row.startswith("#")).split(";"):
        ours, _, theirs = entry.partition(":")
        found |= {name: (*found.get(name, ()), *ours.split()) for name in theirs.split()}
    return found


# Accepted, on the command line and in Python: names of transformers, nanoGPT and litgpt, and our own earlier options.
SYNONYMS = parse_names("""
train.eval_every: eval_steps; train.save_every: save_steps; train.keep_last: save_total_limit
train.accumulate: gradient_accumulation_steps; train.grad_clip: max_grad_norm; train.lr: learning_rate lr
tune.seq_length train.seq_length max_new_tokens: max_length
tune.seq_length train.seq_length: block_size
tune.batch_size: batch; batch: batch_size; num_samples: num_return_sequences; no_repeat_ngram: no_repeat_ngram_size
method: way; label_filter: keep; min_probability: sure; label_names: names; top_k: top; same_word: same
memory_length: memory; validation: held_out
""")
DO_SAMPLE = "do_sample"  # accepted where there is a temperature: False is temperature 0
# What differs from what the other library means by the name.
SYNONYM_NOTES = {"max_length": "max_length is taken as max_new_tokens: the prompt does not count"}

# Our names, and after the colon those of others that mean it.
HINTS = parse_names("""
# Training: transformers and its example scripts, trl, litgpt, nanoGPT, PyTorch Lightning, sentence-transformers,
# fairseq, gensim, and our own earlier names
tune.epochs train.steps: num_train_epochs max_epochs num_epochs max_epoch
train.steps: max_steps max_iters lr_decay_iters steps_per_epoch max_update total_num_update
tune.batch_size train.batch_tokens: per_device_train_batch_size per_gpu_train_batch_size train_batch_size batch_size
tune.batch_size train.batch_tokens: micro_batch_size max_sentences
train.batch_tokens: batch global_batch_size
batch train.eval_batches: per_device_eval_batch_size
tune.warmup_ratio train.warmup_steps: warmup_ratio lr_warmup_fraction
train.schedule: lr_scheduler_type lr_scheduler min_lr decay_lr
train.optimizer: optim
train.betas: adam_beta1 adam_beta2 adam_betas beta1 beta2
train.eps: adam_epsilon adam_eps
dtype=fp16 train.precision=fp16: fp16
dtype=bf16 train.precision=bf16: bf16 use_amp
dtype=fp32 train.precision=fp32: fp32 tf32
dtype train.precision: mixed_precision
train.compile: torch_compile
train.activation_checkpointing: gradient_checkpointing checkpointing
train.workers workers: dataloader_num_workers num_workers
train.eval_every: eval_strategy evaluation_strategy eval_interval evaluation_steps validate_interval_updates check
train.save_every: save_strategy save_interval always_save_checkpoint checkpoint_save_steps save_interval_updates
train.save_every: save
tune.metric: metric_for_best_model best_checkpoint_metric
tune.patience: early_stopping_patience
tune.label_smoothing objective.label_smoothing: label_smoothing_factor smoothing
out: logging_dir run_name out_dir save_dir
resume: resume_from_checkpoint; overwrite: overwrite_output_dir
deterministic train.deterministic: full_determinism
seed train.seed: data_seed
device=cpu: use_cpu no_cuda
train.parallel=fsdp: deepspeed fsdp
train.parallel=ddp: ddp; train.parallel: strategy
columns: remove_unused_columns label_column_name
train data: train_file dataset_name
train data.source: train_dataset
valid data.valid: validation_file eval_dataset
test: test_file
data.valid_fraction validation: validation_split_percentage
data.limit: max_train_samples
tune.seq_length train.seq_length window: max_seq_length
tune.seq_length train.seq_length: max_source_length length
tune.max_output_tokens max_new_tokens: max_target_length
tune.max_answer_tokens: max_answer_length
tune.stride stride: doc_stride
tune.prefix: source_prefix
columns column: text_column_name text_column
tokenizer data.tokenizer: tokenizer_name
objective.mask_rate mask_rate: mlm_probability mask_prob
task: problem_type task_name
lora tune.lora: lora_r lora_rank
tune.freeze=-1: freeze_base_model; tune.layer_decay: layerwise_lr_decay; tune.balance=true: class_weights
train.eval_batches: eval_iters eval_batches looks
train.accumulate: accumulate_grad_batches update_freq
train.grad_clip: gradient_clip_val max_norm clip_norm clip
train.warmup_steps: warmup_iters lr_warmup_steps warmup_updates warmup
init: init_from initial_checkpoint_dir restore_file
train.keep_last: checkpoint_save_total_limit keep_interval_updates keep_last_epochs last
train.seq_length: tokens_per_sample
model.context tune.seq_length train.seq_length: max_source_positions
train.keep_best: keep_best_checkpoints best
objective.name: criterion
objective.mean_span_length mean_span_length: mask_length poisson_lambda
model.shared: share_all_embeddings; model.dim: vector_size; model.negatives: negative
model.kind: sg cbow_mean
tune.evals_per_epoch: checks; train.keep_every: every
max_new_tokens train.batch_tokens: tokens
train.batch_rampup_steps: ramp; train.weight_decay: decay; tune.warmup_ratio: warm; train.spike_factor: spike
train.max_bad_steps: skips
train.short_length short_seq_prob: short
train.carry_memory: carry
data.vocab_size vocab_size: pieces
data.valid valid: held
data.valid_fraction: held_out; data.label_separator: between
data.tokenizer_kind objective.corruption: kind
tune.multilabel: many; tune.label_as_text: text
tune.max_answer_tokens max_masked: most
out tune.max_output_tokens: output
tune.long_texts: long; tune.both_orders: both; tune.lm_loss_weight: auxiliary
# Configurations of models: config.json of transformers, litgpt, nanoGPT, fairseq
model.dim: hidden_size d_model n_embd embedding_size encoder_embed_dim
model.layers: num_hidden_layers num_layers n_layer n_layers encoder_layers
model.decoder_layers: num_decoder_layers
model.heads: num_attention_heads num_heads n_head n_heads encoder_attention_heads
model.decoder_heads: decoder_attention_heads; model.head_dim: d_kv
model.ff: intermediate_size n_inner d_ff d_inner encoder_ffn_dim encoder_ffn_embed_dim
model.decoder_ff: decoder_ffn_dim
model.context: max_position_embeddings n_positions n_ctx block_size
data.vocab_size model.vocab: vocab_size padded_vocab_size
model.segments: type_vocab_size
model.act: hidden_act activation_function activation
model.eps: layer_norm_eps layer_norm_epsilon norm_eps
model.dropout: hidden_dropout_prob resid_pdrop dropout_rate
model.attention_dropout: attention_probs_dropout_prob attn_pdrop
model.embed_dropout: embd_pdrop; model.act_dropout: activation_dropout; model.head_dropout: classifier_dropout
model.init: initializer_range; model.tied: tie_word_embeddings; model.pad: pad_token_id; model.bos: bos_token_id
model.eos: eos_token_id; model.start: decoder_start_token_id; model.buckets: relative_attention_num_buckets
model.experts: num_experts; model.capacity: expert_capacity; model.memory: mem_len
labels: num_labels id2label
# Generation: transformers, vLLM, fairseq, and our own earlier names
min_new_tokens: min_length min_tokens min_len
max_new_tokens train.batch_tokens: max_tokens
bad_words: bad_words_ids banned
stop: stop_strings stopping_criteria stop_sequences
draft: assistant_model draft_model speculative_model
stream: streamer
num_samples: n nbest samples
num_beams: best_of beam_width use_beam_search beam beams
repetition_penalty: presence_penalty frequency_penalty
dtype=int8: load_in_8bit; source: src_lang
source columns: source_lang
to: tgt_lang forced_bos_token_id
to columns: target_lang
length_penalty: lenpen; max_new_tokens: max_len_b; top_k: sampling_topk; top_p: sampling_topp
no_repeat_ngram: no_repeat; early_stopping: early; length_normalisation: normalise; typical_p: typical
# What commands read and write, sentence-transformers, tokenizers, SentencePiece, and options of the objectives in
# earlier versions
out: output_dir output_path output_file
file data: input input_file
as_json: json; dtype: torch_dtype
dtype train.precision: precision
device: device_map
shard shard_size: max_shard_size
family: model_type
workers: num_proc preprocessing_num_workers
column: json_keys; length: seq_length; option: objective_options
normalise: normalize normalize_embeddings
pool: pooling pooling_mode
level: output_value
prefix tune.prefix: prompt_name
k top_k: top_n
vocab_size: size; min_count: min_frequency; alphabet: limit_alphabet
lower: do_lower_case lowercase
mask_rate noise_density: rate
mask_ratio: masked; random_ratio: random; max_ngram: grams; across_documents: across; num_streams: streams
streams_per_batch: rows; num_sampled: sampled; pair_part: answer; random_fallback: fallback; target_ratio: share
context_factor: context; as_released: released; infill_ratio: infill; mean_span_length: mean; permute_ratio: permute
delete_ratio: delete; insert_ratio: insert; rotate_ratio: rotate; balance_weight: balance; is_prefix_lm: prefix
task_id: task; num_turns: turns
""")
# The answer to names that stand for nothing of ours.
SENTENCES = {
    "auto_find_batch_size": "choose the size of a batch with tune.batch_size or train.batch_tokens",
    "load_best_model_at_end": "the best checkpoint is kept and becomes the model (train.keep_best)",
    **dict.fromkeys(
        ("logging_steps", "log_interval"), "every step is written to metrics.jsonl in the folder of the run"
    ),
    "report_to": "say --wandb or --tensorboard",
    "do_train": "leave it out: pretrain and finetune train, and evaluate as they go",
    "do_eval": "leave it out: pretrain and finetune evaluate as they go",
    "do_predict": "leave it out: a test file is evaluated at the end (--test)",
    "push_to_hub": "formers export writes a folder, which the tools of the hub upload",
    "nproc_per_node": "start several processes with torchrun --nproc-per-node N -m formers",
    **dict.fromkeys(("group_by_length", "packing"), "leave it out: batches are packed by tokens, without padding"),
    **dict.fromkeys(
        ("model_name_or_path", "checkpoint_dir"), "the model comes first, as in: formers finetune MODEL --train FILE"
    ),
    "pretrained_model_name_or_path": "the model comes first, as in: formers generate MODEL PROMPT",
    "arch": "the family comes first, as in: formers pretrain transformer --data FILE",
    "return_full_text": "leave it out: the prompt is not part of the answer",
    "use_cache": "leave it out: keys and values are always cached",
    **dict.fromkeys(
        ("num_beam_groups", "diversity_penalty"),
        "diverse beam search is not implemented: sample instead, with num_samples",
    ),
    "trust_remote_code": "leave it out: no code of a checkpoint is ever run",
    "revision": "name it with the model, as in hub:owner/name@revision",
}

# Other words for tasks and verbs, which are accepted.
TASK_SYNONYMS = {
    "ner": "tag", "token-classification": "tag", "question-answering": "answer", "summarize": "summarise",
    "summarization": "summarise",
}  # fmt: skip
TASK_HINTS = {
    **dict.fromkeys(("text-classification", "sequence-classification", "classification"), "classify"),
    "sentiment-analysis": "classify",
    **dict.fromkeys(("regression", "sts"), "regress"),
    **dict.fromkeys(("pos", "tagging"), "tag"),
    **dict.fromkeys(("qa", "squad"), "answer"),
    "multiple-choice": "choose",
    "translation": "translate",
    **dict.fromkeys(("language-modeling", "causal-lm", "text-generation", "clm", "mlm", "masked-lm"), "lm"),
}
VERB_SYNONYMS = {"neighbors": "neighbours", "summarize": "summarise"}
# Commands that people look for, and what does it here.
COMMAND_NAME_HINTS = {
    **dict.fromkeys(
        ("train", "fit"),
        "formers pretrain FAMILY trains on text, formers finetune MODEL on the examples of a task",
    ),
    "predict": "formers classify, score, tag, answer and choose apply a fine-tuned model",
    **dict.fromkeys(("sample", "chat", "complete"), "formers generate MODEL PROMPT continues a text"),
    "fill-mask": "formers fill MODEL TEXT fills the blanks of a text",
    "encode": "formers embed MODEL turns texts into vectors",
    **dict.fromkeys(("eval", "test", "perplexity"), "formers evaluate MODEL --data FILE evaluates a model"),
    "convert": "formers import reads a checkpoint, formers export writes one",
    "download": "formers import hub:owner/name OUT fetches a checkpoint from the hub",
    "preprocess": "formers prepare FILES --tokenizer TOKENIZER --out OUT makes a token store",
    "tokenize": "formers tokenizer show TOKENIZER TEXT shows the tokens of a text",
}


def list_targets(name: str) -> tuple[str, ...]:
    """Return our names for one of another library, synonyms first; a sentence is not among them."""
    return (*SYNONYMS.get(name, ()), *HINTS.get(name, ()))


def resolve_setting(key: str, tables: Collection[str]) -> str:
    """Return the dotted name of a setting of these tables that is given by a synonym; any other key unchanged."""
    table, dot, name = key.rpartition(".")
    for target in SYNONYMS.get(name, ()):
        owner, dotted, _ = target.rpartition(".")
        if dotted and (owner == table if dot else owner in tables):
            return target
    return key


def resolve_settings(given: Mapping[str, Value], tables: Collection[str]) -> dict[str, Value]:
    """Replace each synonym among settings by our name; one that is given by two names is an error."""
    found: dict[str, str] = {}
    for key in given:
        if (first := found.setdefault(resolve_setting(key, tables), key)) != key:
            raise Error(f"{first} and {key} are the same setting", fix="give one of them")
    return {ours: given[key] for ours, key in found.items()}


def resolve_tables(tables: Mapping[str, object]) -> dict[str, object]:
    """Replace each synonym in tables of settings by our name; what is not a table stays as it is."""
    found = dict(tables)
    for table, values in tables.items():
        if isinstance(values, Mapping):
            dotted = resolve_settings({f"{table}.{name}": value for name, value in values.items()}, ())
            found[table] = {name.removeprefix(f"{table}."): value for name, value in dotted.items()}
    return found


def resolve_generation_options(given: Mapping[str, object], known: Collection[str]) -> GivenOptions:
    """Replace each synonym in options of generate by our name; do_sample becomes a temperature."""
    found: GivenOptions = {}
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
    `known` are the names that are possible where it was given, `tables` those of other settings, if not all are."""
    if (task := TASK_HINTS.get(name.replace("_", "-"))) in known:
        return f"formers calls it {task!r}"
    targets = list_targets(name)
    for target in targets:
        path, _, value = target.partition("=")
        bare = path.rpartition(".")[2]
        if bare in known:
            return f"formers calls it {bare!r}" + (f", with the value {value!r}" if value else "")
    if (sentence := SENTENCES.get(name)) is not None:
        return sentence
    dotted = (target for target in targets if "." in target and (not tables or target.partition(".")[0] in tables))
    return next((f"formers calls it {target}" for target in dotted), None)


def explain_option(
    name: str, options: Collection[str], tables: Collection[str] = (), settings: Collection[str] | None = None
) -> str | None:
    """Say what an option of another library is called on the command line; None for one that the table does not have.
    `options` are those of the command, `tables` those whose settings it takes as --TABLE.NAME, `settings` the dotted
    names of these if it does not take all."""
    key = name.removeprefix("--").replace("-", "_").replace(".", "_")
    for target in list_targets(key):
        path, _, value = target.partition("=")
        table, dotted, bare = path.rpartition(".")
        is_taken = dotted and table in tables and (settings is None or path in settings)
        for option in (f"--{bare.replace('_', '-')}", *((f"--{path}",) if is_taken else ())):
            if option in options or "." in option:
                return f"formers calls it {option}" + (f" {value}" if value else "")
    return SENTENCES.get(key)


def resolve_option(name: str, options: Collection[str]) -> str | None:
    """Return the option of a command that a synonym stands for: --num-return-sequences gives --num-samples."""
    key = name.removeprefix("--").replace("-", "_")
    names = (f"--{target.replace('_', '-')}" for target in SYNONYMS.get(key, ()) if "." not in target)
    return next((option for option in names if option in options), None)


def resolve_task_name(name: str | None) -> str | None:
    """Return the name of a task, also given by another word for it: "ner" is "tag". None stays None."""
    return TASK_SYNONYMS.get(str(name).lower().replace("_", "-"), name)
