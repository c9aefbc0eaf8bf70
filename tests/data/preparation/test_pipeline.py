"""formers prepare: the same store for any number of workers and ranks, after kills, and for any kind of source."""

from __future__ import annotations

import gzip
import importlib.util
import itertools
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

import formers
from formers import Error, Store
from formers.atomic_files import hold_lock
from formers.cli.main import main
from formers.data.preparation import pipeline as module
from formers.data.preparation.document_encoder import ENTITY_BIT, PHRASE_BIT
from formers.interop.tokenizer_files import load_tokenizer
from formers.registry import train_tokenizer

TEXTS = [
    f"The cat number {i} sat down. Then the dog number {i * 7} ran away! And {'so ' * (i % 9)}on." for i in range(300)
]
TOKENIZER = train_tokenizer("bpe", TEXTS[:50], 320)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_CHARACTERS", 1500)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def files(tmp_path):
    """Seven files of different sizes."""
    folder = tmp_path / "text"
    folder.mkdir()
    edges = [0, 5, 90, 100, 170, 171, 260, 300]
    for i, (a, b) in enumerate(itertools.pairwise(edges)):
        (folder / f"{i}.txt").write_text("\n".join(TEXTS[a:b]) + "\n", encoding="utf-8")
    return folder


def prepare_store(source, out, **how):
    return formers.prepare(source, TOKENIZER, out, **{"shard": 2000, "validation": 0.1, "unit": "line", **how})


def read_files(path):
    return {p.name: p.read_bytes() for p in path.iterdir()}


@pytest.fixture
def expected_files(files, tmp_path, monkeypatch):
    monkeypatch.setattr("formers.data.preparation.pipeline.GROUP_BYTES", 9000)
    prepare_store(files, tmp_path / "expected")
    return read_files(tmp_path / "expected")


def test_every_document_once(files, tmp_path):
    train = prepare_store(files, tmp_path / "s")
    held = Store.open(tmp_path / "s", "validation")
    assert len(train.directory.part_metadata["shards"]) > 2
    texts = {}
    for name, part in (("train", train), ("validation", held)):
        for a, b in zip(part.starts, part.starts[1:], strict=False):
            texts.setdefault(TOKENIZER.decode(part.tokens[a:b]), []).append(name)
            assert part.tokens[b - 1] == TOKENIZER.id("eos")
    assert sorted(texts) == sorted(TEXTS)
    assert all(len(where) == 1 for where in texts.values())
    assert 10 < sum(where == ["validation"] for where in texts.values()) < 60
    assert len(train.sentences) - 1 + len(held.sentences) - 1 == 3 * len(TEXTS)
    assert train.directory.metadata["counts"]["exact"] == 0
    assert not [p for p in (tmp_path / "s").iterdir() if p.suffix in (".tmp", "") or p.name.startswith("done")]


@pytest.mark.parametrize("workers", [1, 2])
def test_the_same_for_any_number_of_workers(files, expected_files, tmp_path, workers):
    prepare_store(files, tmp_path / "s", workers=workers)
    assert read_files(tmp_path / "s") == expected_files


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_for_any_number_of_ranks(files, expected_files, tmp_path, ranks, monkeypatch):
    assert sum(name.endswith("00000.bin") for name in expected_files) >= 4, "there are several groups"
    for rank in reversed(range(ranks)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        made = prepare_store(files, tmp_path / "s")
        assert (made is None) == (rank > 0), "the last one to come finishes"
    assert read_files(tmp_path / "s") == expected_files


@pytest.mark.parametrize("after", [1, 4, 9])
def test_a_stopped_run_continues(files, expected_files, tmp_path, monkeypatch, after):
    told = []

    def tell(*_):
        told.append(1)
        if len(told) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_store(files, tmp_path / "s", tell=tell)
    assert not list((tmp_path / "s").glob("*.tmp"))
    assert not (tmp_path / "s" / "lock").exists()
    before = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "s").glob("*.bin")}
    with pytest.raises(Error, match="is not a token store. It is not finished: run the same"):
        Store.open(tmp_path / "s")
    made = []
    real = module.ShardWriter.__init__
    monkeypatch.setattr(
        module.ShardWriter, "__init__", lambda self, w, name, *a: made.append(name) or real(self, w, name, *a)
    )
    prepare_store(files, tmp_path / "s")
    assert read_files(tmp_path / "s") == expected_files
    after_ = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "s").glob("*.bin")}
    assert before.items() <= after_.items(), "finished shards are not made again"
    assert len(made) == len(set(made))


