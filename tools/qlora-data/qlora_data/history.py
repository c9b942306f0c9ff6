# SPDX-License-Identifier: MIT
"""The conversation of a chat."""

from __future__ import annotations

import json

from .errors import DataError, unwritable


class History:
    """Messages of user and assistant in turn. `is_plain`: the model has no chat
    template, so each message is a prompt of its own."""

    def __init__(self, system: str, is_plain: bool):
        self.system, self._is_plain = system, is_plain
        self.messages: list[dict] = []

    def row(self) -> dict:
        """Returns the row whose answer comes next."""
        if self._is_plain:
            return {"prompt": self.messages[-1]["content"]}
        return {"messages": self._with_system()}

    def _with_system(self) -> list[dict]:
        system = [{"role": "system", "content": self.system}]
        return (system if self.system else []) + self.messages

    def ask(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def take_back(self, count: int) -> list[dict]:
        """Removes the last messages, and returns them."""
        taken = self.messages[len(self.messages) - count:]
        del self.messages[len(self.messages) - count:]
        return taken

    def save(self, path: str) -> int:
        """Appends the conversation to a file of rows. Returns how many."""
        rows = self._rows()
        if not rows:
            raise DataError("there is no answer to save",
                            "write a message first")
        try:
            with open(path, "a+b") as file:
                # A row never continues a line that another program left.
                size = file.seek(0, 2)
                if size and (file.seek(size - 1), file.read(1))[1] != b"\n":
                    file.write(b"\n")
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=False).encode()
                               + b"\n")
        except OSError as error:
            raise unwritable(path, error) from None
        return len(rows)

    def _rows(self) -> list[dict]:
        if not self.messages:
            return []
        if not self._is_plain:
            return [{"messages": self._with_system()}]
        return [{"prompt": question["content"], "completion": answer["content"]}
                for question, answer in zip(self.messages[::2],
                                            self.messages[1::2])]
