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
    aliases: dict[str, tuple[str, ...]] = {}
    for entry in ";".join(row for row in table.split("\n") if not row.startswith("#")).split(";"):
        ours, _, theirs = entry.partition(":")
        aliases |= {name: (*aliases.get(name, ()), *ours.split()) for name in theirs.split()}
    return aliases


# Accepted, on the command line and in Python: names of transformers, nanoGPT and litgpt, and our own earlier options.
SYNONYMS = parse_names("""
train.eval_every: eval_steps; train.save_every: save_steps; train.keep_last: save_total_limit
train.accumulate: gradient_accumulation_steps; train.grad_clip: max_grad_norm; train.lr: learning_rate lr
tune.seq_length train.seq_length max_new_tokens: max_length
tune.seq_length train.seq_length: block_size
tune.batch_size batch_size: batch; num_samples: num_return_sequences; no_repeat_ngram: no_repeat_ngram_size
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
tune.batch_size train.batch_tokens: micro_batch_size max_sentences; train.batch_tokens: batch global_batch_size
batch_size train.eval_batches: per_device_eval_batch_size eval_batch_size batch_size_valid
tune.warmup_ratio train.warmup_steps: warmup_ratio lr_warmup_fraction
train.schedule: lr_scheduler_type lr_scheduler decay_lr; train.min_lr_ratio: min_lr min_learning_rate end_learning_rate
train.optimizer: optim; train.betas: adam_beta1 adam_beta2 adam_betas beta1 beta2; train.eps: adam_epsilon adam_eps
dtype=fp16 train.precision=fp16: fp16; dtype=bf16 train.precision=bf16: bf16 use_amp
train.precision=fp8: fp8 float8 enable_fp8; train.optimizer=adamw8bit: use_8bit_optimizer adam8bit
dtype=fp32 train.precision=fp32: fp32 tf32; dtype train.precision: mixed_precision; train.compile: torch_compile
train.activation_checkpointing: gradient_checkpointing checkpointing
train.workers workers: dataloader_num_workers num_workers
train.eval_every: eval_strategy evaluation_strategy eval_interval evaluation_steps validate_interval_updates check
train.save_every: save_strategy save_interval always_save_checkpoint checkpoint_save_steps save_interval_updates
train.save_every: save; tune.metric: metric_for_best_model best_checkpoint_metric
tune.patience: early_stopping_patience; tune.label_smoothing objective.label_smoothing: label_smoothing_factor smoothing
tune.teacher_forcing objective.teacher_forcing: teacher_forcing_ratio teacher_forcing_prob
tune.sampling_schedule objective.sampling_schedule: scheduled_sampling scheduled_sampling_type
model.feed: input_feed input_feeding; model.attention: global_attention attention_type
out: logging_dir run_name out_dir save_dir; resume: resume_from_checkpoint; overwrite: overwrite_output_dir
deterministic train.deterministic: full_determinism; seed train.seed: data_seed; device=cpu: use_cpu no_cuda
train.parallel=fsdp: deepspeed fsdp; train.parallel=ddp: ddp; train.parallel: strategy
columns: remove_unused_columns label_column_name; train data: train_file dataset_name; train data.source: train_dataset
valid data.valid: validation_file eval_dataset; test: test_file
data.valid_fraction validation: validation_split_percentage; data.limit: max_train_samples
tune.seq_length train.seq_length window: max_seq_length; tune.seq_length train.seq_length: max_source_length length
tune.max_output_tokens max_new_tokens: max_target_length; tune.max_answer_tokens: max_answer_length
tune.stride stride: doc_stride; tune.prefix: source_prefix; columns column: text_column_name text_column
tokenizer data.tokenizer: tokenizer_name; objective.mask_rate mask_rate: mlm_probability mask_prob
task: problem_type task_name; lora tune.lora: lora_r lora_rank
tune.freeze=-1: freeze_base_model; tune.layer_decay: layerwise_lr_decay; tune.balance=true: class_weights
train.eval_batches: eval_iters eval_batches looks; train.accumulate: accumulate_grad_batches update_freq
train.grad_clip: gradient_clip_val max_norm clip_norm clip
train.warmup_steps: warmup_iters lr_warmup_steps warmup_updates warmup
init: init_from initial_checkpoint_dir restore_file
train.keep_last: checkpoint_save_total_limit keep_interval_updates keep_last_epochs last
train.seq_length: tokens_per_sample; model.context tune.seq_length train.seq_length: max_source_positions
train.keep_best: keep_best_checkpoints best; objective.name: criterion
objective.mean_span_length mean_span_length: mask_length poisson_lambda
model.shared: share_all_embeddings; model.dim: vector_size; model.negatives: negative; model.kind: sg cbow_mean
tune.evals_per_epoch: checks; train.keep_every: every; max_new_tokens train.batch_tokens: tokens
train.batch_rampup_steps: ramp; train.weight_decay: decay; tune.warmup_ratio: warm; train.spike_factor: spike
train.max_bad_steps: skips; train.short_length short_seq_prob: short; train.carry_memory: carry
data.vocab_size vocab_size: pieces; data.valid valid: held; data.valid_fraction: held_out; data.label_separator: between
data.tokenizer_kind objective.corruption: kind; tune.multilabel: many; tune.label_as_text: text
tune.max_answer_tokens max_masked: most; out tune.max_output_tokens: output
tune.long_texts: long; tune.both_orders: both; tune.lm_loss_weight: auxiliary
# More of transformers' TrainingArguments and example scripts, litgpt and fairseq
train.schedule: lr_scheduler_kwargs lr_shrink; dtype=bf16 train.precision=bf16: bf16_full_eval
dtype=fp16 train.precision=fp16: fp16_full_eval memory_efficient_fp16 fp16_opt_level half_precision_backend
train.activation_checkpointing: gradient_checkpointing_kwargs checkpoint_activations
train.compile: torch_compile_backend torch_compile_mode
train.parallel: fsdp_config parallelism_config accelerator_config ddp_backend tensor_parallel_size
tune.max_output_tokens: generation_max_length val_max_target_length
columns: label_names summary_column question_column context_column answer_column
data.unit=line: line_by_line sample_break_mode; data.limit: max_samples n_train_samples
limit: max_eval_samples max_predict_samples; data.valid_fraction: val_split_fraction valid_split test_size
tune.max_answer_tokens: max_answer_len; best: n_best_size topk; data.encoding encoding: file_encoding
data.delimiter delimiter: sep separator
tune.seq_length train.seq_length window: max_seq_len max_sequence_length cutoff_len sequence_length
train.seq_length: max_target_positions; tune.freeze: freeze_layers num_frozen_layers; train.samples: sample_every
train.ema: ema_decay use_ema
# Axolotl, LLaMA-Factory, PyTorch Lightning and fine-tuning scripts
tune.seq_length train.seq_length: sequence_len train_max_seq_length
tune.evals_per_epoch train.eval_every: check_val_every_n_epoch val_check_interval; train.save_every: saves_per_epoch
train.eval_batches: limit_val_batches; data.valid_fraction: val_set_size; tune.epochs train.steps: n_train_epochs
tune.metric: monitor; tune.freeze: freeze_embeddings freeze_encoder unfreeze_layers
tune.layer_decay: layerwise_learning_rate_decay llrd; tune.balance=true: class_weight; tune.multilabel: multi_label
columns: label_column text_field label_field; train data: dataset datasets; valid data.valid: eval_split
test: test_split; resume: ckpt_path; out: default_root_dir; device: accelerator; dry_run: fast_dev_run
tokenizer data.tokenizer: tokenizer_dir; objective.name: mlm whole_word_mask; lora tune.lora: adapter finetuning_type
# Adapters: peft, litgpt
tune.lora_alpha: alpha lora_scaling; lora tune.lora: r rank use_lora use_peft
# Configurations of models: config.json of transformers, litgpt, nanoGPT, fairseq
model.dim: hidden_size d_model n_embd embedding_size encoder_embed_dim
model.layers: num_hidden_layers num_layers n_layer n_layers encoder_layers; model.decoder_layers: num_decoder_layers
model.heads: num_attention_heads num_heads n_head n_heads encoder_attention_heads
model.decoder_heads: decoder_attention_heads; model.head_dim: d_kv
model.ff: intermediate_size n_inner d_ff d_inner encoder_ffn_dim encoder_ffn_embed_dim
model.decoder_ff: decoder_ffn_dim; model.context: max_position_embeddings n_positions n_ctx block_size
data.vocab_size model.vocab: vocab_size padded_vocab_size; model.segments: type_vocab_size
model.act: hidden_act activation_function activation; model.eps: layer_norm_eps layer_norm_epsilon norm_eps
model.dropout: hidden_dropout_prob resid_pdrop dropout_rate
model.attention_dropout: attention_probs_dropout_prob attn_pdrop
model.embed_dropout: embd_pdrop; model.act_dropout: activation_dropout; model.head_dropout: classifier_dropout
model.init: initializer_range; model.tied: tie_word_embeddings; model.pad: pad_token_id; model.bos: bos_token_id
model.eos: eos_token_id; model.start: decoder_start_token_id; model.buckets: relative_attention_num_buckets
model.experts: num_experts; model.capacity: expert_capacity; model.memory: mem_len; labels: num_labels id2label
model.dim: dim decoder_embed_dim; model.layers: layers; model.heads: heads; model.context: context_length ctx_len
model.dropout: dropout; model.attention_dropout: attn_dropout; model.act_dropout: relu_dropout
model.decoder_layers: decoder_layers; model.tied: share_decoder_input_output_embed weight_tying
model.eps: rms_norm_eps; model.rotary: rotary_dim; model.rotary_fraction: rotary_pct
model.base: rope_theta rotary_emb_base; model.parallel: use_parallel_residual parallel_residual
model.experts: num_local_experts; model.jitter: router_jitter_noise; model.far: relative_attention_max_distance
model.act: feed_forward_proj; model.clamp: clamp_len; model.reuse: reuse_len; model.summary: summary_type
model.groups: num_hidden_groups; model.inner: inner_group_num; model.tied: tie_embeddings
model.min_n: minn; model.max_n: maxn word_ngrams wordNgrams; model.buckets: bucket; model.window: ws
model.negatives: neg; model.min_count: minCount
model.negatives: num_negatives ns; model.sample: downsampling subsample; model.window: window_size
# Generation: transformers, vLLM, fairseq, and our own earlier names
min_new_tokens: min_length min_tokens min_len; max_new_tokens train.batch_tokens: max_tokens
bad_words: bad_words_ids banned; stop: stop_strings stopping_criteria stop_sequences
draft: assistant_model draft_model speculative_model; stream: streamer; num_samples: n nbest samples
num_beams: best_of beam_width use_beam_search beam beams; repetition_penalty: presence_penalty frequency_penalty
dtype=int8: load_in_8bit; source tune.source_language: src_lang; source tune.source_language columns: source_lang
to tune.target_language: tgt_lang forced_bos_token_id; to tune.target_language columns: target_lang
length_penalty: lenpen; max_new_tokens: max_len_b; top_k: sampling_topk; top_p: sampling_topp
no_repeat_ngram: no_repeat; early_stopping: early; length_normalisation: normalise; typical_p: typical
max_new_tokens: n_predict num_predict max_gen_len max_gen_toks max_generated_tokens max_decoding_length
temperature: temp sampling_temperature; repetition_penalty: repeat_penalty encoder_repetition_penalty
no_repeat_ngram: encoder_no_repeat_ngram_size; length_penalty: exponential_decay_length_penalty length_penalty_weight
length_normalisation: length_normalization length_penalty_type
coverage: coverage_penalty coverage_penalty_weight coverage_weight; num_beams: beam_size generation_num_beams eval_beams
num_samples: num_outputs num_generations; draft: model_draft prompt_lookup_num_tokens num_speculative_tokens
bad_words: suppress_tokens begin_suppress_tokens; stop: stop_token stop_token_ids eos_string reverse_prompt
prompt: input_text starting_prompt
# Servers: vLLM, text-embeddings-inference, llama.cpp
host: hostname; token: api_key api_token; max_sequences: max_num_seqs parallel_sequences
max_batch_tokens: max_num_batched_tokens; max_tokens: max_model_len ctx_size; max_texts: max_client_batch_size
max_body_bytes: payload_limit; cors_origin: cors_allow_origin allowed_origins; request_seconds: request_timeout
allow_host: allowed_hosts; max_queue: max_waiting_requests
# What commands read and write, sentence-transformers, tokenizers, SentencePiece, and options of the objectives in
# earlier versions
out: output_dir output_path output_file; file data: input input_file; as_json: json; dtype: torch_dtype
dtype train.precision: precision; device: device_map; shard shard_size: max_shard_size; family: model_type
workers: num_proc preprocessing_num_workers; column: json_keys; length: seq_length; option: objective_options
normalise: normalize normalize_embeddings; pool: pooling pooling_mode; level: output_value
prefix tune.prefix: prompt_name; k top_k: top_n; vocab_size: size; min_count: min_frequency; alphabet: limit_alphabet
lower: do_lower_case lowercase; mask_rate noise_density: rate
mask_ratio: masked; random_ratio: random; max_ngram: grams; across_documents: across; num_streams: streams
streams_per_batch: rows; num_sampled: sampled; pair_part: answer; random_fallback: fallback; target_ratio: share
context_factor: context; as_released: released; infill_ratio: infill; mean_span_length: mean; permute_ratio: permute
delete_ratio: delete; insert_ratio: insert; rotate_ratio: rotate; balance_weight: balance; is_prefix_lm: prefix
task_id: task; num_turns: turns
""")


