# SPDX-License-Identifier: MIT

"""Finds the texts of a repository's files: comments, strings, pages.

texts(path, content) yields (kind, line, text). Kinds are "comment", "string"
(with a space in it), "raw" (raw strings, descriptions of .td files) and "page".
A text has the line ends of its file, but no comment markers and quotes.
"""

import os
import re

SLASHES = r"(?<!\S)//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/"
HASHES = r"(?<!\S)#[^\n]*(?:\n[ \t]*#[^\n]*)*"
RAW = r'R"(?P<end>\w*)\(.*?\)(?P=end)"|[rfb]*""".*?"""|`[^`]*`'
CHARACTER, QUOTED = r"'(?:[^'\\\n]|\\[^'\n]+)'", r"'(?:\\.|[^'\\\n])*'"


def language(comment, quoted, raw=RAW):
    string = rf'[rfbRFB]*(?:"(?:\\.|[^"\\\n])*"|{quoted})'
    return re.compile(rf"(?P<comment>{comment})|(?P<raw>{raw})|"
                      rf"(?P<string>{string}(?:[\s+]*{string})*)", re.S)


C, HASH = language(SLASHES, CHARACTER), language(HASHES, QUOTED)
LANGUAGES = {
    **dict.fromkeys((".h", ".cpp", ".c", ".cu", ".cuh", ".def", ".inc",
                     ".mlir"), C),
    **dict.fromkeys((".py", ".sh", ".cmake", "CMakeLists.txt", ".yaml",
                     ".toml", ".test", "host-nvcc", "qlora-data"), HASH),
    ".js": language(SLASHES, QUOTED),
    ".td": language(SLASHES, CHARACTER, r"\[\{.*?\}\]"),
}
MARKER = re.compile(r"^[ \t]*(?://[/!]?<?|#+!?|/\*+|\*(?![*\w]))[ \t]*", re.M)
# Matches directives of lit and FileCheck. They are not checked, because they
# quote messages that are checked in the sources.
DIRECTIVE = re.compile(r"^[ \t]*(?://|#) *(?:[A-Z0-9_-]+(?:\{[^}]*\})?:"
                       r"|expected-).*$", re.M)


def files(root):
    """Yields the files to check. Skips folders with golden cases, tokenizers
    and models of other programs."""
    for path, folders, names in os.walk(root):
        folders[:] = [] if os.path.basename(path) == "Inputs" else [
            name for name in sorted(folders) if name != "out"
            and not name.startswith((".", "build", "__"))]
        for name in sorted(names):
            path_of = os.path.relpath(os.path.join(path, name), root)
            if name.endswith((".md", ".html")) or language_of(path_of):
                yield path_of


def language_of(path):
    name = os.path.basename(path)
    return LANGUAGES.get(name) or LANGUAGES.get(os.path.splitext(name)[1])


def texts(path, content):
    if path.endswith((".md", ".html")):
        if path.endswith(".html"):
            content = re.sub(r"<style>.*?</style>|<[^>]*>", lambda tag: "\n" *
                             tag[0].count("\n"), content, flags=re.S)
        yield "page", 1, content
        return
    if path.endswith((".mlir", ".test")):
        content = DIRECTIVE.sub("", content)
    for found in language_of(path).finditer(content):
        kind, text = found.lastgroup, found[0]
        kind = "raw" if kind == "end" else kind
        before = content[content.rfind("\n", 0, found.start()) + 1:
                         found.start()]
        if kind == "comment":
            text = MARKER.sub("", text)
        elif kind == "raw" and '"""' in text and not before.strip():
            kind, text = "comment", text.strip('"')  # a docstring
        elif kind == "string":
            # Join adjacent string literals to one text. Drop escapes and
            # placeholders, which are not words.
            text = re.sub(r"(?<!\\)[\"']([\s+]*)[rfbRFB]*[\"']",
                          lambda gap: "\n" * gap[1].count("\n"), text)
            if " " not in text:
                continue
            text = re.sub(r"\\[nt]|\{[^{}\n]*\}", " . ", text)
            text = text.lstrip("rfbRFB").strip("\"'")
        yield kind, content.count("\n", 0, found.start()) + 1, text
