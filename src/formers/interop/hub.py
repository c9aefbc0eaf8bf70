"""hub:owner/name@revision: a checkpoint from the Hugging Face hub, by its own client (extra `hub`).

The client keeps its cache (HF_HOME), continues broken downloads, and works offline on what it has (HF_HUB_OFFLINE=1).
Only the files that a model needs are fetched.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from pathlib import Path

from ..errors import Error
from .huggingface import BESIDE

NAME = re.compile(r"hub:(?P<repo>[\w.-]+/[\w.-]+|[\w.-]+)(?:@(?P<revision>[\w./-]+))?")
ABOUT = ("config.json", "formers.json", "tokenizer.json", "huggingface/*", *BESIDE)
SAFE = ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin")


def fetch(where: str, *, pickle: bool = False) -> Path:
    """The local folder of a model on the hub, downloaded as far as it is not there yet."""
    match = NAME.fullmatch(where)
    if match is None or ".." in where:
        raise Error(f"{where!r} is not the name of a model", fix="write hub:owner/name or hub:owner/name@revision")
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
    except ImportError:
        raise Error("the hub needs its client", fix="pip install 'formers[hub]'") from None
    repo, revision = match["repo"], match["revision"]
    offline = (
        hub.constants.is_offline_mode() if hasattr(hub.constants, "is_offline_mode") else hub.constants.HF_HUB_OFFLINE
    )
    try:
        if offline:
            return Path(hub.snapshot_download(repo, revision=revision, local_files_only=True))
        files = hub.HfApi().list_repo_files(repo, revision=revision)
        return Path(hub.snapshot_download(repo, revision=revision, allow_patterns=needed(files, pickle)))
    except errors.LocalEntryNotFoundError:
        fix = (
            "connect once to download it"
            if offline
            else "check the connection; what is cached works with HF_HUB_OFFLINE=1"
        )
        raise Error(f"{repo} is not in the cache and the hub cannot be reached", fix=fix) from None
    except errors.GatedRepoError:
        raise Error(
            f"{repo} asks for an agreement first", fix="accept its terms on the hub, then log in with: hf auth login"
        ) from None
    except errors.RevisionNotFoundError:
        raise Error(f"{repo} has no revision {revision!r}", fix="check the branch, tag or commit") from None
    except errors.RepositoryNotFoundError:
        raise Error(
            f"there is no {repo} on the hub", fix="check the name; for a private model, log in with: hf auth login"
        ) from None
    except (errors.HfHubHTTPError, OSError) as error:
        raise Error(
            f"fetching {repo} failed ({' '.join(str(error).split())[:150]})",
            fix="try again: a broken download continues",
        ) from None
    except Exception as error:  # the client's transport raises errors of its own
        raise Error(
            f"fetching {repo} failed ({type(error).__name__}: {' '.join(str(error).split())[:120]})",
            fix="try again: a broken download continues",
        ) from None


def needed(files: Iterable[str], pickle: bool) -> list[str]:
    """The files of a repository that a model needs; pickles only if asked for, and only if there is nothing else."""
    there = list(files)
    safe = matching(there, SAFE)
    weights = safe or (matching(there, PICKLED) if pickle else [])
    if "model.safetensors" in weights:
        weights = ["model.safetensors"]  # some repositories hold the same weights in shards as well
    return [*matching(there, ABOUT), *weights]


def matching(files: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The names that match one of the patterns."""
    return [name for name in files if any(fnmatch.fnmatchcase(name, p) for p in patterns)]