def parse_sentences(table: str) -> dict[str, str]:
    """Read lines of "names > sentence", and blocks of a line "> sentence" with lines of names below it."""
    answers: dict[str, str] = {}
    sentence = ""
    for row in filter(None, table.split("\n")):
        names, mark, text = row.partition("> ")
        sentence = text if mark else sentence
        answers |= dict.fromkeys(names.split(), sentence)
    return answers


# The answers to names that stand for nothing of ours.
SENTENCES = parse_sentences("""
auto_find_batch_size > choose the size of a batch with tune.batch_size or train.batch_tokens
load_best_model_at_end > the best checkpoint is kept and becomes the model (train.keep_best)
> every step is written to metrics.jsonl in the folder of the run
  logging_steps log_interval logging_strategy logging_first_step logging_nan_inf_filter log_on_each_node
  include_num_input_tokens_seen skip_memory_metrics log_iters
> say --wandb or --tensorboard
  report_to project tensorboard_logdir wandb_project logger_name trackio_space_id trackio_bucket_id
  trackio_static_space_id
> leave it out: progress is drawn on a terminal only
  disable_tqdm enable_progress_bar show_progress_bar no_progress_bar progress_bar log_level log_level_replica
  log_format log_disable
do_train > leave it out: pretrain and finetune train, and evaluate as they go
do_eval > leave it out: pretrain and finetune evaluate as they go
do_predict > leave it out: a test file is evaluated at the end (--test)
> leave it out: evaluation is set by train.eval_every and train.eval_batches, or tune.evals_per_epoch
  eval_delay eval_on_start eval_accumulation_steps eval_do_concat_batches eval_use_gather_object prediction_loss_only
  batch_eval_metrics include_for_metrics predict_with_generate generation_num_beams eval_beams
> leave it out: every metric knows whether higher or lower is better (tune.metric)
  greater_is_better maximize_best_checkpoint_metric
> leave it out: a checkpoint holds all that --resume needs, and the folder model of a run holds the model alone
  save_only_model save_on_each_node enable_jit_checkpoint restore_callback_states_from_checkpoint ignore_data_skip
  no_epoch_checkpoints no_last_checkpoints enable_checkpointing
save_safetensors safe_serialization > leave it out: weights are always written as safetensors
> formers export writes a folder, which the tools of the hub upload
  push_to_hub hub_model_id hub_strategy hub_token hub_private_repo hub_always_push hub_revision
> start several processes with torchrun --nproc-per-node N -m formers
  nproc_per_node devices num_nodes distributed_world_size local_rank nnodes
> leave it out: formers sets up the processes that torchrun starts
  ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_timeout
  average_tokens_across_devices find_unused_parameters
> leave it out: batches are packed by tokens, without padding
  group_by_length packing sample_packing pad_to_sequence_len max_tokens_per_batch pad_to_max_length padding
  train_sampling_strategy length_column_name sortish_sampler dynamic_padding pad_to_multiple_of
> leave it out: train.workers is the only setting of the data loader
  dataloader_drop_last dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
  dataloader_multiprocessing_context dataloader_in_order
> the model comes first, as in: formers finetune MODEL --train FILE
  model_name_or_path checkpoint_dir model_name base_model
preset > a preset is named in MODEL's place, as in: formers finetune bert-mini --train FILE
pretrained_model_name_or_path model_id model_path > the model comes first, as in: formers generate MODEL PROMPT
arch > the family comes first, as in: formers pretrain transformer --data FILE
config_name config_overrides model_config > a size has a name, --preset; single settings are --model.NAME
> the optimizer has its own settings: train.betas, train.eps and train.weight_decay
  optim_args optim_target_modules use_old_adam
> leave it out: the kernel is chosen by what the machine has (formers doctor lists it)
  attn_implementation use_flash_attention_2 use_flash_attn flash_attn use_liger_kernel liger_kernel_config
  enforce_eager use_sdpa flash_attention xformers_attention benchmark
> leave it out: the training examples say whether a question may have no answer
  version_2_with_negative null_score_diff_threshold
max_query_length > leave it out: a question has at most half of tune.seq_length
ignore_pad_token_for_loss > leave it out: padding never counts in a loss
dataset_config_name > leave it out: give the files of the subset
keep_linebreaks > data.unit says what a document is: a line, a block or a file
task_type inference_mode fan_in_fan_out adapter_name > leave it out: the head is chosen by --task
wandb_log wandb_run_name > say --wandb, and set WANDB_NAME or WANDB_PROJECT in the environment
backend > leave it out: torchrun starts the processes, and the backend follows from their device
train_on_inputs > leave it out: the loss is that of the answers; tune.lm_loss_weight adds that of the texts (GPT)
> leave it out: special tokens are those of the tokenizer
  special_tokens skip_special_tokens spaces_between_special_tokens add_special_tokens unk_token
  continuing_subword_prefix add_prefix_space
chat_template > leave it out: a prompt is read as it is
include_stop_str_in_output > leave it out: a text ends before its stop string
handle_long_generation truncate_prompt_tokens > leave it out: a prompt that is too long is read from its end
num_key_value_heads > leave it out: key and value heads are as many as query heads
position_embedding_type attn_type bi_data > leave it out: positions follow from the family
loss loss_type > leave it out: the loss follows from the objective or the task
early_stopping_threshold > leave it out: any improvement counts (tune.patience)
> leave it out: the rate of the head is that of the body; tune.layer_decay lowers it layer by layer
  learning_rate_head head_learning_rate
label2id > leave it out: labels have names, and formers numbers them itself
threshold > leave it out: a label counts from a probability of 0.5 on
num_sanity_val_steps overfit_batches limit_train_batches detect_anomaly > try a run with --dry-run
reset_optimizer > leave it out: a resumed run continues with its own optimizer state; --init starts with a new one
remove_bpe bpe > leave it out: texts are decoded without marks of sub-words
sacrebleu > leave it out: written texts are evaluated by BLEU, chrF or ROUGE, with their signatures
focal_loss_gamma > not implemented: rare classes get more weight by tune.balance
thread > of word vectors: --train.threads
hs ns_exponent > leave it out: only negative sampling is implemented, with the exponent 0.75
min_alpha lrUpdateRate > leave it out: the rate falls linearly to almost 0
> not implemented: formers tokenizer train --help lists the options; --alphabet bounds the number of characters
  character_coverage byte_fallback split_digits normalization_rule_name user_defined_symbols
> a tokenizer is trained by: formers tokenizer train KIND FILES --vocab-size N --out FOLDER
  model_prefix input_sentence_size
> adapters are on the linear layers of every block, without dropout; lora is their rank, tune.lora_alpha their scale
  lora_dropout lora_target target_modules lora_target_modules layers_to_transform layers_pattern rank_pattern
  alpha_pattern
  lora_query lora_key lora_value lora_projection lora_mlp lora_head
> not implemented: adapters are plain LoRA (--lora RANK)
  use_dora use_rslora init_lora_weights modules_to_save loftq_config peft_type num_virtual_tokens lora_bias
> 4-bit weights are not implemented: --dtype int8 generates and scores on a CPU, and --lora trains with less memory
  load_in_4bit quantization_bit quantization quantization_config bnb_4bit_compute_dtype quantize
> not implemented: regularise with model.dropout, train.weight_decay or tune.label_smoothing
  neftune_noise_alpha r_drop mixup
> leave it out: torch manages the memory
  torch_empty_cache_steps empty_cache_freq low_cpu_mem_usage mlock no_mmap gpu_memory_utilization swap_space
> leave it out: text is read piece by piece, and nothing of it is cached between runs
  overwrite_cache streaming keep_in_memory dataset_prepared_path
cache_dir cache_folder > set the environment variable HF_HOME
local_files_only offline > leave it out: a model is read from the disk, unless it is named hub:owner/name
use_auth_token auth_token > set the environment variable HF_TOKEN
revision model_revision > name it with the model, as in hub:owner/name@revision
use_fast_tokenizer use_fast tokenizer_mode > leave it out: a tokenizer.json is always read by the tokenizers library
trust_remote_code > leave it out: no code of a checkpoint is ever run
ignore_mismatched_sizes > leave it out: another head gets new weights
return_full_text include_prompt_in_result > leave it out: the prompt is not part of the answer
> leave it out: keys and values are always cached
  use_cache cache_implementation cache_config max_cache_len prefill_chunk_size use_kv_cache low_memory
  continuous_batching_config
> leave it out: single tokens are decoded by recorded CUDA graphs or packed weights, without torch.compile
  compile_config disable_compile
debug > start Python with -X dev, or torchrun with TORCH_DISTRIBUTED_DEBUG=DETAIL
generation_config transformers_version > leave it out: options are given one by one
> diverse beam search is not implemented: sample instead, with num_samples
  num_beam_groups diversity_penalty diverse_beam_groups
penalty_alpha contrastive_search > contrastive search is not implemented: sample with top_p, min_p or typical_p
> not implemented: sample with top_p, min_p or typical_p
  epsilon_cutoff eta_cutoff top_h top_a tfs tfs_z mirostat mirostat_lr mirostat_ent mirostat_tau mirostat_eta
  dynatemp_range xtc_probability
> not implemented: bad_words forbids words, and stop ends a text
  sequence_bias logit_bias constraints force_words_ids prefix_allowed_tokens_fn grammar json_schema ignore_eos
  guided_json guided_regex remove_invalid_values renormalize_logits
guidance_scale watermarking_config dola_layers token_healing > not implemented: generation follows the model alone
> the token ids are settings of the model's own configuration (bos, eos, pad, start)
  bos_token_id eos_token_id pad_token_id decoder_start_token_id forced_bos_token_id forced_eos_token_id
max_time > bound a text by max_new_tokens or stop
> speculative decoding is set by the draft model alone, which proposes four tokens at a time (--draft MODEL)
  num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold draft_max draft_min
  max_matching_ngram_size speculation_type assistant_early_exit assistant_lookbehind target_lookbehind
  assistant_ensemble_weight is_assistant use_mtp
> formers inspect shows attention, hidden states and predictions; formers score gives log-probabilities
  output_attentions output_hidden_states output_scores output_logits return_dict_in_generate logprobs prompt_logprobs
  echo
> vectors are written to a .npy or .jsonl file, and are tensors in Python
  convert_to_numpy convert_to_tensor encoding_format
truncate_dim dimensions > not implemented: take fewer columns of the vectors yourself, and normalise them again
prompt_name prompts default_prompt_name instruction > put the prompt before each text yourself
> one server uses one device (--device): start several, or deploy on Ray Serve
  tensor_parallel_size pipeline_parallel_size data_parallel_size
served_model_name alias > give the model's name with it, as in: formers serve NAME=MODEL
n_threads num_threads intra_threads inter_threads > set the environment variable OMP_NUM_THREADS
""")

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
    names: dict[str, str] = {}
    for key in given:
        if (first := names.setdefault(resolve_setting(key, tables), key)) != key:
            raise Error(f"{first} and {key} are the same setting", fix="give one of them")
    return {ours: given[key] for ours, key in names.items()}