def test_a_run_stopped_while_it_finishes_continues(files, expected_files, tmp_path, monkeypatch):
    """Before each file that the last step writes, renames or removes: nothing of a finished store may be taken away."""
    changes = 0

    def stop_before(last, function, which):
        def change(*args, **how):
            nonlocal changes
            if Path(args[which]).parent.name.startswith("s") and Path(args[which]).name != "lock":
                changes += 1
                if changes == last:
                    raise KeyboardInterrupt
            return function(*args, **how)

        return change

    def prepare_until(last, out):
        nonlocal changes
        changes = 0
        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", stop_before(last, Path.unlink, 0))
            patch.setattr(os, "replace", stop_before(last, os.replace, 1))
            prepare_store(files, out)

    prepare_until(0, tmp_path / "s")
    total = changes
    assert total > 10
    for last in range(total, 0, -1):
        with pytest.raises(KeyboardInterrupt):
            prepare_until(last, tmp_path / f"s{last}")
        prepare_store(files, tmp_path / f"s{last}")
        assert read_files(tmp_path / f"s{last}") == expected_files, f"stopped before change {last} of {total}"


SCRIPT = """
import sys, time
from formers.data.preparation import pipeline
from formers.text.tokenizer import Tokenizer
pipeline.CHUNK_CHARACTERS, pipeline.GROUP_BYTES = 1500, 9000
if __name__ == "__main__":
    tokenizer = Tokenizer(open(sys.argv[2], encoding="utf-8").read(), {"bos": "<|endoftext|>", "eos": "<|endoftext|>"})
    pipeline.prepare(sys.argv[1], tokenizer, sys.argv[3], shard=2000, validation=0.1, unit="line",
                     tell=lambda *_: time.sleep(0.02))
"""


def start_preparation(files, tmp_path):
    (tmp_path / "run.py").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "t.json").write_text(TOKENIZER.json_text, encoding="utf-8")
    command = [sys.executable, tmp_path / "run.py", files, tmp_path / "t.json", tmp_path / "s"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def test_killed_again_and_again(files, expected_files, tmp_path, full):
    random, kills = np.random.default_rng(0), 0
    for _ in range(60 if full else 4):
        process = start_preparation(files, tmp_path)
        until = time.monotonic() + 20
        while not (tmp_path / "s" / "lock").exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.6))
        process.send_signal(signal.SIGKILL)
        kills += process.wait() == -signal.SIGKILL
    assert kills
    prepare_store(files, tmp_path / "s")
    assert read_files(tmp_path / "s") == expected_files, "and no temporary files"


def test_one_run_at_a_time(files, tmp_path):
    process = start_preparation(files, tmp_path)
    try:
        while not (tmp_path / "s" / "begun.json").exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        with pytest.raises(Error, match=f"is in use by process {process.pid} on "):
            prepare_store(files, tmp_path / "s")
        with pytest.raises(Error, match="is in use by process"):
            prepare_store(files, tmp_path / "s", rank=0, ranks=2)
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "s" / "lock").exists(), "the lock of the dead is stale"
    prepare_store(files, tmp_path / "s")


def test_ranks_lock_too(tmp_path):
    (tmp_path / "s").mkdir()
    with hold_lock(tmp_path / "s" / "lock", shared=True), hold_lock(tmp_path / "s" / "lock-1"):
        with pytest.raises(Error, match="is in use by process"):
            prepare_store(TEXTS, tmp_path / "s", rank=1, ranks=2)
        with pytest.raises(Error, match="is in use by process"):
            prepare_store(TEXTS, tmp_path / "s")
        assert prepare_store(TEXTS, tmp_path / "s", rank=0, ranks=2) is not None, "one group, one rank that works"


