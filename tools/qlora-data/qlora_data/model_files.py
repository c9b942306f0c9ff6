# SPDX-License-Identifier: MIT
"""Reads a model folder's special tokens, chat templates and tokenizer settings.
"""

from __future__ import annotations

import json
import os
import re

from .errors import DataError, unreadable

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token",
                "pad_token", "cls_token", "mask_token")
SHIPPED_FOLDER = os.path.join(os.path.dirname(os.path.realpath(__file__)),
                              "chat_templates")
SHIPPED = sorted(name.removesuffix(".jinja")
                 for name in os.listdir(SHIPPED_FOLDER))


def read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError:
        raise DataError("not UTF-8", "save the file as UTF-8", path) from None


def read_object(path: str) -> dict:
    """Returns a JSON object; an empty one if the file does not exist."""
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
    """Returns a token's text, which is a string or {"content": ...}."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


class ModelFiles:
    """JSON and template files of a model folder. `eos_token`: replaces the end
    token that they name; empty: none."""

    def __init__(self, folder: str, eos_token: str = ""):
        self.folder, self.eos_token = folder, eos_token
        if not os.path.isdir(folder):
            raise DataError("no such folder",
                            "use a model folder with tokenizer.json", folder)
        self.config_path = os.path.join(folder, "tokenizer_config.json")
        self.config = read_object(self.config_path)
        self.model_config = read_object(os.path.join(folder, "config.json"))
        self.model_type = str(self.model_config.get("model_type") or "")
        self.tokenizer_class = str(
            self.config.get("tokenizer_class")
            or self.model_config.get("tokenizer_class") or ""
        ).removesuffix("Fast")

    def _special_sources(self) -> dict:
        """Returns the object that names special tokens. special_tokens_map.json
        (old folders) wins, unless tokenizer_config.json has the added tokens,
        as newer versions of transformers write them."""
        if "added_tokens_decoder" in self.config:
            return self.config
        return self.config | read_object(os.path.join(
            self.folder, "special_tokens_map.json"))

    def special_tokens(self, id_to_token,
                       defaults: dict[str, str]) -> dict[str, str]:
        """Returns the named special tokens, without names set to null. If bos
        or eos is absent, uses the tokenizer's `defaults`, or the id in
        config.json (older GPT-2 folders)."""
        source = self._special_sources()
        tokens = {}
        for name in NAMED_TOKENS:
            tokens[name] = _content(source.get(name))
            if name not in source:
                tokens[name] = defaults.get(name)
                if name in ("bos_token", "eos_token") and not tokens[name]:
                    tokens[name] = self._token_by_id(name, id_to_token)
        if self.eos_token:
            tokens["eos_token"] = self.eos_token
        extra = source.get("extra_special_tokens")
        if isinstance(extra, dict):
            tokens.update({name: _content(extra[name]) for name in extra})
        return {name: text for name, text in tokens.items() if text}

    def further_special_tokens(self) -> list[dict]:
        """Returns special tokens without a name, for add_tokens()."""
        source = self._special_sources()
        listed = source.get("extra_special_tokens")
        if not isinstance(listed, list):
            listed = source.get("additional_special_tokens")
        return [{**(token if isinstance(token, dict) else {}),
                 "content": _content(token), "special": True}
                for token in listed if _content(token)] \
            if isinstance(listed, list) else []

    def _token_by_id(self, name: str, id_to_token) -> str | None:
        number = self.model_config.get(f"{name}_id")
        if isinstance(number, list) and number:
            number = number[0]
        if not isinstance(number, int) or number < 0:
            return None
        return id_to_token(number)

    def declared_tokens(self) -> list[tuple[int, dict]]:
        """Returns added_tokens_decoder, else added_tokens.json, as (id,
        properties), sorted by id."""
        declared = self.config.get("added_tokens_decoder")
        if not isinstance(declared, dict):
            special = {_content(value) for value
                       in self._special_sources().values()}
            special |= {token["content"]
                        for token in self.further_special_tokens()}
            declared = {str(number): {"content": text, "special":
                                      text in special, "normalized":
                                      text not in special}
                        for text, number in read_object(os.path.join(
                            self.folder, "added_tokens.json")).items()}
        return sorted((int(number), token) for number, token
                      in declared.items() if re.fullmatch(r"\d+", number)
                      and isinstance(token, dict) and _content(token))

    def chat_templates(self, override: str | None
                       ) -> dict[str, tuple[str, str]]:
        """Returns name -> (source, file). A file given by the user wins, then
        .jinja files, then tokenizer_config.json."""
        if override and not os.path.exists(override):
            raise DataError(
                f"--chat-template: '{override}' is neither a file nor a known "
                "template",
                f"use a Jinja file, one of {', '.join(SHIPPED)}, or remove it "
                "to use the model's template")
        if override:
            return {"default": (read_text(override), override)}
        found = {}
        single = os.path.join(self.folder, "chat_template.jinja")
        if os.path.exists(single):
            found["default"] = (read_text(single), single)
        # Early versions of transformers wrote the second folder.
        for several in ("additional_chat_templates", "chat_templates"):
            several = os.path.join(self.folder, several)
            if os.path.isdir(several):
                for file in sorted(os.listdir(several)):
                    if file.endswith(".jinja"):
                        path = os.path.join(several, file)
                        found[file[:-len(".jinja")]] = (read_text(path), path)
        return found or self._configured_templates()

    def _configured_templates(self) -> dict[str, tuple[str, str]]:
        path, value = self.config_path, self.config.get("chat_template")
        if value is None:  # template of a multimodal processor
            path = os.path.join(self.folder, "chat_template.json")
            value = read_object(path).get("chat_template")
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
                                path)
            found[item["name"]] = (item["template"], path)
        return found
