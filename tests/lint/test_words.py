# SPDX-License-Identifier: MIT

"""Tests each rule of words.py on texts that break it and texts that do not."""

import unittest

import words


def rules(path, content):
    return [(line, rule)
            for line, rule, _ in sorted(words.check(path, content))]


class HeadlessTest(unittest.TestCase):
    def test_openings(self):
        self.assertEqual(rules("a.h", "int a; /// Of all ranks, the first.\n"),
                         [(1, "headless")])
        self.assertEqual(rules("a.py", "# One fact. Those of\n# others.\n"),
                         [(1, "headless")])
        self.assertEqual(rules("a.md", "A page.\n\n* Nor the others.\n"),
                         [(3, "headless")])

    def test_other_sentences(self):
        for path, content in (
                ("a.h", "/// Sum of all ranks.\n"), ("a.h", "/// Offset 1.\n"),
                ("a.mlir", "// CHECK: Of the file\n"),
                ("a.cpp", 'f("OFF of");\n')):
            self.assertEqual(rules(path, content), [], content)


class BannedTest(unittest.TestCase):
    def test_every_kind_of_text(self):
        for path, content, line in (
                ("a.cpp", "// one\n// memory of a\n// card\n", 3),
                ("a.cpp", 'f("no GPU "\n  "but "\n  "for one");\n', 2),
                ("a.cpp", 'f(R"(\nbeside others)");\n', 2),
                ("a.td", "let description = [{\n  begins anew\n}];\n", 2),
                ("a.js", "f('all ' +\n  'cards');\n", 2),
                ("a.py", '"""One.\n\nRead by nobody."""\n', 3),
                ("a.py", 'f(f"{card} is "\n  "dealt")\n', 2),
                ("a.sh", 'echo "goes on" # fine\n', 1),
                ("a.test", "# In the place of others.\n", 1),
                ("a.md", "Fine.\n\nWhat is\ntrained.\n", 3),
                ("a.html", "<p>\ncomputed again</p>\n", 2)):
            self.assertEqual(rules(path, content), [(line, "word")], content)

    def test_every_word(self):
        for sample in (
                "a card", "beside it", "but for one", "in the place of it",
                "anew", "nobody", "whoever", "be it a or b", "the same of it",
                "it deals rows", "is learned", "what is trained",
                "trained as a whole", "goes on", "computed again", "in pieces",
                "what rounding leaves", "lines of a batch",
                "words of the vocabulary", "by who", "likewise", "so many",
                "rooms"):
            self.assertEqual(rules("a.py", f"# It {sample} here.\n"),
                             [(1, "word")], sample)

    def test_other_words(self):
        for path, content in (
                ("a.md", "A model card, `card`, besides, dealing with it.\n"),
                ("a.md", "learned positions; it has learned; room for it.\n"),
                ("a.cpp", 'card["card"] = beside; // GPU\n'),
                ("a.py", 'card = f"{folder}/card.json"\n'),
                ("a.mlir", "// RUN: not %s | FileCheck --check-prefix=CARD\n"
                           "// CARD: error: beside\n"),
                ("tests/a.cpp", 'f(R"(beside)");\n')):
            self.assertEqual(rules(path, content), [], content)

    def test_reference_twice(self):
        self.assertEqual(rules("a.md", "It is that of one, of which two.\n"),
                         [(1, "reference")])
        self.assertEqual(rules("a.md", "Like that of one. Two of which?\n"),
                         [])


class LengthTest(unittest.TestCase):
    def test_sentences_of_pages(self):
        text = "One" + " a\n" * 34
        self.assertEqual(rules("a.md", f"{text}.\n"), [])
        self.assertEqual(rules("a.md", f"Fine.\n\n{text} `a b`.\n"),
                         [(3, "sentence")])
        self.assertEqual(rules("a.md", f"| {'a ' * 36}|\n"), [])

    def test_columns(self):
        wide = 40 * "ab"
        self.assertEqual(rules("a.cpp", f"{wide}\n{wide};\n"),
                         [(2, "columns")])
        for path, content in (
                ("a.cpp", f'f(R"(\n{wide};\n)");\n'), ("a.mlir", wide + ";"),
                ("a.py", f"# https://{wide}\n"), ("a.md", wide + "; fine")):
            self.assertEqual(rules(path, content), [], content)
        self.assertEqual(rules("a.md", 25 * "abcde " + "\n"), [(1, "columns")])
        self.assertEqual(rules("a.md", "|" + 25 * "abcde " + "|\n"), [])


if __name__ == "__main__":
    unittest.main()
