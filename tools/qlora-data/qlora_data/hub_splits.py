# SPDX-License-Identifier: MIT
"""Which files of a repository belong to a split, by the rules of the library
datasets: the `configs` in the header of README.md, else names of files and
folders. Works on lists of names, so it serves the hub and the cache."""

from __future__ import annotations

import re
from collections import Counter

from .errors import DataError
from .hub_reference import Reference, parse_split

_SHARDS = re.compile(r"data/(.+)-\d{5}-of-\d{5}[^/]*\.[^/]*")
_KEYWORDS = {"train": ("train", "training"),
             "validation": ("validation", "valid", "dev", "val"),
             "test": ("test", "testing", "eval", "evaluation")}
_SEPARATOR = "-._ 0-9"
_IN_FOLDERS = ("**/{0}/**", "**/{0}[{1}]*/**", "**/*[{1}]{0}/**",
               "**/*[{1}]{0}[{1}]*/**")
_IN_FILES = ("**/{0}[{1}]*", "**/*[{1}]{0}[{1}]*")
_NO_DATA = {"README.md", "config.json", "dataset_info.json",
            "dataset_infos.json", "dummy_data.zip", "dataset_dict.json"}
# Kinds of files by ending. Files of one kind are read together.
_KINDS = {"jsonl": "JSON", "json": "JSON", "ndjson": "JSON", "csv": "CSV",
          "tsv": "CSV", "parquet": "Parquet"}
_OTHERS = {"arrow": "Arrow", "txt": "text", "tar": "WebDataset", "zip": "zip",
           "xml": "XML", "h5": "HDF5", "hdf5": "HDF5", "lance": "Lance",
           "jpg": "images", "jpeg": "images", "png": "images",
           "webp": "images", "gif": "images", "wav": "audio", "mp3": "audio",
           "flac": "audio", "ogg": "audio", "mp4": "video", "pdf": "PDF"}
_ALL = {**_KINDS, **_OTHERS}


def _expression(pattern: str) -> re.Pattern:
    """Translates a pattern of fsspec: * and ? do not match '/', ** as a whole
    component matches any number of folders."""
    out = []
    parts = pattern.split("/")
    for index, part in enumerate(parts):
        is_last = index == len(parts) - 1
        if part == "**":
            out.append(".*" if is_last else "(?:.+/)?")
            continue
        for token in re.findall(r"\[[^\]]+\]|.", part):
            if token == "*":
                out.append("[^/]*")
            elif token == "?":
                out.append("[^/]")
            elif len(token) > 1:
                out.append("[" + re.sub(r"^!", "^", token[1:]))
            else:
                out.append(re.escape(token))
        out.append("" if is_last else "/")
    return re.compile("".join(out), re.DOTALL)


def _hidden(path: str) -> int:
    """Counts the components that a pattern must name to match them."""
    *folders, name = path.split("/")
    return (sum(part.startswith((".", "__")) for part in folders)
            + (name.startswith(".") and name not in (".", "..")))


def _matches(names: list[str], patterns: list[str]) -> list[str]:
    """Returns names in the order of patterns, and by name for each pattern."""
    found: dict[str, None] = {}
    for pattern in patterns:
        pattern = re.sub(r"^(\./)+", "", pattern)
        expression = _expression(pattern)
        base = pattern.rsplit("/", 1)[-1]
        found |= dict.fromkeys(
            name for name in sorted(names) if expression.fullmatch(name)
            and _hidden(name) == _hidden(pattern)
            and (name.rsplit("/", 1)[-1] not in _NO_DATA - {base}))
    return list(found)


