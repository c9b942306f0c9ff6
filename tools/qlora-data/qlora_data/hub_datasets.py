# SPDX-License-Identifier: MIT
"""Data sets in Hugging Face's cache:

    datasets--OWNER--NAME/refs/main             hash of main's latest commit
                         /snapshots/COMMIT/     links to the commit's files
                         /qlora/COMMIT-HASH     names of the files of a split

The last one is ours, and written when all files of a split are there. With it
the split is used without a request to the hub. Other tools may have fetched a
part of the repository only, so without it the hub is asked which files there
are. That is not possible with HF_HUB_OFFLINE or without a network: then the
files in the cache are used."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass, replace

from .environment import how_to_install
from .errors import DataError, unreadable
from .hub import explain, library
from .hub_reference import Reference, parse_reference
from .hub_splits import files_of

_SHARD = re.compile(r"(.*-)\d{5}(-of-(\d{5}).*)")


def _cache_folder() -> str:
    """Returns the cache, by the rules of huggingface_hub."""
    places = (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""),
              ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"))
    for variable, below in places:
        if folder := os.environ.get(variable):
            return os.path.join(os.path.expanduser(folder), below).rstrip("/")
    return os.path.expanduser("~/.cache/huggingface/hub")


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES",
                                                            "TRUE")


def _text_of(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise unreadable(path, error) from None


def _card_of(readme: str) -> dict:
    """Returns the YAML header of README.md, which may not exist."""
    header = re.match(r"\s*---[ \t]*\r?\n(.*?)\n---[ \t]*\r?(?:\n|$)",
                      _text_of(readme), re.DOTALL)
    if not header:
        return {}
    try:
        import yaml
    except ImportError:
        raise DataError("the Python package pyyaml is missing",
                        "run: " + how_to_install("pyyaml")) from None
    try:
        card = yaml.safe_load(header[1])
    except yaml.YAMLError as error:
        raise DataError(f"its header is not YAML: {error}",
                        "name the files with ?files=", readme) from None
    return card if isinstance(card, dict) else {}


@dataclass
class _Cached:
    """A data set in the cache. `commit` is empty if its revision is not."""
    reference: Reference
    folder: str
    commit: str

    @classmethod
    def of(cls, reference: Reference) -> _Cached:
        folder = os.path.join(_cache_folder(), "datasets--"
                              + reference.name.replace("/", "--"))
        commit = reference.revision
        if not re.fullmatch("[0-9a-f]{40}", commit):
            commit = _text_of(os.path.join(folder, "refs", commit)).strip()
        return cls(reference, folder, commit)

    @property
    def snapshot(self) -> str:
        return os.path.join(self.folder, "snapshots", self.commit)

    @property
    def record(self) -> str:
        wanted = replace(self.reference, revision=self.commit,
                         split=self.reference.split.split("[")[0])
        key = hashlib.sha256(str(wanted).encode()).hexdigest()[:16]
        return os.path.join(self.folder, "qlora", f"{self.commit}-{key}")

    def recorded(self) -> list[str]:
        """Returns the split's files if all are there, else nothing."""
        text = _text_of(self.record) if self.commit else ""
        files = json.loads(text) if text else []
        return files if all(map(self.has, files)) else []

    def has(self, name: str) -> bool:
        return os.path.exists(os.path.join(self.snapshot, name))

    def remember(self, files: list[str]) -> None:
        """Writes the record. A shared cache may be read-only."""
        part = f"{self.record}.{os.getpid()}"
        try:
            os.makedirs(os.path.dirname(part), exist_ok=True)
            with open(part, "w", encoding="utf-8") as file:
                json.dump(files, file)
            os.replace(part, self.record)
        except OSError:
            pass

    def found(self) -> list[str]:
        """Returns the split's files among those in the cache."""
        if not self.commit or not os.path.isdir(self.snapshot):
            raise DataError(f"revision '{self.reference.revision}' is missing")
        names = [os.path.relpath(os.path.join(folder, name), self.snapshot)
                 for folder, _, files in os.walk(self.snapshot)
                 for name in files]
        files = files_of(self.reference, names,
                         _card_of(os.path.join(self.snapshot, "README.md")))
        for name in files:
            shard = _SHARD.fullmatch(name)
            for number in range(int(shard[3]) if shard else 0):
                other = f"{shard[1]}{number:05}{shard[2]}"
                if other not in files and not self.reference.files:
                    raise DataError(f"'{other}' is missing")
        return files


