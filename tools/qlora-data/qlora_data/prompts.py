# SPDX-License-Identifier: MIT
"""Turns prompts into token ids, as training turns rows into tokens, but up to
the answer."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property, partial
from typing import TYPE_CHECKING

from .decoding import TextStream
from .errors import DataError
from .jsonl import kind
from .marks import LossRule
from .model_files import ModelFiles
from .shapes import ChatRow, conversation

if TYPE_CHECKING:
    from .convert import Converter

_MAX_ID = (1 << 31) - 1


class ModelError(DataError):
    """An error of the model folder or the installation, not of a prompt."""


class Prompts:
    """Prompts of a model. Loads the tokenizer when a text needs it. `missing`:
    the error to raise then if Python packages are missing. Rows of training
    data have their own converter, which can be assigned."""

    def __init__(self, files: ModelFiles, chat_template: str | None,
                 system: str | None, missing: DataError | None = None):
        self.files, self._system, self._missing = files, system, missing
        self._chat_template = chat_template

    @cached_property
    def converter(self) -> Converter:
        try:
            if self._missing:
                raise self._missing
            # Not imported earlier: it needs the packages.
            from .convert import Converter, Options
            # This rule keeps the model's own template. Templates for training
            # replace it if only the assistant's turns are in the loss.
            return Converter(self.files, Options(
                rule=LossRule(assistant_only=False),
                chat_template=self._chat_template))
        except DataError as error:
            raise ModelError(error.what, error.todo, error.place) from None

    def of_text(self, text: str) -> list[int]:
        """Returns the ids of a user's message if there is a chat template, else
        of plain text."""
        if self.converter.has_template:
            if not text:
                raise _empty()
            return self._chat(conversation(
                {"messages": [{"role": "user", "content": text}]}))
        self.check_system(self._system)
        return self.of_plain_text(text)

    def check_system(self, system: str | None) -> None:
        """Refuses a system message if there is no chat template."""
        if system and not self.converter.has_template:
            raise DataError(
                "--system needs a chat template, but the tokenizer in "
                f"'{self.files.folder}' has none", "add --chat-template, or "
                "write the text into the prompt")

    def of_row(self, row: dict) -> list[int]:
        for key in ("messages", "prompt"):
            if isinstance(row.get(key), list):
                return self._chat(conversation(row, key))
        prompt = row.get("prompt")
        if prompt is None:
            keys = ", ".join(f"'{key}'" for key in list(row)[:8]) or "no keys"
            raise DataError("a row without a prompt (it has " + keys + ")",
                            "use one of: prompt, messages, input_ids")
        if not isinstance(prompt, str):
            raise DataError("'prompt' expects a string or a list of messages, "
                            f"but got {kind(prompt)}", "fix 'prompt'")
        if self._system:
            raise DataError("a 'prompt' that is a string is plain text, which "
                            "has no place for --system",
                            "write the row as 'messages'")
        return self.of_plain_text(prompt)

    def answer(self, stops: tuple[str, ...], kept: Collection[str] = ()
               ) -> tuple[list[int], TextStream]:
        """Returns the tokens that end an answer, and its text. The tokens are
        the tokenizer's end of text, the one with which the chat template ends
        the assistant's turn, and stop strings that are tokens without text.
        `kept`: special tokens that the text keeps."""
        tokenizer = self.converter.tokenizer
        ends = [tokenizer.eos_token, self._end_of_turn,
                *(stop for stop in stops if stop in tokenizer.added_tokens)]
        ids = [tokenizer.id_of(token) for token in ends if token]
        return ids, TextStream(partial(
            tokenizer.decode, drops_special=True, kept=kept), stops)

    @cached_property
    def _end_of_turn(self) -> str:
        if not self.converter.has_template:
            return ""
        chat = conversation({"messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"}]})
        try:
            text = self._rendered(chat, False).rstrip()
        except DataError:  # a template with other rules for conversations
            return ""
        ends = [token for token in self.converter.tokenizer.added_tokens
                if text.endswith(token)]
        return max(ends, key=len, default="")

    def _rendered(self, chat: ChatRow, is_prompt: bool) -> str:
        template = self.converter.template_of(chat)
        return template.render(
            chat, chat.messages, self.converter.tokenizer.special_tokens,
            add_generation_prompt=is_prompt)[0]

    def rendered(self, messages: list[dict], is_prompt: bool = True) -> str:
        """Returns the chat template's text, up to the answer if `is_prompt`."""
        return self._rendered(conversation({"messages": messages}), is_prompt)

    def uses_dates(self) -> bool:
        """Returns whether the chat template can write the current day."""
        chat = conversation({"messages": [{"role": "user", "content": "a"}]})
        return "strftime_now" in self.converter.template_of(chat).source

    def _chat(self, chat: ChatRow) -> list[int]:
        """Returns the ids of the template's text, which has its own BOS."""
        if self._system and chat.messages[0]["role"] != "system":
            chat.messages.insert(0, {"role": "system",
                                     "content": self._system})
        if chat.messages[-1]["role"] == "assistant":
            raise DataError("the last message is the assistant's, so there is "
                            "nothing to answer", "remove it")
        return self._encoding(self._rendered(chat, True)).ids

    def of_plain_text(self, text: str) -> list[int]:
        """Returns the ids of a text without a template."""
        encoding = self._encoding(text)
        before, _ = self.converter.tokenizer.affixes(encoding)
        # A text that begins with the BOS token gets no second one.
        if encoding.ids[:len(before)] == before:
            return encoding.ids
        return before + encoding.ids

    def _encoding(self, text: str):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError("has half of a surrogate pair (\\ud800 to \\udfff "
                            "alone), which is not a character",
                            "fix the escape") from None
        try:
            encoding = self.converter.tokenizer.encode([text])[0]
        except Exception as error:  # the library raises bare Exception
            raise DataError(f"cannot be tokenized: {error}", "check "
                            f"{self.converter.tokenizer.path}") from None
        if not encoding.ids:
            raise _empty()
        return encoding


def is_token_ids(value: object) -> bool:
    return isinstance(value, list) and all(
        isinstance(number, int) and not isinstance(number, bool)
        and 0 <= number <= _MAX_ID for number in value)


def ids_of_row(row: dict) -> list[int]:
    """Returns the row's own input_ids."""
    ids = row["input_ids"]
    if not is_token_ids(ids):
        raise DataError("'input_ids' expects a list of token ids",
                        "fix 'input_ids'")
    if not ids:
        raise _empty()
    return ids


def adapter_of_row(row: dict) -> dict:
    """Returns the fields of a request with which the row chooses its adapter.
    """
    if "adapter" not in row:
        return {}
    name = row["adapter"]
    if name is not None and not isinstance(name, str):
        raise DataError("'adapter' expects the name of an adapter or null, but "
                        f"got {kind(name)}", "fix 'adapter'")
    return {"adapter": name}


def _empty() -> DataError:
    return DataError("the prompt is empty", "write at least one character")
