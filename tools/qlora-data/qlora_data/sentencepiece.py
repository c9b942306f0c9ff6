# SPDX-License-Identifier: MIT
"""Converts tokenizer.model, SentencePiece's protobuf, to a tokenizer of the
package `tokenizers`, as transformers 5 does. So offsets, batches and added
tokens work alike for all models, and no other package is needed.

Reads only the fields that affect tokenization. Field numbers are from
sentencepiece_model.proto.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from .errors import DataError, unreadable

NORMAL, _UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
_UNIGRAM, _BPE = 1, 2
# Longest piece in characters. Limits _merges(), which tries all its splits.
_LONGEST_PIECE = 4096
SPACE = "▁"


@dataclass
class SentencePiece:
    """`pieces`: text, score and type, by token id."""
    pieces: list[tuple[str, float, int]] = field(default_factory=list)
    model_type: int = _UNIGRAM
    byte_fallback: bool = False
    suffix_spaces: bool = False
    special: dict[str, tuple[int, str]] = field(default_factory=lambda: {
        "unk_token": (0, "<unk>"), "bos_token": (1, "<s>"),
        "eos_token": (2, "</s>")})
    charsmap: bytes = b""
    dummy_prefix: bool = True
    remove_extra_spaces: bool = True
    escape_spaces: bool = True

    def of_type(self, kind: int) -> list[tuple[int, str]]:
        return [(number, text) for number, (text, _, type_)
                in enumerate(self.pieces) if type_ == kind]

    def named_tokens(self) -> dict[str, str]:
        return {name: text for name, (number, text) in self.special.items()
                if 0 <= number < len(self.pieces)}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7f) << shift
        if byte < 0x80:
            return value & (1 << 64) - 1, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field: an integer, or bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if kind == 2:
                size, at = _varint(data, at)
            if size is None or at + size > len(data):
                raise ValueError("a field that does not end in the file")
            value = data[at:at + size]
            at += size
        yield tag >> 3, value


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = value.decode("utf-8")
        elif number == 2:
            score, = struct.unpack("<f", value)
        elif number == 3:
            kind = value
    if len(text) > _LONGEST_PIECE:
        raise ValueError(f"a piece of more than {_LONGEST_PIECE} characters")
    return text, score, kind


def _read_trainer(model: SentencePiece, data: bytes) -> None:
    ids = {40: "unk_token", 41: "bos_token", 42: "eos_token"}
    texts = {45: "unk_token", 46: "bos_token", 47: "eos_token"}
    for number, value in _fields(data):
        if number == 3:
            model.model_type = value
        elif number == 24:
            model.suffix_spaces = bool(value)
        elif number == 35:
            model.byte_fallback = bool(value)
        elif number in ids:
            # Negative ids, as 64-bit values, are above all piece ids.
            model.special[ids[number]] = (value, model.special[ids[number]][1])
        elif number in texts:
            name = texts[number]
            model.special[name] = (model.special[name][0],
                                   value.decode("utf-8"))


def _read_normalizer(model: SentencePiece, data: bytes) -> None:
    names = {2: "charsmap", 3: "dummy_prefix", 4: "remove_extra_spaces",
             5: "escape_spaces"}
    for number, value in _fields(data):
        if number in names:
            setattr(model, names[number], value)


def read_sentencepiece(path: str) -> SentencePiece:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise unreadable(path, error) from None
    model = SentencePiece()
    try:
        for number, value in _fields(data):
            if number == 1:
                model.pieces.append(_piece(value))
            elif number == 2:
                _read_trainer(model, value)
            elif number == 3:
                _read_normalizer(model, value)
        if not model.pieces:
            raise ValueError("no pieces")
    except (ValueError, IndexError, TypeError, AttributeError,
            struct.error) as error:
        if re.match(rb"[A-Za-z0-9+/]+=* \d+\n", data):
            raise tiktoken_error("is", path) from None
        raise DataError(f"not a SentencePiece model: {error}", "copy it again "
                        "from the model", path) from None
    if model.model_type not in (_UNIGRAM, _BPE) or model.suffix_spaces:
        raise DataError("a SentencePiece model of words, of characters or "
                        "with spaces at the end of pieces",
                        "only BPE and Unigram are read", path)
    return model


def tiktoken_error(what: str, place: str) -> DataError:
    return DataError(f"{what} a vocabulary of tiktoken, which is not "
                     "supported",
                     "use the model's transformers version, with "
                     "tokenizer.json", place)


def _merges(scores: dict[str, tuple[float, int]]) -> list[tuple[str, str]]:
    """Returns all pairs of pieces whose concatenation is a piece. Sorts them by
    the concatenation's score (highest first), then by its id."""
    ranked = []
    for text, (score, number) in scores.items():
        for cut in range(1, len(text)):
            left, right = text[:cut], text[cut:]
            if left in scores and right in scores:
                ranked.append((-score, number, left, right))
    return [(left, right) for _, _, left, right in sorted(ranked)]


def _model(spm: SentencePiece, renamed: dict[int, str]):
    texts = [renamed.get(number, text)
             for number, (text, _, _) in enumerate(spm.pieces)]
    unk_id, unk = spm.special["unk_token"]
    if spm.model_type == _UNIGRAM:
        return models.Unigram(
            [(text, piece[1]) for text, piece in zip(texts, spm.pieces)],
            unk_id=unk_id, byte_fallback=spm.byte_fallback)
    scores = {text: (score, number) for number, (text, (_, score, kind))
              in enumerate(zip(texts, spm.pieces)) if kind == NORMAL}
    return models.BPE(
        {text: number for number, text in enumerate(texts)}, _merges(scores),
        unk_token=renamed.get(unk_id, unk), fuse_unk=True,
        byte_fallback=spm.byte_fallback,
        ignore_merges=bool(spm.of_type(USER_DEFINED)))


def _normalizer(spm: SentencePiece, prefix_scheme: str):
    """Returns SentencePiece's text changes, in its order, except the dummy
    prefix, which the pre-tokenizer adds."""
    steps = []
    if spm.charsmap:
        steps.append(normalizers.Precompiled(spm.charsmap))
    if spm.remove_extra_spaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""),
                  normalizers.Replace(Regex(" {2,}"), " ")]
    if spm.escape_spaces:
        steps.append(normalizers.Replace(" ", SPACE))
    # The pre-tokenizer adds no prefix before an existing space; SentencePiece
    # does.
    if spm.dummy_prefix and prefix_scheme == "always":
        steps.append(normalizers.Replace(Regex(rf"\A{SPACE}"), 2 * SPACE))
    return normalizers.Sequence(steps)


def tokenizer_of(spm: SentencePiece, prefix_scheme: str,
                 renamed: dict[int, str]) -> Tokenizer:
    """Makes the tokenizer. If the model has a dummy prefix, `prefix_scheme`
    selects the texts between added tokens that get it: "always" or "first"."""
    tokenizer = Tokenizer(_model(spm, renamed))
    tokenizer.normalizer = _normalizer(spm, prefix_scheme)
    steps = []
    if spm.dummy_prefix:
        steps.append(pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme=prefix_scheme, split=False))
    if whole := spm.of_type(USER_DEFINED):  # no merge crosses these pieces
        texts = sorted((renamed.get(number, text) for number, text in whole),
                       key=len, reverse=True)
        steps.append(pre_tokenizers.Split(
            Regex("|".join(map(re.escape, texts))), behavior="isolated"))
    if steps:
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    return tokenizer