def cached_files(reference: Reference) -> list[str]:
    """Returns the paths of the split's files, which must be in the cache."""
    cached = _Cached.of(reference)
    try:
        files = cached.recorded() or cached.found()
    except DataError as error:
        raise DataError(f"is incomplete in '{_cache_folder()}': {error.what}",
                        "fetch it: qlora-data find-dataset "
                        f"'{reference}' .", reference.name) from None
    return [os.path.join(cached.snapshot, name) for name in files]


def _escaped(name: str) -> str:
    return re.sub(r"([*?[])", r"[\1]", name)


def _fetch(reference: Reference) -> _Cached:
    """Fetches the split's files that are missing."""
    hub = library()
    name, revision = reference.name, reference.revision
    api = hub.HfApi()
    commit = api.dataset_info(name, revision=revision).sha
    names = api.list_repo_files(name, repo_type="dataset", revision=commit)
    card = {}
    if "README.md" in names:
        card = _card_of(hub.hf_hub_download(
            name, "README.md", repo_type="dataset", revision=commit))
    files = files_of(reference, names, card)
    cached = replace(_Cached.of(reference), commit=commit)
    if not all(map(cached.has, files)):
        print(f"qlora-data: fetching {name} from the Hugging Face hub",
              file=sys.stderr, flush=True)
    # Also records the commit of the revision in the cache.
    hub.snapshot_download(name, repo_type="dataset", revision=revision,
                          allow_patterns=[_escaped(file) for file in files])
    cached.remember(files)
    return cached


def _nearest(word: str, folder: str) -> str:
    """Returns the file or folder here whose name is spelled most like `word`,
    or nothing."""
    below, name = os.path.split(word)
    try:
        names = os.listdir(os.path.join(folder, below))
    except OSError:
        return ""
    spelled = {other.split(".")[0].replace("-", "_").lower(): other
               for other in names if not other.startswith(".")}
    near = difflib.get_close_matches(name.replace("-", "_").lower(), spelled, 1,
                                     0.8)
    return os.path.join(below, spelled[near[0]]) if near else ""


def _found(reference: Reference, folder: str) -> _Cached:
    cached = _Cached.of(reference)
    if cached.recorded():
        return cached
    near = _nearest(reference.name, folder)
    if _is_offline():
        try:
            cached.remember(cached.found())
            return cached
        except DataError as error:
            meant = f" (did you mean '{near}'?)" if near else ""
            raise DataError(
                f"'{reference.name}' is not a local file or folder{meant} and "
                f"is incomplete in '{_cache_folder()}': {error}",
                "HF_HUB_OFFLINE forbids fetching it: unset that, or copy the "
                "data there") from None
    if near and not cached.commit:
        print(f"qlora-data: '{reference.name}' is not a local file or folder; "
              f"did you mean '{near}'? Looking for it on the Hugging Face hub",
              file=sys.stderr, flush=True)
    try:
        return _fetch(reference)
    except DataError as error:
        raise error.at(reference.name) from None
    except Exception as error:
        from huggingface_hub import errors
        if not isinstance(error, errors.HfHubHTTPError):
            try:  # there is no network
                cached.found()
            except DataError:
                pass
            else:
                print(f"qlora-data: uses the files of {reference.name} in the "
                      "cache, because the Hugging Face hub cannot be reached",
                      file=sys.stderr)
                return cached
        raise explain(reference.name, error, "datasets/") from error


def find_dataset(text: str, folder: str) -> None:
    """Prints the reference with its commit, whose files are in the cache then.
    `folder`: where a misspelled file or folder may be."""
    reference = parse_reference(text)
    cached = _found(reference, folder)
    print(replace(reference, revision=cached.commit))
