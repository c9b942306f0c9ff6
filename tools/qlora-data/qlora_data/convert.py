# SPDX-License-Identifier: MIT
"""The data step: turns rows into texts with spans in the loss, and texts into
ids and labels. Cuts rows that are too long, drops rows without labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from tokenizers import Encoding

from .columns import Columns
from .dropped import dropped_part
from .duplicates import Duplicates
from .errors import DataError
from .joining import LLAMA_FACTORY, WRAPPED, Wrapping, pieces, windows
from .marks import LossRule
from .masking import (IGNORED, Conversation, Span, labels_of, learned_texts,
                      unwritten_reasoning)
from .model_files import SHIPPED, ModelFiles
from .rows import RowSpool, TokenRows
from .preferences import (judged_of, repeated_prompt, repeats_prompt,
                          shares_prompt, sides_of)
from .shapes import ChatRow, PlainRow, normalise
from .sources import SourceRow, batches, source_of, total_bytes
from .styles import plain_formats, styled
from .template import Template
from .tokenizer import TextTokenizer
from .training import QWEN3, recognised, shipped_template
from .workers import in_order, worker_count

# Receives the number of bytes converted so far, and the bytes of all files.
Progress = Callable[[int, int], None]


@dataclass
class Options:
    max_length: int | None = None
    vocab_size: int | None = None
    rule: LossRule = field(default_factory=LossRule)
    chat_template: str | None = None
    workers: int | None = None
    columns: Columns = field(default_factory=Columns)
    pairs: bool = False  # rows have a chosen and a rejected answer
    unpaired: bool = False  # rows say whether their answer is desirable
    template_drops: bool = False  # the template may drop tools, calls, messages
    formats: tuple[str, ...] = ()  # of shapes.FORMATS; empty: all
    excess: str = "truncate"  # or drop, raise: handling of longer rows
    max_samples: int | None = None  # only the first rows of the data
    min_length: int = 0  # rows of fewer tokens are left out
    drops_duplicates: bool = False  # rows equal to an earlier one are left out
    drops_system: bool = False  # the first message is left out if of system
    packing: str = ""  # WRAPPED or LLAMA_FACTORY: all rows are joined and cut

    def __post_init__(self) -> None:
        self.forms = plain_formats(self.formats)


@dataclass
class RenderedRow:
    """A row as one text. `spans` are its characters in the loss (None: all).
    Plain text gets the tokenizer's special tokens and an end token. `desirable`
    is None if rows have no such label."""
    place: str
    text: str
    spans: list[Span] | None
    plain: bool
    desirable: bool | None = None


@dataclass
class TokenisedRow:
    """A row with the ids and labels of its text, or of both answers."""
    place: str
    sides: list[tuple[list[int], list[int]]]
    desirable: bool | None


class Converter:
    def __init__(self, files: ModelFiles, options: Options):
        self.options = options
        self.files = files
        self.tokenizer = TextTokenizer(files)
        named = options.chat_template
        self._is_shipped = named in SHIPPED
        self._sources = files.chat_templates(
            None if self._is_shipped else named)
        self._templates: dict[str, Template] = {}

    def convert(self, path: str, output: str, progress: Progress) -> RowSpool:
        """Converts all rows of a file or folder. Spools them near `output`."""
        source = source_of(path, self.options.max_samples)
        total = total_bytes(source.files)

        def parts() -> Iterator[Callable[[], tuple[TokenRows, int]]]:
            for rows, done in batches(source):
                yield partial(self._part, rows, done)

        out = RowSpool(output, self.options.unpaired)
        progress(0, total)
        workers = worker_count(total, self.options.workers)
        seen = Duplicates(2 if self.options.pairs else 1)
        wrapping = self._wrapping()
        for rows, done in in_order(parts, workers):
            if self.options.drops_duplicates:
                rows = seen.without(rows)
            out.extend(wrapping.wrapped(rows) if wrapping else rows)
            progress(done, total)
        if wrapping:
            out.extend(wrapping.wrapped(TokenRows(), is_last=True))
        self._check_any(path, out)
        if self.options.pairs:
            _check_prompts(out.counts)
        return out

    def _wrapping(self) -> Wrapping | None:
        packing = self.options.packing
        if not packing:
            return None
        begin = self.tokenizer.begin_ids() if packing == LLAMA_FACTORY else []
        return Wrapping(self.options.max_length, begin[-1] if begin else None,
                        packing == WRAPPED)

    def _part(self, rows: list[SourceRow],
              done: int) -> tuple[TokenRows, int]:
        out = TokenRows()
        for row in self.tokenised(rows, out):
            self.add(row, out)
        return out, done

    def tokenised(self, rows: list[SourceRow],
                  out: TokenRows) -> Iterator[TokenisedRow]:
        """Yields rows before they are cut to max_length. Counts in `out` the
        rows that the chat template changed."""
        batch = [text for row in rows for text in self._rendered(row, out)]
        encodings = self._encoded(batch)
        sides = 2 if self.options.pairs else 1
        for first in range(0, len(batch), sides):
            place = batch[first].place
            try:
                if self.options.excess == "windows" and batch[first].plain:
                    yield from self._windows(place, encodings[first])
                    continue
                yield TokenisedRow(
                    place, [self._tokens(batch[number], encodings[number])
                            for number in range(first, first + sides)],
                    batch[first].desirable)
            except DataError as error:
                raise error.at(place) from None

    def _windows(self, place: str, text: Encoding) -> Iterator[TokenisedRow]:
        before, after = self.tokenizer.affixes(text) if text.ids else ([], [])
        for ids in windows(text.ids, before, after + [self.tokenizer.eos_id()],
                           self.options.max_length or len(text.ids)):
            yield TokenisedRow(place, [(ids, list(ids))], None)

    def add(self, row: TokenisedRow, out: TokenRows) -> str:
        """Cuts and adds the row. Returns why the row is left out, or ""."""
        limit = self.options.max_length
        try:
            for ids, _ in row.sides:
                self._check_vocabulary(ids[:limit])
            tokens = max(len(ids) for ids, _ in row.sides)
            if tokens < self.options.min_length:
                return out.leave_out(row.place, "too_short")
            if self.options.packing:
                out.add_joined(*row.sides[0])
                return ""
            if self._leaves_out(tokens):
                return out.leave_out(row.place, "too_long")
            if self.options.excess == "split" and limit:
                rows = pieces(*row.sides[0], limit)
                return [out.add(row.place, [side], limit) for side in rows][0]
            return out.add(row.place, row.sides, limit, row.desirable)
        except DataError as error:
            raise error.at(row.place) from None

    def _rendered(self, source: SourceRow,
                  out: TokenRows) -> list[RenderedRow]:
        place = source.place
        try:
            row = styled(self.options.columns.renamed(source.read()),
                         self.options.formats)
            if self.options.pairs:
                out.add_prompt(place, shares_prompt(row),
                               repeats_prompt(row))
            rendered = [text for side, desirable in self._sides(row)
                        for text in self._side(place, side, desirable, out)]
            for text in rendered:
                text.text.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError("has half of a surrogate pair (\\ud800 to \\udfff "
                            "alone), which is not a character",
                            "fix the escape", place) from None
        except DataError as error:
            raise error.at(place) from None
        return rendered

    def _sides(self, row: dict) -> list[tuple[dict, bool | None]]:
        if self.options.unpaired:
            return judged_of(row)
        return [(side, None)
                for side in (sides_of(row) if self.options.pairs else [row])]

    def _side(self, place: str, row: dict, desirable: bool | None,
              out: TokenRows) -> list[RenderedRow]:
        compares = self.options.pairs or self.options.unpaired
        form = normalise(row, self.tokenizer.eos_token, self.options.forms,
                         compares, self.options.rule)
        if self.options.drops_system and isinstance(form, ChatRow):
            form.drop_system()
        texts = ([self._plain(place, form)] if isinstance(form, PlainRow)
                 else self._chat(place, form, out))
        for text in texts:
            text.desirable = desirable
        if compares and len(texts) != 1:
            raise DataError(
                f"an answer of {len(texts)} assistant turns, but the chat "
                "template changes earlier turns",
                "put all but the last turn into 'prompt'")
        return texts

    def _plain(self, place: str, row: PlainRow) -> RenderedRow:
        text, spans = "", []
        for piece, learned in row.segments:
            if learned or not self.options.rule.completion_only:
                spans.append((len(text), len(text) + len(piece)))
            text += piece
        everything = len(spans) == len(row.segments)
        return RenderedRow(place, text, None if everything else spans, True)

    def _chat(self, place: str, chat: ChatRow,
              out: TokenRows) -> list[RenderedRow]:
        template = self.template_of(chat)
        if template.place in SHIPPED and not self._is_shipped:
            out.chosen_template = template.place
        talk = Conversation(chat, template, self.tokenizer.special_tokens,
                            self.tokenizer.added_tokens)
        texts = learned_texts(talk, self.options.rule)
        if len(texts) > 1:
            out.count("split", place)
        self._check_dropped(place, talk, texts, out)
        return [RenderedRow(place, text, spans, False)
                for text, spans in texts]

    def _check_dropped(self, place: str, talk: Conversation,
                       texts: list[tuple[str, list[Span] | None]],
                       out: TokenRows) -> None:
        """Refuses a row if the template drops a part of it. Only reasoning in
        prompts may be dropped, as many templates do; it is counted."""
        messages = talk.chat.messages
        learned = (talk.chat.prompt_count if self.options.rule.completion_only
                   else 0)
        dropped = dropped_part(talk, texts[-1][0])
        unreasoned = unwritten_reasoning(messages, texts, learned)
        if unreasoned >= 0 and not dropped:
            dropped = f"the reasoning of message {unreasoned + 1} (assistant)"
        if dropped and not self.options.template_drops:
            raise DataError(
                f"the chat template ({talk.template.place}) drops {dropped}",
                "use a template that writes it (--chat-template), remove it "
                "from the row, or train without it (--allow-template-drops "
                "true)")
        if unwritten_reasoning(messages, texts) >= 0:
            out.count("unreasoned", place)
        elif dropped:
            out.count("dropping", place)

    @property
    def has_template(self) -> bool:
        return self._is_shipped or "default" in self._sources

    def template_of(self, chat: ChatRow) -> Template:
        """Returns the compiled template for a row: 'tool_use' if it exists and
        the row has tools, else 'default'."""
        name = "tool_use" if chat.tools and "tool_use" in self._sources \
            else "default"
        if name not in self._templates:
            self._templates[name] = self._compiled(name, chat)
        return self._templates[name]

    def _compiled(self, name: str, chat: ChatRow) -> Template:
        named = self.options.chat_template
        if self._is_shipped and named != QWEN3:
            return shipped_template(named)
        own = None
        if name in self._sources:
            own = Template(*self._sources[name])
        # QWEN3 replaces Qwen3's own template if --chat-template names it. It
        # also does so without --chat-template if only the assistant's turns are
        # in the loss. A template file from --chat-template is not replaced.
        if own and (self._is_shipped or (self.options.rule.assistant_only
                                         and not named)):
            own = recognised(own) or own
        if self._is_shipped and (own is None or own.place not in SHIPPED):
            return shipped_template(named)
        if own:
            return own
        others = ", ".join(sorted(self._sources))
        has = f"none named 'default' (only {others})" if others else "none"
        raise DataError(
            f"'{chat.shape}' needs a chat template, but the tokenizer in "
            f"'{self.files.folder}' has {has}",
            "add --chat-template with a Jinja file or one of "
            f"{', '.join(SHIPPED)}")

    def _encoded(self, batch: list[RenderedRow]) -> list[Encoding]:
        try:
            return self.tokenizer.encode([row.text for row in batch])
        except Exception:  # the library does not name the text
            pass
        encodings = []
        for row in batch:
            try:
                encodings += self.tokenizer.encode([row.text])
            except Exception as error:
                raise DataError(f"cannot be tokenized: {error}",
                                f"check {self.tokenizer.path}",
                                row.place) from None
        return encodings

    def _tokens(self, row: RenderedRow,
                encoding: Encoding) -> tuple[list[int], list[int]]:
        ids = encoding.ids
        labels = labels_of(ids, encoding.offsets, row.spans)
        if not row.plain:
            return ids, labels
        eos = self.tokenizer.eos_id()
        before, after = [], []
        if self.options.packing == LLAMA_FACTORY:
            # DataCollatorForLanguageModeling takes pad tokens out of the loss.
            pad = self.tokenizer.padding_id()
            return ids + [eos], [IGNORED if number == pad else label
                                 for number, label in zip(ids + [eos],
                                                          labels + [eos])]
        if ids:
            before, after = self.tokenizer.affixes(encoding)
        if (ids + after)[-1:] != [eos]:
            after = after + [eos]
        first = before if row.spans is None else [IGNORED] * len(before)
        return before + ids + after, first + labels + after

    def _leaves_out(self, tokens: int) -> bool:
        """Returns whether a row is left out as too long."""
        limit, excess = self.options.max_length, self.options.excess
        if limit is None or tokens <= limit or excess not in ("drop", "raise"):
            return False
        if excess == "raise":
            raise DataError(f"has {tokens} tokens, more than --max-length "
                            f"{limit}", "raise --max-length, or cut rows with "
                            "--excess-length-strategy truncate")
        return True

    def _check_vocabulary(self, ids: list[int]) -> None:
        size = self.options.vocab_size
        if size is None or not ids or max(ids) < size:
            return
        number = max(ids)
        raise DataError(
            f"token id {number} ('{self.tokenizer.token(number)}') exceeds "
            f"the model's vocabulary of {size}, but {self.tokenizer.path} has "
            f"{self.tokenizer.size()} tokens", "use the model's own tokenizer")

    def _check_any(self, path: str, out: RowSpool) -> None:
        if out.rows:
            return
        counts = out.counts
        if not counts.dropped_rows:
            raise DataError("the data has no rows",
                            "write one JSON object a line", path)
        if counts.kinds["too_long"] == counts.dropped_rows:
            raise DataError(
                f"all {counts.dropped_rows} rows have more tokens than "
                f"--max-length {self.options.max_length}", "raise --max-length",
                path)
        if counts.kinds["too_short"] == counts.dropped_rows:
            raise DataError(
                f"all {counts.dropped_rows} rows have fewer tokens than "
                f"--min-length {self.options.min_length}", "lower --min-length",
                path)
        masked, cut_off = counts.kinds["masked"], counts.kinds["cut_off"]
        if not cut_off:
            raise DataError(
                f"no row has a token in the loss (all {masked} are masked)",
                "check the roles of the messages", counts.first["masked"])
        others = f", and the {masked} others have none" if masked else ""
        rows = "all" if not masked else "the"
        raise DataError(
            f"{rows} {cut_off} rows lost their answer to "
            f"--max-length {self.options.max_length}{others}; the shortest "
            f"needs {counts.shortest_cut_off} tokens", "raise --max-length",
            path)


def _check_prompts(counts: TokenRows) -> None:
    """Refuses a file if only some pairs have a prompt column, because in the
    other pairs the common beginning of the answers may not be the prompt. Also
    refuses it if the answers of all pairs repeat the prompt."""
    first = counts.first
    if "own_prompt" in first and "shared_prompt" in first:
        raise DataError(
            f"a pair without 'prompt', although {first['own_prompt']} has it",
            "add 'prompt'", first["shared_prompt"])
    if "repeated_prompt" in first and "apart_prompt" not in first:
        raise repeated_prompt().at(first["repeated_prompt"])
