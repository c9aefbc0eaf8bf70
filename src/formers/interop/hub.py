"""hub:owner/name@revision: a checkpoint from the Hugging Face hub, by its own client (extra `hub`). The client keeps
its cache (HF_HOME) and takes up a connection that breaks; when the hub cannot be reached, or with HF_HUB_OFFLINE=1,
what is in the cache still loads. Only the files that a model needs are fetched."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import Error
from . import safe_files
from .tokenizer_files import COMPANION_FILES, WORD_PICKLE_FILE

HUB_NAME = re.compile(r"hub:(?P<repo>(?:[A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]+)(?:@(?P<revision>\w[\w.+/-]*))?")
METADATA_FILES = (
    "formers.json", "config.json", "tokenizer.json", *COMPANION_FILES,
    *(f"huggingface/{name}" for name in ("config.json", *COMPANION_FILES)),
)  # fmt: skip


def fetch_model(where: str, *, pickle: bool = False) -> Path:
    """Download what is missing of a model on the hub, and return its local folder. Pickles are fetched only if asked
    for, and only if there are no safetensors."""
    match = HUB_NAME.fullmatch(where)
    if match is None or ".." in where:
        raise make_name_error(where)
    repo, revision = match["repo"], match["revision"]
    extra = [WORD_PICKLE_FILE] if pickle else []
    for single in (safe_files.WEIGHTS_FILE, safe_files.PICKLE_FILE) if pickle else (safe_files.WEIGHTS_FILE,):
        index = f"{single}.index.json"
        folder = download_files(repo, revision, [*METADATA_FILES, *extra, single, index])
        if not folder.is_dir():
            raise Error(f"{repo} holds no model", fix="formers reads config.json or formers.json, with their weights")
        revision = folder.name  # the commit: a branch may move meanwhile
        if safe_files.has_file(folder, single):
            break
        if safe_files.has_file(folder, index):
            shards = safe_files.read_shard_index(folder, index)
            if missing := [name for name in shards if not safe_files.has_file(folder, name)]:
                download_files(repo, revision, missing)
            break
    return folder


def download_files(repo: str, revision: str | None, files: Iterable[str]) -> Path:
    """Have the client fetch those of the files that the repository holds and the cache lacks."""
    try:
        import huggingface_hub as hub
    except ImportError:
        raise Error("the hub needs its client", fix="pip install 'formers[hub]'") from None
    try:
        return Path(hub.snapshot_download(repo, revision=revision, allow_patterns=[glob.escape(f) for f in files]))
    except Exception as error:  # the client's own, its transport's, the disk's
        raise explain_hub_error(error, repo, revision) from None


def explain_hub_error(error: Exception, repo: str, revision: str | None) -> Error:
    """Translate one of the client's errors into ours."""
    from huggingface_hub import constants, errors

    name = repo if revision is None else f"{repo}@{revision}"
    if isinstance(error, errors.HFValidationError):
        return make_name_error(f"hub:{name}")
    if isinstance(error, errors.GatedRepoError):
        fix = "accept its terms on the hub, then log in with: hf auth login"
        return Error(f"{repo} asks for an agreement first", fix=fix)
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = "check the name; for a private model, log in with: hf auth login"
        return Error(f"there is no {repo} on the hub", fix=fix)
    if isinstance(error, errors.RevisionNotFoundError):
        return Error(f"{repo} has no revision {revision or 'main'!r}", fix="check the branch, tag or commit")
    absent = isinstance(error, errors.LocalEntryNotFoundError)  # neither there nor here: why not there is its cause
    cause = (error.__cause__ if absent else None) or error
    reason = f"{type(cause).__name__}: {' '.join(str(cause).split())}"[:150]
    response = getattr(cause, "response", None)  # dynamic: an error of the hub's client, or of the network below
    status = getattr(response, "status_code", None)  # dynamic: an answer of the HTTP library that the client uses
    if status in (401, 403):
        return Error(f"the hub refuses {name} ({reason})", fix="log in with: hf auth login")
    if absent:
        is_partial = hasattr(error, "snapshot_path")  # dynamic: only some versions of the client say it
        state = "only in part in the cache" if is_partial else "not in the cache"
        if constants.HF_HUB_OFFLINE:
            return Error(f"{name} is {state}, and HF_HUB_OFFLINE is set", fix="unset it once to download")
        fix = "check the connection, and HF_ENDPOINT if it is set"
        return Error(f"{name} is {state}, and the hub cannot be reached ({reason})", fix=fix)
    return Error(f"fetching {name} failed ({reason})", fix="try again: files that are complete are kept")


def make_name_error(where: str) -> Error:
    """Build the error for what cannot be a name on the hub."""
    return Error(f"{where!r} is not the name of a model", fix="write hub:owner/name or hub:owner/name@revision")
