#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""words.py REPOSITORY: checks the rules for plain words that a program can
check.

* No sentence opens with a bare preposition ("Of", "Those of", ...), whose
  subject a reader would have to invent.
* No comment, page, message or help has a word of BANNED.
* No sentence of a page has more than 35 words.
* Sources have at most 80 columns, pages 140.
"""

import os
import re
import sys

from texts import files, texts

MAX_WORDS, MAX_COLUMNS, MAX_PAGE_COLUMNS = 35, 80, 140
HEADLESS = re.compile(r"(?:\A|\n[ \t]*(?:[-*] |\d+\. )?|[.!?:] +)"
                      r"(Of|Those\s+of|That\s+of|The\s+same\s+of|And\s+of|Nor"
                      r"|As\s+for)\s")
# Banned words (regular expressions), each with a replacement. A space matches
# any white space.
BANNED = {
    r"(?<!model\s)cards?": "GPU",
    r"beside": "with, alongside, compared with",
    r"but for": "except",
    r"in the place of": "instead of, in place of",
    r"anew": "again, from scratch",
    r"nobody|whoever": "say what is unused, or name who does it",
    r"be (?:they|it)(?= )": "whether",
    r"the same of": "name the thing again",
    r"deals?(?! with)|dealt(?! with)|dealing(?! with)": "assign, distribute",
    r"(?<!has\s)learned(?! positions)": "in the loss, labelled",
    r"what is trained": "trainable parameters",
    r"trained as a whole": "full fine-tuning",
    r"(?:go|goes|going) on": "resume, continue",
    r"computed again": "recomputed",
    r"in pieces": "sharded",
    r"what (?:rounding|quanti[sz]ation) leaves": "quantization error",
    r"lines? of (?:a|the) (?:micro-)?batch": "sequence",
    r"words? of the vocabulary": "token",
    r"(?:by|for|from|of|to) who": "name who or what does it",
    r"likewise": "also, or name it again",
    r"so many": "say how many",
    r"rooms": "modules, folders",
}
RULES = [(re.compile(rf"\b(?:{pattern})\b".replace(" ", r"\s+"), re.I), advice)
         for pattern, advice in BANNED.items()]
# One "those of" in a sentence is clear ("losses are those of a run"); two are
# confusing.
REFERENCE = r"\b(?:(?:that|those)\s+of|of\s+(?:which|whom|whose))\b"
TWICE = re.compile(rf"{REFERENCE}[^.!?;|]*?({REFERENCE})", re.I)
# (path, text that may break a rule, why)
EXCEPTIONS = (
    ("docs/glossary.md", r".", "explains the words"),
    ("tests/lint/", r".", "has the words"),
    ("examples/demo/make_demo.py", r".", "sentences of a data set"),
    ("tests/e2e/gemm_table.py", r"'cards'", "a key of the table's JSON"),
    ("tests/runtime/Device/GemmTableTest.cpp", r"'cards'", "the same key"),
)


def is_excepted(path, text):
    return any(path.startswith(start) and re.search(pattern, text)
               for start, pattern, _ in EXCEPTIONS)


def check_text(path, kind, first, text):
    """Yields (line, rule, text) for one comment, string or page."""
    def at(found, group=0):
        return first + text.count("\n", 0, found.start(group))

    # A quoted name may contain any word.
    text = re.sub(r"`[^`\s]*`|\"[^\"\s]*\"",
                  lambda name: "_" * len(name[0]), text)
    for found in HEADLESS.finditer(text):
        yield at(found, 1), "headless", f"'{found[1]}'; begin with the subject"
    for pattern, advice in RULES:
        for found in pattern.finditer(text):
            word = " ".join(found[0].split())
            yield at(found), "word", f"'{word}'; write: {advice}"
    for found in TWICE.finditer(text):
        yield at(found, 1), "reference", (
            f"'{' '.join(found[1].split())}' for the second time in a sentence")


def is_prose(line):
    return not line.startswith(("|", "#", "    ", "- `", "<", "{"))


def paragraphs(text):
    """Yields each paragraph and each item of a list, with the number of its
    first line."""
    held, first, is_code = [], 0, False
    for number, line in enumerate([*text.split("\n"), ""], 1):
        fence = line.startswith("```")
        begins = fence or re.match(r"(\* |- |\d+\. )", line)
        if held and (begins or not line.strip() or not is_prose(line)):
            yield first, " ".join(held)
            held = []
        is_code ^= fence
        if fence or is_code or not line.strip() or not is_prose(line):
            continue
        if not held:
            first = number
        held.append(line.strip())


def words_of(sentence):
    """Returns the words of a sentence; code and the target of a link count as
    one word."""
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence))
    return [word for word in plain.split() if re.search(r"\w", word)]


def check_sentences(text):
    for number, paragraph in paragraphs(text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[(])", paragraph):
            count = len(words_of(sentence))
            if count > MAX_WORDS:
                yield number, "sentence", (f"{count} words, at most "
                                           f"{MAX_WORDS}: {sentence[:60]}…")


def check_columns(path, content, raw):
    """Yields lines that are too long, except those that cannot be wrapped:
    tables and links of a page, URLs, raw strings."""
    is_page = path.endswith(".md")
    most = MAX_PAGE_COLUMNS if is_page else MAX_COLUMNS
    for number, line in enumerate(content.split("\n"), 1):
        if len(line) <= most or "://" in line or number in raw:
            continue
        if not is_page or is_prose(line) and " " in line[100:]:
            yield number, "columns", f"{len(line)}, at most {most}"


def check(path, content):
    """Yields (line, rule, text) for every violation in a file."""
    raw = set()
    for kind, first, text in texts(path, content):
        if kind == "raw":
            raw |= set(range(first, first + text.count("\n") + 1))
        # Skip raw strings of tests, because they are inputs of programs.
        if kind != "raw" or not path.startswith("tests/"):
            yield from check_text(path, kind, first, text)
    if path.endswith(".md"):
        yield from check_sentences(content)
    if not path.endswith((".html", ".mlir", ".test", ".yaml", ".toml")):
        yield from check_columns(path, content, raw)


def main():
    root, errors = sys.argv[1], []
    for path in files(root):
        with open(os.path.join(root, path), encoding="utf-8") as file:
            content = file.read()
        errors += [f"{path}:{line}: {rule}: {text}"
                   for line, rule, text in sorted(check(path, content))
                   if rule == "columns" or not is_excepted(path, text)]
    print("\n".join(errors) or "words: fine")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
