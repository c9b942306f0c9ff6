# SPDX-License-Identifier: MIT
"""Transfers with the Hugging Face hub: fetches models, publishes adapters.

    qlora-data fetch-model NAME REVISION
    qlora-data find-dataset REFERENCE FOLDER prints it with its commit
    qlora-data create-repository NAME public|private
    qlora-data push-adapter NAME FOLDER      prints its address

huggingface_hub does the work: its cache, its tokens (hf auth login, HF_TOKEN),
its endpoint (HF_ENDPOINT). An error is one line, with a fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from .environment import ensure_packages, how_to_install
from .errors import DataError

_TOKENIZER_FILES = ["tokenizer*", "chat_template*", "vocab.*", "merges.txt",
                    "special_tokens_map.json", "added_tokens.json"]
# Files to transfer. Excludes weights in other formats, logs and metrics.
_MODEL_FILES = [*_TOKENIZER_FILES, "config.json", "generation_config.json",
                "*.safetensors", "model.safetensors.index.json"]
_TRAINED_FILES = [*_TOKENIZER_FILES, "adapter_config.json",
                  "adapter_model.safetensors", "config.json",
                  "generation_config.json", "model.safetensors", "README.md"]
# Excluded subfolders: checkpoints and copies in other formats. The patterns
# above match their files too, because * matches a slash.
_FOLDERS = ["*/*"]


def library():
    """Imports huggingface_hub, a dependency of tokenizers."""
    # Show progress bars only on terminals. The import reads this variable.
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    try:
        import huggingface_hub
    except ImportError as error:
        raise DataError(f"the Python package huggingface_hub is missing "
                        f"({error})", "run: "
                        + how_to_install("huggingface_hub")) from error
    return huggingface_hub


def _because(error: Exception) -> str:
    """Returns the error's type and first line. Later lines are links and
    request identifiers."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else repr(error)


def explain(name: str, error: Exception, kind: str = "") -> DataError:
    """Returns the error for a repository that cannot be read. `kind`: what
    precedes its name in addresses."""
    from huggingface_hub import errors
    login = "log in with hf auth login, or set HF_TOKEN"
    if isinstance(error, errors.GatedRepoError):
        return DataError(f"'{name}' is gated on the Hugging Face hub",
                         "accept its terms on https://huggingface.co/"
                         f"{kind}{name}, and {login}")
    if isinstance(error, errors.RevisionNotFoundError):
        return DataError(f"'{name}' has no such revision on the Hugging Face "
                         "hub", "use one of its branches, tags or commits")
    if isinstance(error, errors.RepositoryNotFoundError):
        return DataError(f"there is no '{name}' on the Hugging Face hub (or "
                         "it is private), and no such local folder",
                         f"correct the name, or {login}")
    # All other errors come from the library, its HTTP client or the disk.
    return DataError(f"'{name}' is not a folder here, and the Hugging Face hub "
                     f"cannot be used: {_because(error)}",
                     "check the network, HF_ENDPOINT and free disk space; if "
                     f"access is refused, {login}")


def _fetch_model(name: str, revision: str) -> None:
    hub = library()
    print(f"qlora-data: fetching {name} from the Hugging Face hub",
          file=sys.stderr, flush=True)
    try:
        hub.snapshot_download(name, revision=revision,
                              allow_patterns=_MODEL_FILES,
                              ignore_patterns=_FOLDERS)
    except Exception as error:
        raise explain(name, error) from error


def _create(hub, name: str, private: bool) -> str:
    """Creates the repository unless it exists. Returns OWNER/NAME."""
    if not hub.get_token():
        raise DataError("--push-to-hub needs a token of the Hugging Face hub",
                        "log in with hf auth login, or set HF_TOKEN")
    try:
        return hub.create_repo(name, private=private, exist_ok=True).repo_id
    except Exception as error:
        raise _refused(name, error) from error


def _refused(name: str, error: Exception) -> DataError:
    return DataError(f"'{name}' cannot be written on the Hugging Face hub: "
                     f"{_because(error)}",
                     "check the network, that your token may write, and that "
                     "--hub-model-id is in your account")


def _create_repository(name: str, visibility: str) -> None:
    _create(library(), name, visibility == "private")


def _push_adapter(name: str, folder: str) -> None:
    hub = library()
    name = _create(hub, name, False)
    try:
        hub.upload_folder(repo_id=name, folder_path=folder,
                          allow_patterns=_TRAINED_FILES,
                          ignore_patterns=_FOLDERS,
                          commit_message="Adapter trained with qlora")
    except Exception as error:
        raise _refused(name, error) from error
    print(f"{hub.constants.ENDPOINT}/{name}")


def _find_dataset(reference: str, folder: str) -> None:
    from .hub_datasets import find_dataset  # imports this module
    find_dataset(reference, folder)


COMMANDS: dict[str, Callable[..., None]] = {
    "fetch-model": _fetch_model, "find-dataset": _find_dataset,
    "create-repository": _create_repository, "push-adapter": _push_adapter}


def run_command(arguments: list[str]) -> None:
    """Runs the command `arguments[0]` of COMMANDS with its two arguments."""
    if len(arguments) != 3:
        raise DataError(f"{arguments[0]} takes two arguments, but got "
                        f"{len(arguments) - 1}", "see qlora-data's README.md")
    ensure_packages(arguments)
    command = COMMANDS[arguments[0]]
    try:
        command(*arguments[1:])
    except KeyboardInterrupt:
        sys.exit(130)