def _with_rows(splits: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leaves out files that are no data, and splits without data."""
    kept = {split: [name for name in files
                    if not _ALL.keys().isdisjoint(_endings(name))]
            for split, files in splits.items()}
    return {split: files for split, files in kept.items() if files}


def _endings(name: str) -> list[str]:
    return [ending.lower() for ending in name.rsplit("/", 1)[-1].split(".")[1:]]


def _by_keywords(names: list[str], forms: tuple[str, ...],
                 folder: str) -> dict[str, list[str]]:
    found = {}
    for split, words in _KEYWORDS.items():
        patterns = [folder + form.format(word, _SEPARATOR)
                    for word in words for form in forms]
        if files := _matches(names, patterns):
            found[split] = files
    return found


def _by_names(names: list[str], folder: str = "") -> dict[str, list[str]]:
    """Returns the files of each split, by the names of files and folders. As in
    the library, files that are no data count too."""
    shards: dict[str, list[str]] = {}
    for name in _matches(names, [folder + "data/*-*-of-*.*"]):
        if found := _SHARDS.fullmatch(name.removeprefix(folder)):
            shards.setdefault(found[1], []).append(name)
    if shards:
        return shards
    every = _matches(names, [folder + "**"])
    return (_by_keywords(names, _IN_FOLDERS, folder)
            or _by_keywords(names, _IN_FILES, folder)
            or ({"train": every} if every else {}))


def _patterns(data_files: object) -> dict[str, list[str]]:
    """Returns the patterns of each split in `data_files` of README.md."""
    def listed(value: object) -> list[str]:
        return [str(item) for item in
                (value if isinstance(value, list) else [value])]

    items = data_files if isinstance(data_files, list) else [data_files]
    if not any(isinstance(item, dict) for item in items):
        return {"train": listed(data_files)}
    splits = {}
    for item in items:
        if not isinstance(item, dict) or not {"split", "path"} <= item.keys():
            raise DataError("README.md has 'data_files' without 'split' and "
                            "'path'", "name the files with ?files=")
        splits[str(item["split"])] = listed(item["path"])
    return splits


def _default_config(configs: dict[str, dict]) -> str:
    for name, config in configs.items():
        if len(configs) == 1 or name == "default" or config.get("default"):
            return name
    raise DataError(f"has several subsets: {_few(configs)}",
                    "choose one with --dataset-config")


def _few(words) -> str:
    words = sorted(words)
    more = f", and {len(words) - 20} others" if len(words) > 20 else ""
    return ", ".join(words[:20]) + more


def _splits(reference: Reference, names: list[str],
            card: dict) -> dict[str, list[str]]:
    """Returns the files of each split of the reference's config."""
    configs = {str(config["config_name"]): config
               for config in card.get("configs") or []
               if isinstance(config, dict) and "config_name" in config}
    chosen = reference.config
    if chosen and chosen not in (configs or ("default",)):
        has = f"has {_few(configs)}" if configs else "has no subsets"
        raise DataError(f"there is no subset '{chosen}': the data set {has}",
                        "correct --dataset-config, or leave it out")
    if not configs:
        return _by_names(names)
    config = configs[chosen or _default_config(configs)]
    folder = str(config.get("data_dir") or "").strip("/")
    folder += "/" if folder else ""
    if "data_files" not in config:
        return _by_names(names, folder)
    return {split: _matches(names, [folder + pattern for pattern in patterns])
            for split, patterns in _patterns(config["data_files"]).items()}


def _of_one_kind(files: list[str]) -> list[str]:
    """Returns the files of the most common kind, which must be readable."""
    counts = Counter(ending for name in files for ending in _endings(name)
                     if ending in _ALL)
    favorites = ["csv", "json", "jsonl", "arrow", "parquet"]

    def rank(ending: str) -> tuple[int, int, str]:
        place = favorites.index(ending) if ending in favorites else -1
        return counts[ending], place, ending

    best = max(counts, key=rank)
    if best not in _KINDS:
        raise DataError(f"its files are {_ALL[best]} (.{best}), which is not "
                        "supported", "choose a data set of JSON, CSV or "
                        "Parquet files")
    return [name for name in files
            if any(_ALL.get(ending) == _ALL[best] for ending in _endings(name))]


def files_of(reference: Reference, names: list[str], card: dict) -> list[str]:
    """Returns the files of the reference's split, in the order of their rows.
    `names`: files of the repository; `card`: header of its README.md."""
    script = reference.name.rsplit("/", 1)[-1] + ".py"
    if reference.files:
        splits = {"train": _matches(names, list(reference.files))}
    elif script in names:
        raise DataError(
            f"needs the script {script}, and scripts are not run",
            "use the hub's Parquet copy: hf://datasets/"
            f"{reference.name}@refs/convert/parquet?files=SUBSET/train/*")
    else:
        splits = _splits(reference, names, card)
    splits = _with_rows(splits)
    split = parse_split(reference.split).split
    if not splits:
        what = (f"no file matches {', '.join(reference.files)}"
                if reference.files else "has no files with rows")
        raise DataError(what, "name JSON, CSV or Parquet files with ?files=")
    if split not in splits:
        raise DataError(f"there is no split '{split}': the data set has "
                        f"{_few(splits)}", "choose one of them")
    return _of_one_kind(splits[split])
