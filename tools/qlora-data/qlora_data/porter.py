# SPDX-License-Identifier: MIT
"""Porter's stemmer with NLTK's extensions, which rouge-score uses: removes the
ending of an English word, so that "connected" and "connection" are equal.

M. F. Porter, An algorithm for suffix stripping, Program 14 (3), 1980. The
letters of a word are consonants and vowels; a y after a consonant is a vowel,
and so digits count as consonants. The measure m of a word is the number of
times that a consonant follows a vowel in it.
"""

from __future__ import annotations

from functools import lru_cache

_VOWELS = frozenset("aeiou")

# NLTK's extensions: words with stems of their own.
_IRREGULAR = {
    "sky": "sky", "skies": "sky", "dying": "die", "lying": "lie",
    "tying": "tie", "news": "news", "innings": "inning", "inning": "inning",
    "outings": "outing", "outing": "outing", "cannings": "canning",
    "canning": "canning", "howe": "howe", "proceed": "proceed",
    "exceed": "exceed", "succeed": "succeed"}

_PLURALS = (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", ""))

# The first ending that a word has decides, so longer ones come first.
_STEP_2 = (("ational", "ate"), ("tional", "tion"), ("enci", "ence"),
           ("anci", "ance"), ("izer", "ize"), ("bli", "ble"), ("entli", "ent"),
           ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
           ("ator", "ate"), ("alism", "al"), ("iveness", "ive"),
           ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
           ("iviti", "ive"), ("biliti", "ble"), ("fulli", "ful"))
_STEP_3 = (("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"),
           ("ical", "ic"), ("ful", ""), ("ness", ""))
_STEP_4 = tuple((ending, "") for ending in (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment",
    "ent", "ou", "ism", "ate", "iti", "ous", "ive", "ize"))


def _consonants(word: str) -> list[bool]:
    """Returns for each letter whether it is a consonant."""
    flags: list[bool] = []
    for letter in word:
        if letter == "y":
            flags.append(not flags or not flags[-1])
        else:
            flags.append(letter not in _VOWELS)
    return flags


def _measure(word: str) -> int:
    flags = _consonants(word)
    return sum(not before and after for before, after in zip(flags, flags[1:]))


def _is_short(word: str) -> bool:
    """Returns whether a word ends in consonant, vowel and a consonant other
    than w, x and y, or only has a vowel and a consonant."""
    flags = _consonants(word)
    if len(word) == 2:
        return flags == [False, True]
    return flags[-3:] == [True, False, True] and word[-1] not in "wxy"


def _replaced(word: str, rules: tuple[tuple[str, str], ...],
              least: int) -> str:
    """Replaces the first of the endings that the word has, if what precedes it
    has a measure of at least `least`."""
    for ending, replacement in rules:
        if word.endswith(ending):
            before = word[:-len(ending)]
            return before + replacement if _measure(before) >= least else word
    return word


def _without_plural(word: str) -> str:
    if word.endswith("ies") and len(word) == 4:
        return word[:-1]
    return _replaced(word, _PLURALS, 0)


def _without_tense(word: str) -> str:
    """Removes -ed and -ing, and repairs what precedes them."""
    if word.endswith("ied"):
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return _replaced(word, (("eed", "ee"),), 1)
    ending = next((text for text in ("ed", "ing") if word.endswith(text)), "")
    before = word[:-len(ending)] if ending else ""
    if all(_consonants(before)):  # also without an ending
        return word
    if before.endswith(("at", "bl", "iz")):
        return before + "e"
    if before[-2:] == before[-1] * 2 and _consonants(before)[-1]:
        return before if before[-1] in "lsz" else before[:-1]
    if _measure(before) == 1 and _is_short(before):
        return before + "e"
    return before


def _with_i(word: str) -> str:
    """Replaces a y at the end after a consonant."""
    if len(word) > 2 and word.endswith("y") and _consonants(word)[-2]:
        return word[:-1] + "i"
    return word


def _step_2(word: str) -> str:
    while word.endswith("alli") and _measure(word[:-4]) > 0:
        word = word[:-2]
    if word.endswith("logi"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _STEP_2, 1)


def _step_4(word: str) -> str:
    if word.endswith("ion"):
        before = word[:-3]
        return before if _measure(before) > 1 and before[-1] in "st" else word
    return _replaced(word, _STEP_4, 2)


def _tidied(word: str) -> str:
    if word.endswith("e"):
        before = word[:-1]
        measure = _measure(before)
        if measure > 1 or (measure == 1 and not _is_short(before)):
            word = before
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """Returns the stem of a word in lower case."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _with_i(_without_tense(_without_plural(word)))
    return _tidied(_step_4(_replaced(_step_2(word), _STEP_3, 1)))
