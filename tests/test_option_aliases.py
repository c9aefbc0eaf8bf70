"""Names of other libraries and of earlier versions: synonyms are accepted, every other name is answered with ours."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from functools import cache

import pytest
from cyclopts import App

import formers
from formers import option_aliases
from formers.cli.common import parse_overrides
from formers.cli.finetune import TABLES as FINETUNE_TABLES
from formers.cli.finetune import finetune
from formers.cli.main import app, main, translate_options
from formers.cli.pretrain import TABLES as PRETRAIN_TABLES
from formers.cli.pretrain import pretrain
from formers.config import suggest_name
from formers.errors import Error
from formers.generation.augment import AugmentConfig
from formers.generation.options import Options, make_options
from formers.objectives.registry import OBJECTIVES, list_options
from formers.option_aliases import (
    HINTS,
    SENTENCES,
    SYNONYMS,
    TASK_HINTS,
    TASK_SYNONYMS,
    VERB_SYNONYMS,
    explain_option,
)
from formers.registry import FAMILIES
from formers.task import TASKS
from formers.training.config_merge import (
    FinetuneDataConfig,
    ModelChoice,
    PretrainDataConfig,
    TuneConfig,
    configure_finetuning,
    configure_pretraining,
)
from formers.training.mixture_config import MixtureConfig
from formers.training.train_config import TrainConfig
from formers.training.word_vectors.vector_run import VECTOR_SETTINGS
from formers.verbs import VERBS

VECTOR_NAMES = [f"{table}.{name}" for table, names in VECTOR_SETTINGS.items() for name in names]
NAMES = sorted({*SYNONYMS, *HINTS, *SENTENCES})
COMMANDS = {
    "pretrain": (pretrain["bert"].default_command, PRETRAIN_TABLES),
    "word2vec": (pretrain["word2vec"].default_command, tuple(VECTOR_SETTINGS)),
    "finetune": (finetune, FINETUNE_TABLES),
}


def get_fields(*classes):
    return {field.name for one in classes for field in dataclasses.fields(one)}


SETTINGS = {
    "train": get_fields(TrainConfig),
    "tune": get_fields(TuneConfig),
    "data": get_fields(PretrainDataConfig, FinetuneDataConfig),
    "mixture": get_fields(MixtureConfig),
    "model": get_fields(*(entry.definition.config_class for entry in FAMILIES.values())),
    "objective": {"name", *(name for one in OBJECTIVES.values() for name in list_options(one.objective_class))},
}


def list_commands(parent, path=()):
    """Every command with its options."""
    for name in parent:
        if not name.startswith("-"):
            child = parent[name]
            if child.default_command is not None:
                found = [option for one in child.assemble_argument_collection() for option in one.names]
                yield (*path, name), found
            yield from list_commands(child, (*path, name))


OPTIONS = dict(list_commands(app))
# Arguments in Python that no command has as an option.
ARGUMENTS = {"labels", "stream", "prefix", "min_count"} | get_fields(Options, AugmentConfig) | SETTINGS["objective"]


def to_option(name):
    return f"--{name.replace('_', '-')}"


def list_paths(name):
    """Our names for one of the table, without values."""
    return [target.partition("=")[0] for target in option_aliases.list_targets(name)]


def test_targets_exist():
    """A hint that names what is not there would be worse than none."""
    for name in NAMES:
        targets = list_paths(name)
        assert targets or option_aliases.SENTENCES.get(name), name
        assert len(set(targets)) == len(targets), name
        for target in targets:
            table, dot, bare = target.rpartition(".")
            if dot:
                assert bare in SETTINGS[table], (name, target)
            else:
                option = f"--{bare.replace('_', '-')}"
                known = bare in ARGUMENTS or any(option in options for options in OPTIONS.values())
                assert known, (name, target)


@pytest.mark.parametrize("command", COMMANDS)
def test_settings_of_a_command(command):
    """A synonym becomes our setting; any other name of the table gets ours, not what is spelled alike."""
    function, tables = COMMANDS[command]
    settings = VECTOR_NAMES if command == "word2vec" else None
    options = [option for one in assemble_options(function) for option in one.names]
    for name in NAMES:
        possible = {f"--{target}" for target in list_paths(name) if "." in target and target.split(".")[0] in tables}
        if settings is not None:
            possible &= {f"--{setting}" for setting in settings}
        possible |= {to_option(target.rpartition(".")[2]) for target in list_paths(name)} & set(options)
        for spelling in {f"--{name}", to_option(name)} - {*options, *(option.replace("-", "_") for option in options)}:
            try:
                given = parse_overrides([spelling, "7"], function, tables, settings)
            except Error as error:
                said = str(error)
                if possible:
                    assert any(f"formers calls it {option}" in said for option in possible), (name, said)
                    assert "did you mean" not in said.lower(), name
                elif sentence := option_aliases.SENTENCES.get(name):
                    assert sentence[1:] in said, name
            else:
                assert list(given.values()) == ["7"], name
                assert set(given) <= {target for target in SYNONYMS[name] if "." in target}, name


@pytest.mark.parametrize("path", sorted(OPTIONS), ids=" ".join)
def test_options_of_a_command(path):
    """Every name of the table that a command knows under another one is replaced, or answered with it."""
    options = OPTIONS[path]
    if path[0] in ("pretrain", "finetune", "resume"):  # they take settings too, see above
        return
    for name in NAMES:
        spelling = to_option(name)
        ours = {to_option(target.rpartition(".")[2]) for target in list_paths(name)} & set(options)
        if spelling in options or not ours:
            continue
        if synonyms := {to_option(target) for target in SYNONYMS.get(name, ())} & set(options):
            with pytest.warns() if name in option_aliases.SYNONYM_NOTES else nullcontext():
                words = translate_options([*path, spelling, "7"])
            assert words[:-2] == [*path], (path, words)
            assert words[-2] in synonyms, (path, words)
        else:
            with pytest.raises(Error) as error:
                translate_options([*path, spelling, "7"])
            assert any(f"formers calls it {option}" in str(error.value) for option in ours), (path, name)


def has_answer(name, command):
    """Whether a command takes an option, or says what to type instead of it."""
    function, tables = COMMANDS[command] if command in COMMANDS else (app[command].default_command, ())
    known = [option for one in assemble_options(function) for option in one.names]
    is_setting = any(name in SETTINGS[table] for table in tables)
    return to_option(name) in known or is_setting or explain_option(name, known, tables) is not None


@cache
def assemble_options(function):
    runner = App()
    runner.default(function)
    return runner.assemble_argument_collection()


def test_every_argument_of_transformers_is_answered():
    """What its users will type: the fields of its training and generation settings."""
    transformers = pytest.importorskip("transformers")
    training = {field.name for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)}
    generation = {name for name in vars(transformers.GenerationConfig()) if not name.startswith("_")}
    assert not [name for name in sorted(training) if not has_answer(name, "finetune")]
    assert not [name for name in sorted(generation - {"do_sample"}) if not has_answer(name, "generate")]


# Options of peft, fairseq, sentence-transformers, llama.cpp, vLLM, text-embeddings-inference, Axolotl, LLaMA-Factory,
# PyTorch Lightning and fastText, by command.
FOREIGN_OPTIONS = {
    "finetune": """lora_r lora_alpha lora_dropout target_modules use_dora use_rslora modules_to_save load_in_4bit
        max_seq_len max_seq_length cutoff_len logging_first_step show_progress_bar group_by_length cache_dir
        use_fast_tokenizer ignore_mismatched_sizes attn_implementation neftune_noise_alpha task_type lora_target
        sequence_len sample_packing val_set_size saves_per_epoch adapter train_on_inputs flash_attention
        version_2_with_negative max_query_length ignore_pad_token_for_loss label2id multi_label threshold llrd
        class_weight freeze_encoder head_learning_rate monitor ckpt_path check_val_every_n_epoch fast_dev_run
        quantization_bit wandb_run_name special_tokens""",
    "pretrain": """arch tokens_per_sample max_tokens update_freq clip_norm max_update warmup_updates
        save_interval_updates lr_scheduler adam_betas log_format no_progress_bar tensorboard_logdir wandb_project
        restore_file dropout
        attention_dropout relu_dropout encoder_embed_dim encoder_ffn_embed_dim decoder_layers max_source_positions
        share_decoder_input_output_embed memory_efficient_fp16 distributed_world_size devices precision
        keep_linebreaks wandb_log backend dataset reset_optimizer rms_norm_eps rope_theta num_key_value_heads rotary_pct
        use_parallel_residual router_jitter_noise num_hidden_groups clamp_len tie_embeddings tokenizer_dir""",
    "word2vec": "hs ns_exponent min_alpha minCount minn maxn bucket ws neg thread lrUpdateRate",
    "generate": """penalty_alpha n_predict temp repeat_penalty mirostat tfs_z grammar logit_bias n_threads ignore_eos
        model_draft sampling_topk sampling_topp lenpen beam nbest max_len_b max_tokens best_of logprobs echo
        guided_json use_beam_search return_full_text skip_special_tokens stop_token_ids chat_template prompt_logprobs
        truncate_prompt_tokens remove_bpe""",
    "embed": """show_progress_bar convert_to_numpy convert_to_tensor normalize_embeddings output_value batch
        truncate_dim prompt_name cache_folder trust_remote_code""",
    "serve": """api_key hostname max_model_len max_num_seqs max_num_batched_tokens gpu_memory_utilization quantization
        served_model_name tensor_parallel_size payload_limit max_client_batch_size cors_allow_origin""",
}  # fmt: skip


@pytest.mark.parametrize("command", FOREIGN_OPTIONS)
def test_options_of_other_libraries_are_answered(command):
    assert not [name for name in FOREIGN_OPTIONS[command].split() if not has_answer(name, command)]


@pytest.mark.parametrize("known", [*SETTINGS.values(), get_fields(Options)], ids=[*SETTINGS, "generate"])
def test_python_names_ours_before_the_nearest_spelling(known):
    for name in set(NAMES) - known:
        said = suggest_name(name, known)
        if own := [target.rpartition(".")[2] for target in list_paths(name) if target.rpartition(".")[2] in known]:
            assert said.startswith(f"formers calls it {own[0]!r}"), name
        elif {target for target in list_paths(name) if "." in target} - {f"model.{name}"} or SENTENCES.get(name):
            assert "did you mean" not in said, name


def test_no_name_is_explained_with_the_same_name():
    """--model.heads of a model without heads: "formers calls it model.heads"."""
    with pytest.raises(Error, match="unknown setting 'heads'. Known: attention, "):
        formers.build("seq2seq", heads=2)
    with pytest.raises(Error, match="unknown setting 'heads'. Known: attention, "):
        configure_pretraining("seq2seq", None, {"model.heads": 2})
    assert suggest_name("heads", ["data", "model", "train"]) == "formers calls it model.heads"
    of_vectors = ["column", "encoding", "skip", "source", "unit"]  # whose size is that of the counted words
    assert suggest_name("vocab_size", of_vectors) == "known: column, encoding, skip, source, unit"
    assert suggest_name("vocab_size", ["data", "model", "train"]) == "formers calls it data.vocab_size"


@pytest.mark.parametrize(("name", "ours"), [
    ("eval_steps", "eval_every"), ("save_steps", "save_every"), ("save_total_limit", "keep_last"),
    ("gradient_accumulation_steps", "accumulate"), ("max_length", "seq_length"), ("block_size", "seq_length"),
])  # fmt: skip
def test_synonyms_in_tables_and_files(name, ours, tmp_path):
    for given in ({f"train.{name}": 9}, {name: 9}):
        assert getattr(configure_pretraining("gpt2", None, given).train, ours) == 9
    (tmp_path / "run.yaml").write_text(f"train: {{{name}: 9}}\n")
    assert getattr(configure_pretraining("gpt2", tmp_path / "run.yaml").train, ours) == 9
    with pytest.raises(Error, match="are the same setting"):
        configure_pretraining("gpt2", None, {f"train.{name}": 9, f"train.{ours}": 8})


def test_synonyms_of_fine_tuning():
    made = configure_finetuning(
        ModelChoice("bert"), "classify", {"tune": {"batch": 5}}, {"max_length": 64, "train.learning_rate": 0.5}
    )
    assert (made.tune.batch_size, made.tune.seq_length, made.train_values["lr"]) == (5, 64, 0.5)
    with pytest.raises(Error, match="unknown setting 'num_train_epochs'. formers calls it 'epochs'"):
        configure_finetuning(ModelChoice("bert"), "classify", None, {"tune.num_train_epochs": 3})
    with pytest.raises(Error, match="finetune has no argument 'num_train_epochs'. formers calls it 'epochs'"):
        formers.finetune("bert", [], num_train_epochs=3)
    with pytest.raises(Error, match="pretrain has no argument 'per_device_train_batch_size'.*train.batch_tokens"):
        formers.pretrain("bert", [], per_device_train_batch_size=3)


def test_synonyms_of_generation():
    with pytest.warns(UserWarning, match="max_length is taken as max_new_tokens"):
        assert make_options({"max_length": 7}, max_new_tokens=64).max_new_tokens == 7
    made = make_options({"num_return_sequences": 3, "no_repeat_ngram_size": 2})
    assert (made.num_samples, made.no_repeat_ngram) == (3, 2)
    assert make_options({"do_sample": False}).temperature == 0
    assert make_options({"do_sample": True, "temperature": 0.5}).temperature == 0.5
    assert make_options({"do_sample": False, "num_beams": 4}).num_beams == 4
    for given, message in (
        ({"num_return_sequences": 2, "num_samples": 3}, "are the same option"),
        ({"do_sample": False, "temperature": 0.5}, "contradict each other"),
        ({"do_sample": True, "num_beams": 4}, "beam search does not sample"),
        ({"do_sample": "no"}, "do_sample is True or False"),
        ({"beams": 2}, "unknown option 'beams'. formers calls it 'num_beams'"),
    ):
        with pytest.raises(Error, match=message):
            make_options(given)


@pytest.mark.parametrize(("words", "expected"), [
    (["--do-sample"], ["--temperature", "1"]),
    (["--do_sample", "False", "--seed", "3"], ["--temperature", "0", "--seed", "3"]),
    (["--do-sample=true"], ["--temperature", "1"]),
    (["--num_return_sequences=3"], ["--num-samples=3"]),
    (["--max_new_tokens", "3"], ["--max_new_tokens", "3"]),
    (["--", "--num_return_sequences"], ["--", "--num_return_sequences"]),
])  # fmt: skip
def test_words_of_a_command(words, expected):
    assert translate_options(["generate", "model", "prompt", *words]) == ["generate", "model", "prompt", *expected]


@pytest.mark.parametrize(("words", "message"), [
    (["generate", "m", "x", "--beams", "3"], "unknown option --beams. formers calls it --num-beams"),
    (["embed", "m", "--file", "x", "--output_dir", "v"], "unknown option --output_dir. formers calls it --out"),
    (["pretrain", "gpt2", "--eval.interval", "3"], "formers calls it --train.eval_every"),
    (["pretrain", "gpt2", "--keep-best", "3"], "it is a setting: --train.keep_best"),
    (["pretrain", "gpt2", "--fp16"], "formers calls it --dtype fp16"),
    (["finetune", "bert", "--num_train_epochs", "3"], "formers calls it --epochs"),
    (["finetune", "bert", "--task", "qa"], "there is no task 'qa'. formers calls it 'answer'"),
    (["finetune", "bert", "--task", "summary"], "Did you mean 'summarise'?"),
    (["train", "gpt2"], "there is no command 'train'. formers pretrain FAMILY"),
    (["tokenizer", "trian"], "there is no command 'tokenizer trian'. did you mean train?"),
    (["generate", "m", "x", "--nonsense", "3"], "unknown option --nonsense. see formers generate --help"),
    (["generate", "m", "x", "--temprature=3"], "unknown option --temprature. did you mean --temperature?"),
    (["pretrain", "gpt2", "--nonsense", "3"], "unknown option --nonsense. see formers pretrain family --help"),
    (["pretrain", "gpt2", "--kep-best=3"], "unknown option --kep-best. did you mean --train.keep_best?"),
    (["pretrain", "gpt2", "stray"], "unexpected argument 'stray'"),
    (["generate", "m", "x", "stray"], "unexpected argument 'stray'"),
    (["generate", "m", "x", "--top-k"], "--top-k has no value"),
    (["generate", "m", "x", "--top-k", "many"], "--top-k takes a whole number, not 'many'"),
    (["embed", "m", "--file", "x"], "formers embed needs --out. see formers embed --help"),
    (["embed"], "formers embed needs model"),
    (["embed", "m", "--outt", "x"], "unknown option --outt. did you mean --out?"),
    (["evaluate", "m", "--data", "x", "--kind", "pears"], "--kind has no choice 'pears'. choose from perplexity"),
    (["finetune", "bert", "--features", "cat4"], "did you mean concat4?"),
    (["finetune", "seq2seq", "--preset", "luong-local"], "a preset is named in MODEL's place"),
])  # fmt: skip
def test_one_line_names_ours(words, message, capsys):
    with pytest.raises(SystemExit) as end:
        main(words)
    error = capsys.readouterr().err
    assert end.value.code == 2
    assert message.lower() in error.lower()
    assert error.count("\n") == 1


def test_tasks_and_verbs():
    assert {*TASK_SYNONYMS.values(), *TASK_HINTS.values()} <= set(TASKS)
    assert not {*TASK_SYNONYMS, *TASK_HINTS} & set(TASKS)
    for name, ours in TASK_SYNONYMS.items():
        assert option_aliases.resolve_task_name(name) == ours
        assert option_aliases.resolve_task_name(name.upper().replace("-", "_")) == ours
        parsed = app.parse_args(["finetune", "bert", "--task", name], exit_on_error=False, print_error=False)
        assert parsed[1].arguments["task"] == ours
    for name, ours in VERB_SYNONYMS.items():
        assert getattr(formers, name) is getattr(formers, ours)
        assert ours in VERBS
        assert app[name].default_command is app[ours].default_command
        assert getattr(formers.build("gpt2", vocab=8, dim=8, layers=1, heads=1, context=8), name).__func__ is getattr(
            formers, ours
        )
