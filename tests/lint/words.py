#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""words.py REPOSITORY: what can be checked of plain words.

No comment opens with a bare preposition ("Of", "Those of", ...), whose subject a
reader would have to invent. No sentence of a page is longer than 35 words; no
line of a page is longer than 140 columns, except tables, code and links.
"""

import os
import re
import sys

from limits import sources

HEADLESS = re.compile(r"^\s*(//[/!]?<?|#|;) ?"
                      r"(Of|Those of|That of|The same of|And of|Nor|As for) ")
MAX_WORDS, MAX_COLUMNS = 35, 140


def pages(root):
    for path, folders, names in os.walk(root):
        folders[:] = [name for name in sorted(folders)
                      if not name.startswith(".")
                      and name not in ("build", "out", "Inputs")]
        for name in sorted(names):
            if name.endswith(".md"):
                yield os.path.relpath(os.path.join(path, name), root)


def check_comments(root, path, errors):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if found := HEADLESS.match(line):
                errors.append(f"{path}:{number}: the comment opens with "
                              f"'{found[2]}'; begin with its subject")


def is_prose(line):
    return not line.startswith(("|", "#", "    ", "- `", "<", "{"))


def paragraphs(text):
    """Each paragraph or item of a list, with the number of its first line."""
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
    """Code and the target of a link count as one word."""
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", sentence))
    return [word for word in plain.split() if re.search(r"\w", word)]


def check_page(root, path, errors):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    for number, paragraph in paragraphs(text):
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*\[(])", paragraph):
            count = len(words_of(sentence))
            if count > MAX_WORDS:
                errors.append(f"{path}:{number}: a sentence of {count} words, at "
                              f"most {MAX_WORDS}: {sentence[:60]}…")
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > MAX_COLUMNS and is_prose(line) and " " in line[100:]:
            errors.append(f"{path}:{number}: {len(line)} columns, at most "
                          f"{MAX_COLUMNS}")


def main():
    root, errors = sys.argv[1], []
    for path in sources(root):
        check_comments(root, path, errors)
    for path in pages(root):
        check_page(root, path, errors)
    print("\n".join(errors) or "words: fine")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