def test_other_settings_or_text_are_refused(files, tmp_path):
    prepare_store(files, tmp_path / "s")
    assert len(prepare_store(files, tmp_path / "s").starts), "it is finished already"
    with pytest.raises(Error, match=r"other settings \(options\)"):
        prepare_store(files, tmp_path / "s", validation=0.2)
    (files / "3.txt").write_text("something else\n", encoding="utf-8")
    with pytest.raises(Error, match=r"other settings \(input\)"):
        prepare_store(files, tmp_path / "s")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x", encoding="utf-8")
    with pytest.raises(Error, match=r"is not empty \(thesis.txt\)"):
        prepare_store(files, tmp_path / "mine")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.txt"]
    with pytest.raises(Error, match="cannot be held out"):
        prepare_store(files, tmp_path / "x", validation=1.5)
    with pytest.raises(Error, match="there is no splitter 'magic'"):
        prepare_store(files, tmp_path / "x", splitter="magic")
    with pytest.raises(Error, match="no text to learn from"):
        prepare_store(["", ""], tmp_path / "empty")


def test_text_that_changed_under_finished_shards(tmp_path):
    def stop(*_):
        told.append(1)
        if len(told) == 6:
            raise KeyboardInterrupt

    told = []
    with pytest.raises(KeyboardInterrupt):
        prepare_store(TEXTS, tmp_path / "s", tell=stop)
    assert list((tmp_path / "s").glob("done-*"))
    for other in (["x", *TEXTS[1:]], TEXTS[:3]):
        with pytest.raises(Error, match="the text has changed since the finished shards were made"):
            prepare_store(other, tmp_path / "s")
    made = prepare_store(TEXTS, tmp_path / "s")
    assert len(made.starts) + len(Store.open(tmp_path / "s", "validation").starts) - 2 == len(TEXTS)


def test_a_worker_that_dies(tmp_path, monkeypatch):
    def tell(*_):
        import multiprocessing

        for child in multiprocessing.active_children():
            os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(Error, match="a worker process ended before its work was done"):
        prepare_store(TEXTS, tmp_path / "s", workers=1, tell=tell)
    assert not list((tmp_path / "s").glob("*.tmp"))
    prepare_store(TEXTS, tmp_path / "s")


def test_lists_tables_and_datasets(tmp_path):
    import pandas

    expected = prepare_store(TEXTS, tmp_path / "list").content_hash
    frame = pandas.DataFrame({"text": TEXTS, "label": 1})
    assert prepare_store(frame, tmp_path / "frame", column="text").content_hash == expected
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"text": TEXTS, "label": [1] * len(TEXTS)})
    assert prepare_store(dataset, tmp_path / "dataset", column="text").content_hash == expected
    assert prepare_store(iter(TEXTS), tmp_path / "iterator").content_hash == expected


def test_phrases_for_ernie(files, tmp_path):
    numbers = (1 / np.random.default_rng(0).uniform(0.001, 1, 20_000)).astype(int).tolist()
    rows = [" ".join(f"w{n}" for n in numbers[i : i + 10]) for i in range(0, 20_000, 10)]
    (files / "9.txt").write_text("\n".join(row + " the white house" * (i % 20 == 0) for i, row in enumerate(rows)))
    made = prepare_store(files / "9.txt", tmp_path / "s", units="learn", validation=0)
    assert "white house\n" in (tmp_path / "s" / "phrases.txt").read_text(encoding="utf-8")
    a, b = made.starts[:2]
    ids, _, units = made.read_spans(np.array([a]), np.array([b]))
    words = TOKENIZER.decode(ids).split()
    assert len(words) == 13
    assert (units > 0).sum() >= 12, "one unit less than words, and the end mark"
    house = [units[i] & PHRASE_BIT for i in range(b - a) if TOKENIZER.decode(ids[: i + 1]).endswith(" the white h")]
    assert house == [0], "the second word of a phrase begins nothing"
    with pytest.raises(Error, match="in a pass of their own"):
        prepare_store(iter(TEXTS), tmp_path / "x", units="learn")
    (tmp_path / "list.txt").write_text("The cat\nsat down\tentity\n", encoding="utf-8")
    given = prepare_store(files / "0.txt", tmp_path / "y", units=str(tmp_path / "list.txt"), validation=0)
    ids, _, units = given.read_spans(given.starts[:1], given.starts[1:2])
    bits = dict(zip(map(TOKENIZER.get_token_text, ids.tolist()), units.tolist(), strict=True))
    assert bits[" cat"] == ENTITY_BIT, "inside a phrase of the list"
    assert bits[" down"] == PHRASE_BIT, "inside an entity of the list"