def resolve_tables(tables: Mapping[str, object]) -> dict[str, object]:
    """Replace each synonym in tables of settings by our name; what is not a table stays as it is."""
    resolved_tables = dict(tables)
    for table, values in tables.items():
        if isinstance(values, Mapping):
            dotted = resolve_settings({f"{table}.{name}": value for name, value in values.items()}, ())
            resolved_tables[table] = {name.removeprefix(f"{table}."): value for name, value in dotted.items()}
    return resolved_tables


def resolve_generation_options(given: Mapping[str, object], known: Collection[str]) -> GivenOptions:
    """Replace each synonym in options of generate by our name; do_sample becomes a temperature."""
    options: GivenOptions = {}
    for key, value in given.items():
        ours = next((target for target in SYNONYMS.get(key, ()) if target in known), key)
        if ours in options or (ours != key and ours in given):
            raise Error(f"{key} and {ours} are the same option", fix="give one of them")
        if key in SYNONYM_NOTES:
            warnings.warn(SYNONYM_NOTES[key], stacklevel=4)
        options[ours] = value
    if (sample := options.pop(DO_SAMPLE, None)) is None:
        return options
    if not isinstance(sample, bool):
        raise Error(f"do_sample is True or False, got {sample!r}", fix="leave it out, or say temperature 0 for False")
    if sample and (options.get("num_beams") or 1) > 1:
        raise Error("beam search does not sample", fix="leave do_sample out, or num_beams")
    if not sample and options.get("temperature"):
        raise Error("do_sample=False and a temperature contradict each other", fix="leave one of them out")
    if options.get("temperature") is None:
        options["temperature"] = 1.0 if sample else 0.0
    return options


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
    own_table = "model" if "dim" in known else "data" if "source" in known else None
    if f"{own_table}.{name}" in targets:  # its own name, which other families have
        return None
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
