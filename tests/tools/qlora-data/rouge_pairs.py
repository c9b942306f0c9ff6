#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""rouge_pairs.py [PAIRS]: compares our ROUGE with Google's rouge-score 0.1.2.

Makes random pairs of an answer and a reference: of English words with many
endings, of random letters, of characters outside of ASCII, with punctuation and
line breaks, empty and long ones. Each F-measure, with and without the stemmer,
must be within 1e-9. The stems of the words must be equal.
"""

import os
import random
import sys
from importlib.metadata import PackageNotFoundError, version

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../../tools/qlora-data"))
from qlora_data.porter import stem  # noqa: E402
from qlora_data.rouge import NAMES, rouge  # noqa: E402

PAIRS = 1000
LIMIT = 1e-9
WANTED = "0.1.2"

STEMS = """relat condit rat val hesit digit conform radic different vile analog
vietnam predic oper feud decis hope callous form sensit triplic electr good
reviv allow infer airlin gyroscop adjust defens irrit replac depend adopt
homolog commun activ angular effect bowdler prob cease control roll hopp tann
fall hiss fizz fail fil happ sk motor plaster bled sing conflat troubl siz agre
feed caress pon ti cat d l t sp fl tr enjo geo theo archaeo wonder care syzyg
toy by xyl a1b 2nd""".split()
ENDINGS = """s es ies sses ss ed ied eed ing y al ance ence er ic able ible ant
ement ment ent ion sion tion ou ism ate iti ous ive ize e ll ational tional enci
anci izer abli bli alli entli eli ousli ization ation ator alism iveness fulness
ousness aliti iviti biliti fulli logi icate ative alize iciti ical ful ness
alialli ings edly""".split()
IRREGULAR = """sky skies dying lying tying news innings inning outings outing
cannings canning howe proceed exceed succeed the a of and""".split()
OTHERS = ["é", "日本", "straße", "İstanbul", "ﬁne", "K", "ſ", "Ωmega", "naïve",
          "ß", "Ⅷ", "²", "٣", "😀", "e\u0301", "\ud800", "don't", "x-ray",
          "3.14", "A1", "\u00a0", "\u2028", "\x85", "\x00"]
MARKS = [" ", " ", " ", " ", "  ", "\n", "\n\n", ", ", ". ", "-", "\t", "\r\n",
         "_", "'", " \n "]


def word(chance):
    kind = chance.randrange(10)
    if kind < 4:
        text = chance.choice(STEMS) + chance.choice(ENDINGS + [""] * 30)
    elif kind < 6:
        text = chance.choice(IRREGULAR)
    elif kind < 7:
        text = chance.choice(OTHERS)
    else:
        text = "".join(chance.choices("abcdeiouyslgtnrz019",
                                      k=chance.randrange(1, 9)))
        text += chance.choice(ENDINGS + [""] * 10)
    return text.upper() if chance.randrange(12) == 0 else text


def text(chance, words):
    count = chance.choice([0, 1, 2, 5, 5, 12, 12, 30, 30, 30, 90])
    if chance.randrange(200) == 0:
        count = 400
    return "".join(chance.choice(words) + chance.choice(MARKS)
                   for _ in range(count))


def pair(chance):
    """Returns two texts, which share some of their words."""
    words = [word(chance) for _ in range(chance.choice([1, 2, 5, 20, 60]))]
    first = text(chance, words)
    kind = chance.randrange(6)
    if kind == 0:
        return first, first
    if kind == 1:  # the same words with other marks, some missing
        parts = first.split(" ")
        chance.shuffle(parts)
        return first, chance.choice(MARKS).join(
            parts[:chance.randrange(len(parts) + 1)])
    if kind == 2:
        return first, text(chance, [word(chance) for _ in range(20)])
    return first, text(chance, words)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    try:
        found = version("rouge-score")
    except PackageNotFoundError:
        found = "missing"
    if found != WANTED:
        raise SystemExit(f"rouge-score is {found}, but this test needs {WANTED}"
                         ". Fix: scripts/install.sh --tests")
    # Not imported earlier: it may be missing.
    from nltk.stem.porter import PorterStemmer
    from rouge_score.rouge_scorer import RougeScorer
    chance = random.Random(2004)
    theirs = PorterStemmer()
    for _ in range(20 * count):
        one = word(chance).lower()
        if one.isascii() and one.isalnum() and stem(one) != theirs.stem(one):
            raise SystemExit(f"stem of {one!r}: {stem(one)!r}, theirs: "
                             f"{theirs.stem(one)!r}")
    scorers = [RougeScorer(NAMES, use_stemmer=stems) for stems in (False, True)]
    worst, positive = 0, 0
    for number in range(count):
        reference, answer = pair(chance)
        for stems, scorer in enumerate(scorers):
            ours = rouge(reference, answer, bool(stems))
            # The scorer refuses lone surrogates nowhere, so neither do we.
            scores = scorer.score(reference, answer)
            for name in NAMES:
                gap = abs(ours[name] - scores[name].fmeasure)
                worst = max(worst, gap)
                positive += 0 < ours[name] < 1
                if not gap <= LIMIT:
                    raise SystemExit(
                        f"pair {number}, stemmer {bool(stems)}, {name}: "
                        f"{ours[name]}, theirs: {scores[name].fmeasure}\n"
                        f"{reference!r}\n{answer!r}")
    if positive < count:
        raise SystemExit(f"only {positive} scores are between 0 and 1")
    print(f"{count} pairs, {positive} scores between 0 and 1, largest "
          f"difference {worst:.1e}")


if __name__ == "__main__":
    main()