@pytest.mark.skipif(
    not importlib.util.find_spec("formers.data.preparation.corpus_filters"), reason="hygiene is not there"
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_duplicates_are_left_out_over_all_files(files, tmp_path, ranks, monkeypatch):
    monkeypatch.setattr("formers.data.preparation.pipeline.GROUP_BYTES", 9000)
    (files / "9.txt").write_text("\n".join(TEXTS[50:150]) + "\nnew\n", encoding="utf-8")
    for rank in range(ranks):
        made = prepare_store(files, tmp_path / "s", deduplicate="exact", validation=0, rank=rank, ranks=ranks)
    assert len(made.starts) - 1 == len(TEXTS) + 1
    assert made.directory.metadata["counts"]["exact"] == 100


@pytest.mark.parametrize("drop", [False, True])
def test_tests_inside_the_text_are_found_and_counted(files, tmp_path, drop):
    known = [f"this very sentence of a test number {i} is certainly long enough to be found again" for i in range(5)]
    (files / "9.txt").write_text("\n".join([*known[:3], f"before {known[0]} after"]) + "\n", encoding="utf-8")
    (tmp_path / "sst.tsv").write_text("text\tlabel\n" + "".join(f"{t}\t1\n" for t in known), encoding="utf-8")
    plain = prepare_store(files, tmp_path / "plain", validation=0)
    made = prepare_store(files, tmp_path / "s", validation=0, tests=[tmp_path / "sst.tsv"], drop_tests=drop)
    counts = made.directory.metadata["counts"]
    assert counts["tests"]["tests"] == {"sst.tsv": {"examples": 5, "found": 3, "short": 0}}
    assert counts["seen_in_tests"] == 4
    assert len(plain.starts) - len(made.starts) == (4 if drop else 0)


def test_tokenizers_in_all_places(tmp_path):
    pieces = train_tokenizer("wordpiece", TEXTS[:20], 200)
    made = formers.build("bert", head="mlm", vocab=len(pieces), dim=8, heads=2, layers=1, ff=8)
    made.tokenizer = pieces
    formers.save(made, tmp_path / "model")
    formers.export(made, tmp_path / "hf")
    for where in ("model", "model/tokenizer.json", "hf", "hf/tokenizer.json"):
        found = load_tokenizer(tmp_path / where)
        assert found.fingerprint == pieces.fingerprint
        assert found.special == pieces.special
    (tmp_path / "old").mkdir()
    vocab = sorted(json.loads(pieces.json_text)["model"]["vocab"].items(), key=lambda item: item[1])
    (tmp_path / "old" / "vocab.txt").write_text("".join(f"{word}\n" for word, _ in vocab), encoding="utf-8")
    assert len(load_tokenizer(tmp_path / "old")) == len(pieces)
    with pytest.raises(Error, match="no such directory"):
        load_tokenizer(tmp_path / "nowhere")


def test_on_the_command_line(files, tmp_path, capsys, monkeypatch):
    def run(*words):
        with pytest.raises(SystemExit) as end:
            main(["prepare", *map(str, words)])
        out, err = capsys.readouterr()
        return end.value.code, out, " ".join(err.split())

    (tmp_path / "t.json").write_text(TOKENIZER.json_text, encoding="utf-8")
    words = (files, "--tokenizer", tmp_path / "t.json", "--unit", "line", "--out")
    code, out, _ = run(*words, tmp_path / "s", "--validation", "10%", "--shard-size", "4KB")
    held = Store.open(tmp_path / "s", "validation")
    assert not code
    assert f"s (validation): {len(held.starts) - 1:,} documents" in out
    assert list((tmp_path / "s").glob("validation-*"))
    run(*words, tmp_path / "old", "--held-out", "10%", "--shard-size", "4KB")
    again = Store.open(tmp_path / "old", "validation")
    assert again.content_hash == held.content_hash, "the earlier name of the option"
    for wrong, message in ((("--validation", "many"), "'many' is not a share"), (("--splitter", "magic"), "splitter")):
        code, _, err = run(*words, tmp_path / "x", *wrong)
        assert code == 2
        assert message in err.lower()
    code, _, err = run(*words[1:], tmp_path / "x")
    assert (code, "nothing to read" in err) == (2, True)

    def stop_at_once(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("formers.interop.tokenizer_files.prepare", stop_at_once)
    code, _, err = run(*words, tmp_path / "y")
    assert code == 130
    assert "the same command continues from there" in err


def test_an_old_store_is_never_given_for_new_text(tmp_path):
    formers.prepare(["one two three."] * 9, TOKENIZER, tmp_path / "m")
    with pytest.raises(Error, match="text in memory cannot be compared"):
        formers.prepare(["four five six."] * 9, TOKENIZER, tmp_path / "m")


def test_a_first_command_that_failed_blocks_nothing(tmp_path):
    (tmp_path / "x.tsv").write_text("a\tb\n1\thello there\n2\tyou\n", encoding="utf-8")
    with pytest.raises(Error):
        formers.prepare(tmp_path / "x.tsv", TOKENIZER, tmp_path / "s", column="document")
    assert len(formers.prepare(tmp_path / "x.tsv", TOKENIZER, tmp_path / "s", column="b").starts) == 3


def test_other_tests_are_other_settings(files, tmp_path):
    (tmp_path / "t.txt").write_text("a test\n", encoding="utf-8")
    prepare_store(files, tmp_path / "s", validation=0, tests=[tmp_path / "t.txt"])
    with pytest.raises(Error, match="other settings"):
        prepare_store(files, tmp_path / "s", validation=0)


def test_unknown_tokens_are_counted_and_said(tmp_path, capsys):
    pieces = train_tokenizer("wordpiece", ["only a few english words here"] * 5, 60)
    pieces.save(tmp_path / "tokenizer.json")
    (tmp_path / "ko.txt").write_text("한국어 문장 하나\n또 하나\n", encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        main(["prepare", str(tmp_path / "ko.txt"), "--tokenizer", str(tmp_path), "--out", str(tmp_path / "s")])
    assert not end.value.code
    assert "100% of the tokens are unknown" in " ".join(capsys.readouterr().out.split())
    assert Store.open(tmp_path / "s").directory.metadata["counts"]["unknown"] == 5


def test_unknown_tokens_are_counted_over_a_run_that_was_stopped(files, tmp_path):
    pieces = train_tokenizer("wordpiece", TEXTS[:3], 60)
    how = {"unit": "line", "shard": 500}
    whole = formers.prepare(files, pieces, tmp_path / "whole", **how)
    counted = whole.directory.metadata["counts"]["unknown"]
    assert counted == np.count_nonzero(np.asarray(whole.tokens) == pieces.id("unk")) > 0

    def stop(what, done, of, detail):
        if any((tmp_path / "again").glob("done-*.json")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        formers.prepare(files, pieces, tmp_path / "again", **how, tell=stop)
    formers.prepare(files, pieces, tmp_path / "again", **how)
    assert read_files(tmp_path / "again") == read_files(tmp_path / "whole")


def test_a_store_with_the_earlier_name_of_its_validation_part(files, tmp_path, monkeypatch):
    """Files of the validation part were once called held-*: such a store opens, and one that was begun is finished."""
    today = prepare_store(files, tmp_path / "today")

    def stop(what, done, of, detail):
        if any((tmp_path / "begun").glob("done-*.json")):
            raise KeyboardInterrupt

    with monkeypatch.context() as earlier:
        for module in ("document_encoder", "pipeline"):
            earlier.setattr(f"formers.data.preparation.{module}.VALIDATION_PART", "held")
        prepare_store(files, tmp_path / "old")
        with pytest.raises(KeyboardInterrupt):
            prepare_store(files, tmp_path / "begun", tell=stop)
    assert list((tmp_path / "old").glob("held-*"))
    assert list((tmp_path / "begun").glob("held-*"))
    prepare_store(files, tmp_path / "begun")
    for part in ("train", "validation"):
        expected = Store.open(tmp_path / "today", part)
        for folder in ("old", "begun"):
            store = Store.open(tmp_path / folder, part)
            assert np.array_equal(store.tokens, expected.tokens)
            assert np.array_equal(store.starts, expected.starts)
    assert list(today.directory.parts) == list(Store.open(tmp_path / "old").directory.parts) == ["train", "validation"]
    prepare_store(TEXTS[:60], tmp_path / "old", overwrite=True)
    assert not list((tmp_path / "old").glob("held-*"))


def test_a_second_rank_with_other_settings_is_refused(files, tmp_path, monkeypatch):
    monkeypatch.setattr("formers.data.preparation.pipeline.GROUP_BYTES", 9000)

    def other(*_):
        monkeypatch.setattr(module, "CHUNK_CHARACTERS", 1500)
        with pytest.raises(Error, match="other settings"):
            prepare_store(files, tmp_path / "s", validation=0, rank=1, ranks=2)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_store(files, tmp_path / "s", rank=0, ranks=2, tell=other)


@pytest.mark.parametrize("split", ["rules", None])
def test_documents_cannot_forge_a_special_token(tmp_path, capsys, split):
    pieces = train_tokenizer("t5", TEXTS[:30], 300, workers=1)
    forged = ["a </s> b", "see <extra_id_0> here", "<pad><pad>", "＜／ｓ＞ wide"]
    store = formers.prepare([*TEXTS[:5], *forged], pieces, tmp_path / "s", splitter=split)
    for number in range(len(store.starts) - 1):
        *ids, end = store.tokens[store.starts[number] : store.starts[number + 1]].tolist()
        assert end == pieces.id("eos")
        assert not {pieces.get_token_text(i) for i in ids} & (pieces.reserved_tokens - {"<unk>"})
    assert store.directory.metadata["counts"]["spelled"] == 3  # in full width it is no special token anyway


def test_the_report_says_what_was_odd(tmp_path, capsys):
    pieces = train_tokenizer("wordpiece", TEXTS[:50], 100, style="bert", workers=1)
    pieces.save(tmp_path / "tokenizer.json")
    (tmp_path / "t.txt").write_text("The cat [SEP] sat.\na\n\u00ad\n", encoding="utf-8")
    words = [str(tmp_path / "t.txt"), "--unit", "line", "--tokenizer", str(tmp_path), "--out", str(tmp_path / "s")]
    with pytest.raises(SystemExit):
        main(["prepare", *words])
    said = " ".join(capsys.readouterr().out.split())
    assert "1 document with a special token spelled out (it stays text)" in said
    assert "1 document without a token left out" in said
    assert "1 document of one token, too short for an example" in said


@pytest.fixture
def long(tmp_path):
    """A file whose ends say nothing about its middle."""
    path = tmp_path / "long.txt"
    path.write_text("".join(f"{text}\n" for text in TEXTS * 9), encoding="utf-8")
    assert path.stat().st_size > 1 << 17
    return path


def alter_middle(path):
    """One letter in the middle changes; the size and both ends stay."""
    data = bytearray(path.read_bytes())
    middle = data.index(b"cat", len(data) // 2)
    data[middle : middle + 3] = b"cow"
    path.write_bytes(data)


def test_a_change_in_the_middle_of_a_file_is_noticed(long, tmp_path):
    first = prepare_store(long, tmp_path / "s")
    os.utime(long)  # touched, not changed
    assert prepare_store(long, tmp_path / "s").content_hash == first.content_hash
    (tmp_path / "s" / "inputs.json").write_text("damaged", encoding="utf-8")
    assert prepare_store(long, tmp_path / "s").content_hash == first.content_hash
    alter_middle(long)
    with pytest.raises(Error, match=r"long\.txt: has changed since a store was made of it"):
        prepare_store(long, tmp_path / "s")


def test_files_that_were_not_written_to_are_not_read_again(long, tmp_path, monkeypatch):
    prepare_store(long, tmp_path / "s")
    monkeypatch.setattr("formers.data.preparation.pipeline.hash_file", lambda *_: pytest.fail("it was read"))
    prepare_store(long, tmp_path / "s")


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.txt.xz", "a.txt.zst", "a.csv", "a.jsonl.xz"])
def test_a_file_is_hashed_while_it_is_read(tmp_path, monkeypatch, name):
    """The sum is of the file as it is on the disk, with what follows the end of a packed text."""
    monkeypatch.setattr("formers.data.text_files.READ_BYTES", 1000)
    rows = {".csv": ["text", *(f'"{text}"' for text in TEXTS)], ".jsonl": [json.dumps({"text": t}) for t in TEXTS]}
    lines = next((rows[form] for form in rows if form in name), TEXTS)
    data, packed = "".join(f"{line}\n" for line in lines).encode(), name.rpartition(".")[2]
    if packed == "gz":
        data = gzip.compress(data) + gzip.compress(data) + bytes(70_000)
    elif packed == "xz":
        data = lzma.compress(data) + b"no stream" * 9000
    elif packed == "zst":
        data = pytest.importorskip("zstandard").compress(data)
    (tmp_path / name).write_bytes(data)
    monkeypatch.setattr(module, "hash_file", lambda *_: pytest.fail("it was read once more"))
    prepare_store(tmp_path / name, tmp_path / "s")
    assert [stamp["sha256"] for stamp in module.read_input_stamps(tmp_path / "s")] == [sha256(data).hexdigest()]


def test_a_parquet_file_is_hashed_in_the_background(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"text": TEXTS}), tmp_path / "a.parquet")
    prepare_store(tmp_path / "a.parquet", tmp_path / "s")
    expected = sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()
    assert [stamp["sha256"] for stamp in module.read_input_stamps(tmp_path / "s")] == [expected]


def test_a_change_in_a_finished_group_is_noticed(long, tmp_path, monkeypatch):
    """The first file's shards are finished, the second's are not."""
    monkeypatch.setattr("formers.data.preparation.pipeline.GROUP_BYTES", 9000)
    (tmp_path / "other.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    both = [long, tmp_path / "other.txt"]

    def stop(*_):
        if list((tmp_path / "s").glob("done-00001-*.json")):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare_store(both, tmp_path / "s", tell=stop)
    os.utime(long)
    alter_middle(long)
    with pytest.raises(Error, match="has changed since a store was made of it"):
        prepare_store(both, tmp_path / "s")


def test_a_file_that_changes_while_it_is_read(long, tmp_path):
    told = []

    def touch(*_):
        if not told:
            os.utime(long)
        told.append(1)

    with pytest.raises(Error, match="was changed while it was read"):
        prepare_store(long, tmp_path / "s", tell=touch)
    assert len(prepare_store(long, tmp_path / "s").starts) > 1


def test_another_list_of_phrases_is_another_setting(files, tmp_path):
    phrases = tmp_path / "list.txt"
    phrases.write_text("the cat\n", encoding="utf-8")
    prepare_store(files, tmp_path / "s", units=str(phrases))
    phrases.write_text("the dog\n", encoding="utf-8")
    with pytest.raises(Error, match=r"other settings \(phrases\)"):
        prepare_store(files, tmp_path / "s", units=str(phrases))
    for workers in (0, 1):
        with pytest.raises(Error, match="cannot be read as a list of phrases"):
            prepare_store(files, tmp_path / "x", units=str(tmp_path / "none.txt"), workers=workers)
    phrases.write_text("\n \n", encoding="utf-8")
    with pytest.raises(Error, match="the list of phrases is empty"):
        prepare_store(files, tmp_path / "x", units=str(phrases))
    assert not (tmp_path / "x").exists()
