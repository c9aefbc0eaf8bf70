"""Plans for many GPUs: what they say about two processes is what two processes do."""

from __future__ import annotations

import dataclasses

import pytest

from formers import Error
from formers.training.config_merge import configure_pretraining
from formers.training.runs import cluster_plan
from formers.training.runs.cluster_plan import Cluster, describe_cluster, list_plans, make_plan, measure_model
from tests.training import ranks

WAYS = [("gpt2", "ddp"), ("albert", "fsdp"), ("switch", "expert"), ("t5", "fsdp")]
OTHER_WAYS = [("gpt2", "fsdp"), ("switch", "ddp")]  # with --full
pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(autouse=True)
def _short_probe(monkeypatch, full):
    """Measure copies on less text: most of the time of a plan is its tokenizer's training."""
    if not full:
        monkeypatch.setattr(cluster_plan, "PROBE_CHARS", 150_000)


@pytest.fixture(scope="module")
def gpt2_size():
    """The sizes of the published GPT-2, and the notes on how they were found."""
    config = configure_pretraining("gpt2", None, {"model.vocab": 50257, "train.batch_tokens": 32768}, preset="gpt2")
    return config, *measure_model(config)


@pytest.fixture(scope="module")
def measured_figures(request, tmp_path_factory):
    """What two processes held and sent, by family and strategy."""
    folder, ways = tmp_path_factory.mktemp("plans"), WAYS + OTHER_WAYS * request.config.getoption("--full")
    jobs = [
        {"verb": "measure", "name": f"{family}-{way}", "beside": str(folder), "family": family, "parallel": way}
        for family, way in ways
    ]
    ranks.run_jobs(folder, jobs, seconds=240)
    return {
        (family, way): [one["result"] for one in ranks.read_records(folder, f"{family}-{way}")] for family, way in ways
    }


@pytest.mark.parametrize(
    ("family", "way"), [*WAYS, *(pytest.param(*way, marks=pytest.mark.full) for way in OTHER_WAYS)]
)
def test_a_plan_says_what_two_processes_hold_and_send(measured_figures, family, way):
    config, seen = ranks.make_exchange_config(family, way), measured_figures[family, way]
    data = dataclasses.replace(config.data, vocab_size=seen[0]["vocab"])  # a small text has fewer tokens than asked for
    size, _ = measure_model(dataclasses.replace(config, data=data))
    tokens = sum(one["tokens"] for one in seen) / 2
    size = dataclasses.replace(size, batch_tokens=tokens)
    plan = make_plan(way, size, config.train, Cluster(cluster_plan.GPUS["h200"], 2))
    held = [2 * one["weights"] + one["state"] for one in seen]  # a gradient is as large as its weight
    assert sum(held) / 2 == pytest.approx(plan.state_bytes, rel=0.01)
    # Of two, each sends half of a sum or a gathered tensor; a sum travels twice. Experts are not visited equally often.
    sent = [one["sent"].pop("allreduce_", 0) + sum(one["sent"].values()) / 2 for one in seen]
    expected = plan.sent_bytes
    if way == "expert":  # tokens travel in fp32 on a CPU
        expected += 4 * 0.5 * tokens * size.dim * 2 * size.expert_visits
    assert sum(sent) / 2 == pytest.approx(expected, rel=0.02)


def test_sizes_of_a_published_model_follow_from_its_shapes(gpt2_size):
    config, size, notes = gpt2_size
    assert size.parameters == 124_439_808
    assert size.block_parameters == 12 * 7_087_872
    assert size.layers == 12
    assert size.optimizer_bytes == pytest.approx(8, rel=0.01)
    # Inputs and outputs of two norms and of attention (8 values a channel), the feed-forward layer before and after its
    # activation (8), all in bf16.
    assert size.layer_token_bytes == pytest.approx(2 * 16 * 768, rel=0.02)
    one = make_plan("ddp", size, config.train, describe_cluster("h200", 1))
    assert one.sent_bytes == one.wait_seconds == one.buffer_bytes == 0
    assert one.memory / 2**30 == pytest.approx(13.7, rel=0.15), "measured on an H200"
    assert any("510,983" in note for note in notes)


def test_more_gpus_share_state_and_wait_longer(gpt2_size):
    config = configure_pretraining("gpt2", None, {"train.accumulate": 64}, preset="gpt2")
    size = dataclasses.replace(gpt2_size[1], batch_tokens=config.train.batch_tokens)
    plans = {n: make_plan("fsdp", size, config.train, describe_cluster("h100", n)) for n in (1, 8, 64)}
    assert plans[8].state_bytes == pytest.approx(plans[1].state_bytes / 8)
    assert plans[64].state_bytes == pytest.approx(plans[1].state_bytes / 64)
    assert plans[64].wait_seconds > plans[8].wait_seconds > plans[1].wait_seconds == 0
    assert plans[64].tokens == plans[8].tokens == 64 * config.train.batch_tokens
    slow = make_plan("fsdp", size, config.train, describe_cluster("h100", 64, network=1.0))
    assert slow.tokens_per_second < plans[64].tokens_per_second
    kept = dataclasses.replace(config.train, activation_checkpointing=True)
    kept_plan = make_plan("ddp", size, kept, describe_cluster("h100", 8))
    assert kept_plan.activation_bytes < plans[8].activation_bytes
    plan = make_plan("ddp", size, config.train, describe_cluster("h100", 8))
    assert kept_plan.tokens_per_second < plan.tokens_per_second  # blocks run forward twice


@pytest.mark.parametrize("family", ["bert", "transformer", "transformer_xl", "xlnet", "bart", "bloom", "gptj"])
def test_other_families_have_plans(family):
    given = {"train.accumulate": 4}
    rows, notes = list_plans(configure_pretraining(family, None, given), describe_cluster("a100", 4))
    assert [row[0] for row in rows] == ["ddp", "fsdp"]
    assert all("GB" in cell for row in rows for cell in row[1:6])
    assert len(notes) >= 2


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(Error, match="h100"):
        describe_cluster("h10", 8)
    with pytest.raises(Error, match="above 0"):
        describe_cluster("h100", 0)
    with pytest.raises(Error, match="has no blocks"):
        measure_model(configure_pretraining("elmo"))


def test_experts_are_shared_by_numbers_that_divide_them():
    config = configure_pretraining("switch", None, {"model.experts": 4, "train.accumulate": 12})
    ways = [[row[0] for row in list_plans(config, describe_cluster("h100", n))[0]] for n in (4, 3)]
    assert ways == [["ddp", "fsdp", "expert"], ["ddp", "fsdp"]]
