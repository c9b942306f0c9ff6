# SPDX-License-Identifier: MIT
"""ROUGE (Lin 2004) of an answer and its reference, as rouge-score 0.1.2 of
Google computes it. Words are runs of a to z and digits, so texts in other
alphabets have few or none.

    rouge1, rouge2  pairs of equal words, or equal neighbours of two words
    rougeL          longest common subsequence of words
    rougeLsum       the same, by lines: each line of the reference is compared
                    with all lines of the answer
"""

from __future__ import annotations

import re
from collections import Counter

from .porter import stem

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")

_WORD = re.compile("[a-z0-9]+")
_LONGEST_UNSTEMMED = 3  # characters


def words_of(text: str, use_stemmer: bool) -> list[str]:
    words = _WORD.findall(text.lower())
    if not use_stemmer:
        return words
    return [stem(word) if len(word) > _LONGEST_UNSTEMMED else word
            for word in words]


def rouge(reference: str, answer: str,
          use_stemmer: bool = False) -> dict[str, float]:
    """Returns the F-measure of each of NAMES."""
    wanted, got = words_of(reference, use_stemmer), words_of(answer,
                                                             use_stemmer)
    lines = [[words_of(line, use_stemmer) for line in text.split("\n")]
             for text in (reference, answer)]
    rows = _subsequence_rows(wanted, got)
    return {"rouge1": _of_groups(wanted, got, 1),
            "rouge2": _of_groups(wanted, got, 2),
            "rougeL": _f_measure(_length(rows[-1], len(got)), len(wanted),
                                 len(got)),
            "rougeLsum": _of_lines(*lines)}


def _f_measure(hits: int, wanted: int, got: int) -> float:
    """Returns the F-measure of `hits` among numbers of words."""
    if not hits:
        return 0.0
    precision, recall = hits / got, hits / wanted
    return 2 * precision * recall / (precision + recall)


def _of_groups(wanted: list[str], got: list[str], size: int) -> float:
    counts = [Counter(zip(*(words[first:] for first in range(size))))
              for words in (wanted, got)]
    return _f_measure(sum((counts[0] & counts[1]).values()),
                      sum(counts[0].values()), sum(counts[1].values()))


def _of_lines(wanted: list[list[str]], got: list[list[str]]) -> float:
    """Counts the words of each line of the reference that are in a longest
    common subsequence with any line of the answer. A word counts at most as
    often as each text has it."""
    left = [Counter(word for line in lines for word in line)
            for lines in (wanted, got)]
    sizes = [sum(counts.values()) for counts in left]
    hits = 0
    for line in wanted:
        found = {at for other in got for at in _subsequence(line, other)}
        for at in sorted(found):
            word = line[at]
            if left[0][word] > 0 and left[1][word] > 0:
                hits += 1
                left[0][word] -= 1
                left[1][word] -= 1
    return _f_measure(hits, *sizes)


def _subsequence_rows(wanted: list[str], got: list[str]) -> list[int]:
    """Returns the table of lengths of longest common subsequences, one row for
    each number of words of `wanted` from 0. Bit j of a row is 0 where the
    length grows from j to j + 1 words of `got` (Hyyro 2004): a row costs a few
    operations on long integers."""
    places: dict[str, int] = {}
    for at, word in enumerate(got):
        places[word] = places.get(word, 0) | 1 << at
    everything = (1 << len(got)) - 1
    rows = [everything]
    for word in wanted:
        row = rows[-1]
        matches = row & places.get(word, 0)
        rows.append((row + matches | row - matches) & everything)
    return rows


def _length(row: int, count: int) -> int:
    """Returns the length for `count` words of `got`."""
    return count - bin(row & (1 << count) - 1).count("1")


def _subsequence(wanted: list[str], got: list[str]) -> list[int]:
    """Returns the indices in `wanted` of a longest common subsequence: the one
    that rouge-score finds, because they may have different words."""
    rows = _subsequence_rows(wanted, got)
    found = []
    i, j = len(wanted), len(got)
    while i and j:
        if wanted[i - 1] == got[j - 1]:
            i, j = i - 1, j - 1
            found.append(i)
        elif _length(rows[i], j - 1) > _length(rows[i - 1], j):
            j -= 1
        else:
            i -= 1
    return found
