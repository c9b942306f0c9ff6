# SPDX-License-Identifier: MIT
"""Reads what the data step needs from a model folder: the special tokens,
the chat templates, and the tokenizer's settings."""

from __future__ import annotations

import json
import os
import re

from .errors import DataError, unreadable

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token",
                "pad_token", "cls_token", "mask_token")


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise DataError("not UTF-8", "save the file as UTF-8", path) from None


def read_object(path: str) -> dict:
    """A JSON object; an empty one if there is no such file."""
    if not os.path.exists(path):
        return {}
    try:
        value = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"malformed JSON: {error.msg} at column "
                        f"{error.colno}", "fix the file",
                        f"{path}:{error.lineno}") from None
    except (RecursionError, ValueError) as error:
        raise DataError(f"malformed JSON: {error}", "fix the file",
                        path) from None
    if not isinstance(value, dict):
        raise DataError("expects a JSON object", "fix the file", path)
    return value


def _content(value: object) -> str | None:
    """A token is written as a string or as {"content": ...}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


class ModelFiles:
    """The JSON and template files of a model folder."""

    def __init__(self, folder: str):
        self.folder = folder
        if not os.path.isdir(folder):
            raise DataError("no such folder", "give the folder of a model "
                            "with its tokenizer.json", folder)
        self.config_path = os.path.join(folder, "tokenizer_config.json")
        self.config = read_object(self.config_path)

    def tokenizer_path(self) -> str:
        path = os.path.join(self.folder, "tokenizer.json")
        if os.path.isfile(path):
            return path
        others = [name for name in ("tokenizer.model", "vocab.json",
                                    "vocab.txt", "spiece.model")
                  if os.path.exists(os.path.join(self.folder, name))]
        if not others:
            raise DataError("has no tokenizer.json", "copy it from the model "
                            "the weights came with", self.folder)
        raise DataError(
            f"has {others[0]} but no tokenizer.json",
            "convert it once with transformers: python3 -c \"from transformers"
            " import AutoTokenizer as T; T.from_pretrained("
            f"{self.folder!r}).save_pretrained({self.folder!r})\"",
            self.folder)

    def special_tokens(self, id_to_token) -> dict[str, str]:
        """The named special tokens. A name set to null is absent; one that is
        not mentioned at all is looked up in special_tokens_map.json, then,
        for bos and eos, by id in config.json (older GPT-2 folders)."""
        legacy = read_object(os.path.join(self.folder,
                                          "special_tokens_map.json"))
        tokens = {}
        for name in NAMED_TOKENS:
            source = self.config if name in self.config else legacy
            tokens[name] = _content(source.get(name))
            if name in ("bos_token", "eos_token") and name not in source:
                tokens[name] = self._token_by_id(name, id_to_token)
        extra = self.config.get("extra_special_tokens")
        if isinstance(extra, dict):
            tokens.update({name: _content(extra[name]) for name in extra})
        return {name: text for name, text in tokens.items() if text}

    def _token_by_id(self, name: str, id_to_token) -> str | None:
        config = read_object(os.path.join(self.folder, "config.json"))
        number = config.get(f"{name}_id")
        if isinstance(number, list) and number:
            number = number[0]
        if not isinstance(number, int) or number < 0:
            return None
        return id_to_token(number)

    def declared_tokens(self) -> list[tuple[int, dict]]:
        """added_tokens_decoder as (id, properties), by id."""
        declared = self.config.get("added_tokens_decoder")
        if not isinstance(declared, dict):
            return []
        return sorted((int(number), token) for number, token
                      in declared.items() if re.fullmatch(r"\d+", number)
                      and isinstance(token, dict) and _content(token))

    def chat_templates(self, override: str | None
                       ) -> dict[str, tuple[str, str]]:
        """Name to (source, file). A file given by the user wins, then the
        .jinja files, then tokenizer_config.json."""
        if override:
            return {"default": (read_text(override), override)}
        found = {}
        single = os.path.join(self.folder, "chat_template.jinja")
        if os.path.exists(single):
            found["default"] = (read_text(single), single)
        several = os.path.join(self.folder, "chat_templates")
        if os.path.isdir(several):
            for file in sorted(os.listdir(several)):
                if file.endswith(".jinja"):
                    path = os.path.join(several, file)
                    found[file[:-len(".jinja")]] = (read_text(path), path)
        return found or self._configured_templates()

    def _configured_templates(self) -> dict[str, tuple[str, str]]:
        value = self.config.get("chat_template")
        if value is None:
            return {}
        if isinstance(value, str):
            value = [{"name": "default", "template": value}]
        found = {}
        for item in value if isinstance(value, list) else [None]:
            if (not isinstance(item, dict)
                    or not isinstance(item.get("name"), str)
                    or not isinstance(item.get("template"), str)):
                raise DataError("'chat_template' expects a string or a list "
                                'of {"name", "template"}', "fix the file",
                                self.config_path)
            found[item["name"]] = (item["template"], self.config_path)
        return found
