# SPDX-License-Identifier: MIT
"""The data step itself: rows to texts with learned spans, texts to ids and
labels, rows that are too long cut, rows with nothing to learn left out."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from tokenizers import Encoding

from .errors import DataError
from .jsonl import read_rows
from .masking import (IGNORED, Conversation, LossRule, Span, labels_of,
                      learned_spans)
from .model_files import ModelFiles
from .shapes import ChatRow, PlainRow, normalise
from .template import Template
from .tokenizer import TextTokenizer

_BATCH_ROWS = 256


@dataclass
class Options:
    max_length: int | None = None
    vocab_size: int | None = None
    rule: LossRule = field(default_factory=LossRule)
    chat_template: str | None = None


@dataclass
class RenderedRow:
    """A row as one text. `spans` are its learned characters (None: all);
    plain text gets the tokenizer's special tokens and an end token."""
    line: int
    text: str
    spans: list[Span] | None
    plain: bool


@dataclass
class TokenRows:
    """The output: flat ids and labels, and where each row begins."""
    input_ids: array = field(default_factory=lambda: array("i"))
    labels: array = field(default_factory=lambda: array("i"))
    row_offsets: array = field(default_factory=lambda: array("q", [0]))
    labelled_tokens: int = 0
    longest: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    first_truncated: int = 0
    dropped_rows: int = 0
    first_dropped: int = 0

    def summary(self) -> dict[str, int]:
        return {"rows": len(self.row_offsets) - 1,
                "tokens": len(self.input_ids),
                "labelled_tokens": self.labelled_tokens,
                "truncated_rows": self.truncated_rows,
                "truncated_tokens": self.truncated_tokens,
                "dropped_rows": self.dropped_rows,
                "longest": self.longest}


class Converter:
    def __init__(self, files: ModelFiles, options: Options):
        self.options = options
        self.files = files
        self.tokenizer = TextTokenizer(files)
        self._sources = files.chat_templates(options.chat_template)
        self._templates: dict[str, Template] = {}

    def convert(self, path: str) -> TokenRows:
        """All rows of the file `path`."""
        out = TokenRows()
        rows = self._rendered(path)
        while batch := list(islice(rows, _BATCH_ROWS)):
            for row, encoding in zip(batch, self._encoded(path, batch)):
                try:
                    ids, labels = self._tokens(row, encoding)
                    self._append(out, row.line, ids, labels)
                except DataError as error:
                    raise error.at(f"{path}:{row.line}") from None
        self._check_any(path, out)
        return out

    def _rendered(self, path: str) -> Iterator[RenderedRow]:
        for line, row in read_rows(path):
            try:
                form = normalise(row, self.tokenizer.eos_token)
                if isinstance(form, PlainRow):
                    rendered = self._plain(line, form)
                else:
                    rendered = self._chat(line, form)
                rendered.text.encode("utf-8")
            except UnicodeEncodeError:
                raise DataError("holds half of a surrogate pair (\\ud800 to "
                                "\\udfff alone), which is no character",
                                "fix the escape", f"{path}:{line}") from None
            except DataError as error:
                raise error.at(f"{path}:{line}") from None
            yield rendered

    def _plain(self, line: int, row: PlainRow) -> RenderedRow:
        text, spans = "", []
        for piece, learned in row.segments:
            if learned or not self.options.rule.completion_only:
                spans.append((len(text), len(text) + len(piece)))
            text += piece
        everything = len(spans) == len(row.segments)
        return RenderedRow(line, text, None if everything else spans, True)

    def _chat(self, line: int, chat: ChatRow) -> RenderedRow:
        talk = Conversation(chat, self._template(chat),
                            self.tokenizer.special_tokens,
                            self.tokenizer.added_tokens)
        text, spans = learned_spans(talk, self.options.rule)
        return RenderedRow(line, text, spans, False)

    def _template(self, chat: ChatRow) -> Template:
        """The compiled template for a row: 'tool_use' where there is one and
        the row has tools."""
        name = "tool_use" if chat.tools and "tool_use" in self._sources \
            else "default"
        if name not in self._sources:
            others = ", ".join(sorted(self._sources))
            has = f"none named 'default' (only {others})" if others else "none"
            raise DataError(
                f"a row with '{chat.shape}' as messages needs a chat template,"
                f" and {self.files.folder} has {has}",
                "pass --chat-template FILE or add chat_template.jinja there")
        if name not in self._templates:
            self._templates[name] = Template(*self._sources[name])
        return self._templates[name]

    def _encoded(self, path: str, batch: list[RenderedRow]) -> list[Encoding]:
        try:
            return self.tokenizer.encode([row.text for row in batch])
        except Exception:  # the library does not say which text it was
            pass
        encodings = []
        for row in batch:
            try:
                encodings += self.tokenizer.encode([row.text])
            except Exception as error:
                raise DataError(f"cannot be tokenized: {error}",
                                f"check {self.tokenizer.path}",
                                f"{path}:{row.line}") from None
        return encodings

    def _tokens(self, row: RenderedRow,
                encoding: Encoding) -> tuple[list[int], list[int]]:
        ids = encoding.ids
        labels = labels_of(ids, encoding.offsets, row.spans)
        if not row.plain:
            return ids, labels
        eos = self.tokenizer.eos_id()
        before, after = [], []
        if ids:
            before, after = self.tokenizer.affixes(encoding)
        if (ids + after)[-1:] != [eos]:
            after = after + [eos]
        first = before if row.spans is None else [IGNORED] * len(before)
        return before + ids + after, first + labels + after

    def _append(self, out: TokenRows, line: int, ids: list[int],
                labels: list[int]) -> None:
        """Adds a row. Nothing precedes its first token, so that one is never
        a target, and every label that is left counts in the loss."""
        lost = max(0, len(ids) - (self.options.max_length or len(ids)))
        if lost:
            ids, labels = ids[:-lost], labels[:-lost]
        self._check_vocabulary(ids)
        labels[:1] = [IGNORED] * len(labels[:1])
        learned = len(labels) - labels.count(IGNORED)
        if not learned:
            out.dropped_rows += 1
            out.first_dropped = out.first_dropped or line
            return
        if lost:
            out.truncated_rows += 1
            out.truncated_tokens += lost
            out.first_truncated = out.first_truncated or line
        out.input_ids.extend(ids)
        out.labels.extend(labels)
        out.row_offsets.append(len(out.input_ids))
        out.labelled_tokens += learned
        out.longest = max(out.longest, len(ids))

    def _check_vocabulary(self, ids: list[int]) -> None:
        size = self.options.vocab_size
        if size is None or not ids or max(ids) < size:
            return
        number = max(ids)
        raise DataError(
            f"token id {number} ('{self.tokenizer.token(number)}') is beyond "
            f"the model's vocabulary of {size}",
            f"use the tokenizer the model came with ({self.tokenizer.path})")

    def _check_any(self, path: str, out: TokenRows) -> None:
        if len(out.row_offsets) > 1:
            return
        if not out.dropped_rows:
            raise DataError("the file has no rows",
                            "write one JSON object a line", path)
        raise DataError(
            f"no row has a token to learn from (all {out.dropped_rows} are "
            "masked)", "check the roles of the messages, and --max-length",
            f"{path}:{out.first_dropped}")
