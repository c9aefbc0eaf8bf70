"""hub:owner/name@revision against a small hub on 127.0.0.1 and against caches on the disk; never the network.

The client reads its environment when it is imported, so each test asks in a child process, and asks all it can there.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import formers
from formers import Error
from formers.interop import hub as client
from tests.interop.hub_server import Child, Hub, compute_digest, make_environment, read_files

GOLDEN = Path(__file__).parents[1] / "parity" / "golden"
EXTRA = (
    "README.md", ".gitattributes", "pytorch_model.bin", "flax_model.msgpack", "tf_model.h5", "onnx/model.onnx",
    "onnx/config.json", "model.fp16.safetensors", "training_args.bin", "runs/events.out.tfevents.1", "logs/train.log",
    "model-00001-of-00002.safetensors", "huggingface/model.safetensors", "huggingface/deep/config.json",
)  # fmt: skip
MALFORMED = (
    "", "a/b/c", "../x", "a/..", "a/b@", "a b", "a/b@x y", "@main", "a/", "/a", "a//b", "a/b@../x", "a/b@/etc/x",
    "a/b@x/../../y", "-a/b", "a/b.", "a--b/c", "a/b.git", "a/b@v1@v2", "a/b\n", "a/b?x=1", "a/b#c", "한국/모형",
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    with Child(tmp_path_factory.mktemp("child"), GOLDEN / "BertForPreTraining-0") as child:
        yield child


@pytest.fixture
def hub():
    with Hub() as server:
        yield server


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def small_model(tmp_path):
    """A Hugging Face directory with a tokenizer."""
    folder = tmp_path / "small"
    shutil.copytree(GOLDEN / "BertForPreTraining-0", folder, ignore=shutil.ignore_patterns("expected*"))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg", "한국"]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    return folder


def copy_with_other_weights(folder, path, seed):
    """A copy of a model with other weights."""
    former = formers.load(folder)
    torch.manual_seed(seed)
    for parameter in former.model.parameters():
        parameter.data.normal_()
    formers.export(former, path)
    return path


def write_cache(home, name, content, *, shared=(), listing=None, ref="main"):
    """A repository as the client keeps it: links in snapshots/COMMIT to blobs, and for files in `shared` from there on
    to the blobs that all repositories share (what comes by Xet); `listing` is what the client knows to be there."""
    root, sha = home / "hub" / ("models--" + name.replace("/", "--")), compute_digest(name)
    for file, data in content.items():
        blob, pointer = root / "blobs" / compute_digest(data), root / "snapshots" / sha / file
        blob.parent.mkdir(parents=True, exist_ok=True)
        pointer.parent.mkdir(parents=True, exist_ok=True)
        if file in shared:
            store = home / "hub" / "blobs" / compute_digest(data)[:2] / (compute_digest(data) + "0" * 24)
            store.parent.mkdir(parents=True, exist_ok=True)
            store.write_bytes(data)
            blob.symlink_to(f"../../blobs/{store.parent.name}/{store.name}")
        else:
            blob.write_bytes(data)
        pointer.symlink_to(f"{'../' * (file.count('/') + 2)}blobs/{blob.name}")
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / ref).write_text(sha)
    if listing is not None:
        (root / "trees").mkdir()
        known = {file: {"size": 1, "blob_id": compute_digest(file)} for file in listing}
        (root / "trees" / f"{sha}.json").write_text(json.dumps({"format_version": 1, "files": known}))
    return sha


def test_a_download_equals_the_directory_fetches_what_is_needed_and_is_kept(run, hub, home, small_model):
    needed = read_files(small_model)
    hub.add("lab/small", needed | dict.fromkeys(EXTRA, b"never asked for"))
    hub.add("lab/other", needed)
    run(
        home,
        hub.address,
        f"""
        mark("first")
        former = same("hub:lab/small", {str(small_model)!r})
        assert former.tokenizer.encode("a 한국") == [2, 5, 12, 3]
        mark("second")
        same("hub:lab/small", {str(small_model)!r})
        mark("broken")  # the hub answers 500 from now on
        same("hub:lab/small", {str(small_model)!r})
        refused("hub:lab/other", "lab/other is not in the cache, and the hub cannot be reached (HfHubHTTPError", "500",
                "Check the connection")
        """,
    )
    assert hub.downloads("first", "second") == sorted(needed)
    assert {path.split("/resolve/")[-1][41:] for method, path, _ in hub.list_requests("first") if method == "HEAD"} == {
        *needed
    }
    again = hub.list_requests("second", "broken")
    assert [method for method, _, _ in again] == ["GET"]  # which commit is main now? and nothing else
    assert again[0][1] == "/api/models/lab/small/revision/main"

    asked = len(hub.log)
    run(
        home,
        hub.address,
        f"""
        same("hub:lab/small", {str(small_model)!r})
        same("hub:lab/small@main", {str(small_model)!r})
        refused("hub:lab/other", "lab/other is not in the cache, and HF_HUB_OFFLINE is set. Unset it once to download")
        refused("hub:lab/small@v2", "lab/small@v2 is not in the cache", "HF_HUB_OFFLINE")
        """,
        HF_HUB_OFFLINE="1",
    )
    assert len(hub.log) == asked

    formers.export(formers.load(small_model), shards := home / "shards", shard=3000)
    write_cache(home, "lab/shards", read_files(shards))
    with socket.socket() as nobody:  # bound and not listening: the connection is refused
        nobody.bind(("127.0.0.1", 0))
        run(
            home,
            f"http://127.0.0.1:{nobody.getsockname()[1]}",
            f"""
            import time
            waits = []
            time.sleep = waits.append
            same("hub:lab/small", {str(small_model)!r})
            same("hub:lab/shards", {str(shards)!r})
            refused("hub:lab/other", "lab/other is not in the cache, and the hub cannot be reached (ConnectError",
                    "Check the connection, and HF_ENDPOINT")
            assert sum(waits) < 20, waits  # asking for the list of files again and again waits for 23 s
            """,
        )


def test_revisions_and_names(run, hub, home, small_model, tmp_path):
    old, new, side = (copy_with_other_weights(small_model, tmp_path / f"v{n}", n) for n in (1, 2, 3))
    first = hub.add("lab/many", read_files(old), "v1.0")
    hub.add("lab/many", read_files(side), "refs/pr/1", "feature/한국-x+1")
    hub.add("lab/many", read_files(new))
    hub.moved["many"] = "lab/many"
    hub.add("lab/gated", read_files(small_model))
    hub.repos["lab/gated"].gated = True
    for name, *closed in (
        ("lab/token", 401, "Invalid credentials in Authorization header"),
        ("lab/closed", 403, "Access to this resource is disabled."),
    ):
        hub.add(name, read_files(small_model))
        hub.repos[name].closed = closed
    hub.add("lab/words", {"README.md": b"no model here"})
    hub.add("lab/half", {"README.md": b"", "vocab.txt": b"a"})
    run(
        home,
        hub.address,
        f"""
        same("hub:lab/many@v1.0", {str(old)!r})
        same("hub:lab/many", {str(new)!r})
        same("hub:many", {str(new)!r})  # an old name: the hub sends the client on
        same("hub:lab/many@main", {str(new)!r})
        same("hub:lab/many@{first}", {str(old)!r})
        same("hub:lab/many@refs/pr/1", {str(side)!r})
        same("hub:lab/many@feature/한국-x+1", {str(side)!r})
        refused("hub:lab/many@v9", "lab/many has no revision 'v9'. Check the branch, tag or commit")
        refused("hub:lab/many@{"0" * 40}", "lab/many has no revision '{"0" * 40}'")
        refused("hub:lab/nothing", "there is no lab/nothing on the hub. Check the name", "hf auth login")
        refused("hub:nothing", "there is no nothing on the hub")
        refused("hub:lab/nothing@{first}", "there is no lab/nothing on the hub")
        refused("hub:lab/gated", "lab/gated asks for an agreement first. Accept its terms on the hub", "hf auth login")
        refused("hub:lab/token", "the hub refuses lab/token (HfHubHTTPError: ", "401", "Log in with: hf auth login")
        refused("hub:lab/closed", "the hub refuses lab/closed (DisabledRepoError: 403", "Log in with")
        refused("hub:lab/words", "lab/words holds no model")
        refused("hub:lab/half", "neither formers.json nor config.json is here")
        mark("malformed")
        for name in {MALFORMED}:
            refused("hub:" + name, "is not the name of a model. Write hub:owner/name or hub:owner/name@revision")
        """,
    )
    assert hub.list_requests("malformed") == []


def test_a_connection_that_breaks_is_taken_up_where_it_broke(run, hub, home, tmp_path):
    large = tmp_path / "large"
    formers.export(formers.build("gpt2", vocab=50000, context=16, dim=128, layers=1, heads=2), large)
    hub.add("lab/large", read_files(large))
    size = (large / "model.safetensors").stat().st_size
    assert size > 25_000_000  # the client writes pieces of 10 MiB
    hub.cut["model.safetensors"] = 15_000_000
    run(home, hub.address, f"same('hub:lab/large', {str(large)!r})")
    ranges = [r for method, path, r in hub.list_requests() if method == "GET" and path.endswith("/model.safetensors")]
    assert ranges == [None, f"bytes={10 * 2**20}-"]
    assert not hub.cut


def test_shards_and_what_is_complete_is_not_fetched_again(run, hub, home, small_model, tmp_path):
    formers.export(formers.load(small_model), tmp_path / "shards", shard=3000)
    content = read_files(tmp_path / "shards")
    parts = sorted(name for name in content if name.startswith("model-"))
    assert 2 < len(parts) <= 8
    hub.add("lab/shards", content | dict.fromkeys(EXTRA, b"never asked for"))
    hub.reset.add(parts[1])
    index = json.loads(content["model.safetensors.index.json"])
    for name, listed in (("lab/out", "../../../../secret"), ("lab/all", "*"), ("lab/gone", "model-9.safetensors")):
        wrong = index | {"weight_map": dict.fromkeys(index["weight_map"], listed)}
        hub.add(name, content | {"model.safetensors.index.json": json.dumps(wrong).encode()})
    run(
        home,
        hub.address,
        f"""
        refused("hub:lab/shards", "fetching lab/shards@", "failed (ReadError: ",
                "Try again: files that are complete are kept")
        mark("second")
        same("hub:lab/shards", {str(tmp_path / "shards")!r})
        mark("wrong")
        refused("hub:lab/out", "is not the name of a file in this folder")
        refused("hub:lab/all", "*: the file is missing")
        refused("hub:lab/gone", "model-9.safetensors: the file is missing")
        """,
    )
    assert hub.downloads(end="second") == sorted(name for name in content if not name.startswith("README"))
    assert hub.downloads("second", "wrong") == [parts[1]]
    assert not any(path.endswith(tuple(parts)) for _, path, _ in hub.list_requests("wrong"))
    run(home, hub.address, f"same('hub:lab/shards', {str(tmp_path / 'shards')!r})", HF_HUB_OFFLINE="1")


def test_pickles_only_on_request_and_only_without_safetensors(run, hub, home, small_model, tmp_path):
    from safetensors.torch import load_file

    state = load_file(small_model / "model.safetensors")
    torch.save(state, tmp_path / "pytorch_model.bin")
    about = {name: data for name, data in read_files(small_model).items() if name != "model.safetensors"}
    pickled = {"pytorch_model.bin": (tmp_path / "pytorch_model.bin").read_bytes()}
    hub.add("lab/old", about | pickled)
    hub.add("lab/both", read_files(small_model) | pickled)
    shards = {f"pytorch_model-0000{n}-of-00002.bin": b"bytes %d" % n for n in (1, 2)}
    index = {"weight_map": {name: sorted(shards)[n % 2] for n, name in enumerate(state)}}
    hub.add("lab/large", about | shards | {"pytorch_model.bin.index.json": json.dumps(index).encode(), "x.bin": b""})
    run(
        home,
        hub.address,
        f"""
        refused("hub:lab/old", "no model.safetensors", "--pickle", "pickle=True")
        mark("with")
        same("hub:lab/old", {str(small_model)!r}, pickle=True)
        mark("both")
        same("hub:lab/both", {str(small_model)!r}, pickle=True)
        mark("large")
        names = {{path.name for path in fetch_model("hub:lab/large", pickle=True).iterdir()}}
        assert names == {{*{[*about]}, *{[*shards]}, "pytorch_model.bin.index.json"}}, names
        """,
    )
    assert hub.downloads(end="with") == sorted(about)
    assert hub.downloads("with", "both") == ["pytorch_model.bin"]
    assert hub.downloads("both", "large") == sorted(read_files(small_model))


def test_a_formers_directory_on_the_hub(run, hub, home, small_model, tmp_path):
    formers.save(formers.load(small_model), tmp_path / "own", shard=3000)
    content = read_files(tmp_path / "own")
    assert {"formers.json", "tokenizer.json", "huggingface/config.json", "huggingface/vocab.txt"} <= {*content}
    hub.add("lab/own", content | dict.fromkeys(EXTRA, b"never asked for"))
    plain = {name: data for name, data in content.items() if "/" not in name}
    hub.add("lab/plain", plain)
    shutil.copytree(tmp_path / "own", tmp_path / "plain", ignore=shutil.ignore_patterns("huggingface"))
    run(
        home,
        hub.address,
        f"""
        same("hub:lab/plain", {str(tmp_path / "plain")!r})
        mark("own")
        former = same("hub:lab/own", {str(tmp_path / "own")!r})
        assert "vocab.txt" in former.source_files
        """,
    )
    assert hub.downloads(end="own") == sorted(plain)
    assert hub.downloads("own") == sorted(content)


def test_a_cache_on_the_disk(run, home, small_model):
    """As other programs leave it, without any hub."""
    content = read_files(small_model)
    sha = write_cache(home, "lab/cached", content)
    write_cache(home, "lab/tagged", content, ref="v1")
    write_cache(home, "lab/listed", content, listing=[*content, *EXTRA])
    write_cache(home, "lab/part", {k: v for k, v in content.items() if k != "vocab.txt"}, listing=[*content, *EXTRA])
    write_cache(home, "lab/begun", {k: v for k, v in content.items() if k != "model.safetensors"})
    (home / "secret").write_bytes(content["model.safetensors"])
    write_cache(home, "lab/link", content)
    [link] = home.glob("hub/models--lab--link/snapshots/*/model.safetensors")
    link.unlink()
    link.symlink_to(home / "secret")
    run(
        home,
        "http://127.0.0.1:9",
        f"""
        same("hub:lab/cached", {str(small_model)!r})
        same("hub:lab/cached@{sha}", {str(small_model)!r})
        same("hub:lab/tagged@v1", {str(small_model)!r})
        same("hub:lab/listed", {str(small_model)!r})
        refused("hub:lab/tagged", "lab/tagged is not in the cache, and HF_HUB_OFFLINE is set")
        refused("hub:lab/part", "lab/part is only in part in the cache, and HF_HUB_OFFLINE is set")
        refused("hub:lab/begun", "no model.safetensors")
        refused("hub:lab/link", "model.safetensors is a link that leads out of the folder")
        """,
        HF_HUB_OFFLINE="1",
    )


def test_a_cache_whose_blobs_are_shared_between_models(run, home, small_model):
    """What came by Xet is a link to a link: snapshots/COMMIT/file → blobs/HASH → blobs/XX/HASH beside all models."""
    write_cache(home, "lab/shared", read_files(small_model), shared=("model.safetensors",))
    run(home, "http://127.0.0.1:9", f"same('hub:lab/shared', {str(small_model)!r})", HF_HUB_OFFLINE="1")


def test_the_command_line(run, hub, home, small_model, tmp_path):
    hub.add("lab/small", read_files(small_model))
    done = subprocess.run(
        [sys.executable, "-m", "formers.cli.main", "import", "hub:lab/small", str(tmp_path / "out")],
        env=make_environment(home, hub.address),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "bert, head pretraining" in done.stdout
    assert "with its tokenizer" in done.stdout
    out, known = formers.load(tmp_path / "out"), formers.load(small_model)
    assert all(map(torch.equal, out.model.state_dict().values(), known.model.state_dict().values()))
    assert out.source_files == known.source_files
    said = run(
        home,
        hub.address,
        f"""
        from formers.cli.main import main
        try:
            main(["import", "hub:lab/nothing", {str(tmp_path / "no")!r}])
        except SystemExit as end:
            assert end.code == 2, end.code
        """,
    )
    line = (
        "formers: there is no lab/nothing on the hub. Check the name; for a private model, log in with: hf auth login"
    )
    assert said.strip() == line
    assert not (tmp_path / "no").exists()


def test_without_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(Error, match=r"the hub needs its client. pip install 'formers\[hub\]'"):
        formers.load("hub:lab/small")
    with pytest.raises(Error, match="is not the name of a model"):  # said before anything is missed
        client.fetch_model("hub:")
