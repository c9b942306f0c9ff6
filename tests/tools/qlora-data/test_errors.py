# SPDX-License-Identifier: MIT
"""Tests bad input, bad models, hostile templates and the token file."""

import os
import resource
import unittest

from fixtures import CHATML, TOOL, ToolTest, chat

TALK = {"messages": chat(("user", "a"), ("assistant", "b"))}


class BadDataTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)

    def write_bytes(self, raw):
        with open(self.data, "wb") as file:
            file.write(raw)

    def test_malformed_lines(self):
        for line, message in (
                ('{"text": "a" "b"}', "malformed JSON: Expecting ',' "
                 "delimiter at column 14"),
                ("[1]", "expects a JSON object, but got a list"),
                ("[" * 100000, "nested too deeply"),
                ('{"text": ' + "1" * 5000 + "}", "malformed JSON: Exceeds")):
            with self.subTest(line=line[:20]):
                error = self.refusal({"text": "a b"}, "", line)
                self.assertIn(f"{self.data}:3: ", error)
                self.assertIn(message, error)

    def test_not_utf8(self):
        self.write_bytes(b'{"text": "a b"}\n{"text": "\xe9"}\n')
        error = self.refusal()
        self.assertIn(f"{self.data}:2: not UTF-8 (byte 0xe9 at byte 11",
                      error)

    def test_line_ends_and_byte_order_mark(self):
        self.write_bytes(b'\xef\xbb\xbf{"text": "a b"}\r\n  \r\n'
                         + '{"text": "a\u2028b"}'.encode())
        self.assertEqual(self.run_tool().returncode, 0)

    def test_empty_and_missing_files(self):
        for raw in (b"", b"\n \n"):
            self.write_bytes(raw)
            self.assertIn(f"{self.data}: the data has no rows",
                          self.refusal())
        os.unlink(self.data)
        self.assertIn("No such file", self.refusal())

    def test_dropped_rows_are_counted(self):
        masked = {"messages": chat(("user", "a"))}
        rows = self.convert(TALK, masked, {"text": ""}, TALK)
        self.assertEqual(len(rows.ids), 2)
        self.assertEqual(self.summary["dropped_rows"], 2)
        self.assertIn(f"warning: {self.data}:2: ", self.warnings)
        error = self.refusal(masked, masked)
        self.assertIn(f"{self.data}:1: no row has a token in the loss", error)

    def test_truncation_is_counted(self):
        row = {"text": "hello world " * 9}
        whole = self.convert(row).ids[0]
        rows = self.convert(TALK, row, row, flags=["--max-length", "7"])
        self.assertEqual(rows.ids, [whole[:7], whole[:7]])
        # The conversation is dropped: its answer comes after the first seven
        # tokens.
        self.assertEqual(self.summary["dropped_rows"], 1)
        self.assertEqual(self.summary["truncated_rows"], 2)
        self.assertEqual(self.summary["truncated_tokens"],
                         2 * (len(whole) - 7))
        self.assertEqual(self.summary["longest"], 7)
        self.assertIn(f"warning: {self.data}:2: ", self.warnings)

    def test_answers_that_are_cut_off(self):
        length = len(self.convert(TALK).ids[0])
        longer = {"messages": chat(("user", "a a a a"), ("assistant", "b"))}
        error = self.refusal(longer, TALK, TALK, flags=["--max-length", "4"])
        self.assertIn(f"{self.data}: all 3 rows lost their answer to "
                      f"--max-length 4; the shortest needs {length} tokens; "
                      "raise --max-length", error)
        masked = {"messages": chat(("user", "a"))}
        error = self.refusal(masked, longer, TALK, flags=["--max-length", "4"])
        self.assertIn("the 2 rows lost their answer to --max-length 4, and "
                      "the 1 others have none", error)
        self.convert(masked, TALK, longer, {"text": "a b"},
                     flags=["--max-length", "4"])
        self.assertEqual(self.summary["cut_off_rows"], 2)
        self.assertEqual(self.summary["dropped_rows"], 3)
        self.assertIn(f"{self.data}:2: 2 rows left out because --max-length "
                      "4 cuts off their answer; ", self.warnings)
        self.assertIn(f"{self.data}:1: 1 rows left out because none of their "
                      "tokens is in the loss; ", self.warnings)

    def test_token_beyond_the_vocabulary(self):
        error = self.refusal({"text": "a b"}, flags=["--vocab-size", "4"])
        self.assertIn(f"{self.data}:1: token id ", error)
        self.assertIn("exceeds the model's vocabulary of 4, but "
                      f"{self.model}/tokenizer.json has "
                      f"{self.tokenizer.get_vocab_size()} tokens; ", error)

    def test_bad_flags(self):
        self.write_data(TALK)
        for flags, message in ((["--max-length", "0"], "--max-length"),
                               (["--assistant-only-loss", "yes"], "'yes'"),
                               (["--shuffle"], "--shuffle"),
                               (["--chat-template", "no/such"], "no/such")):
            with self.subTest(flags=flags):
                self.assertIn(message, self.refusal(flags=flags))


class BadModelTest(ToolTest):
    def test_no_template(self):
        self.make_model()
        error = self.refusal({"text": "a b"}, TALK)
        self.assertIn(f"{self.data}:2: ", error)
        self.assertIn("needs a chat template", error)
        self.assertIn("add --chat-template with a Jinja file or one of "
                      "alpaca, ", error)

    def test_tokenizer_files(self):
        self.write_data(TALK)
        self.assertIn("has no tokenizer.json", self.refusal())
        self.write_model("tokenizer.model", "")
        self.assertIn("tokenizer.model: not a SentencePiece model: no pieces",
                      self.refusal())
        self.write_model("tokenizer.json", "{}")
        self.assertIn("tokenizer.json: not a readable tokenizer",
                      self.refusal())
        self.write_model("tokenizer_config.json", '{\n"a": }')
        self.assertIn("tokenizer_config.json:2: malformed JSON",
                      self.refusal())

    def test_no_eos(self):
        self.make_model(eos_token=None)
        self.assertIn("no end-of-sequence token", self.refusal({"text": "a"}))

    def test_tokens_declared_outside_tokenizer_json(self):
        self.make_model(CHATML)
        next_id = self.tokenizer.get_vocab_size()
        declared = {str(next_id): {"content": "<new>", "special": True}}
        self.make_model(CHATML, added_tokens_decoder=declared)
        rows = self.convert({"text": "a <new> b"})
        self.assertIn(next_id, rows.ids[0])
        declared = {"9999": {"content": "<new>", "special": True}}
        self.make_model(CHATML, added_tokens_decoder=declared)
        self.assertIn(f"the id 9999, but in tokenizer.json it would be "
                      f"{next_id}", self.refusal({"text": "a b"}))


class HostileTemplateTest(ToolTest):
    def test_one_clear_error_each(self):
        cases = [
            ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
             "infinite recursion"),
            ("{{ ''.__class__.__mro__ }}", "not allowed"),
            ("{{ messages.append(1) }}", "not allowed"),
            ("{{ namespace(__class__=1) }}", "not allowed"),
            ("{{ 'a' * 100000000000000 }}", "out of memory"),
            ("{{ messages[0]['content'] + 1 }}", "TypeError"),
            ("{{ raise_exception('no\nsystem') }}", "no system"),
            ("{% for %}", "not valid Jinja"),
            ("{% generation %}", "not valid Jinja"),
            ("{% include 'x' %}", "rejects the conversation"),
        ]
        for template, message in cases:
            with self.subTest(template=template):
                self.make_model(template)
                error = self.refusal(TALK)
                self.assertIn(message, error)
                self.assertNotIn("Traceback", error)


class TokenFileTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)

    def test_layout(self):
        rows = self.convert({"text": "hello"}, TALK)
        total = sum(map(len, rows.ids))
        self.assertEqual(list(rows.header),
                         ["row_offsets", "input_ids", "labels"])
        self.assertEqual(
            [(entry["dtype"], entry["shape"], entry["data_offsets"])
             for entry in rows.header.values()],
            [("I64", [3], [0, 24]),
             ("I32", [total], [24, 24 + 4 * total]),
             ("I32", [total], [24 + 4 * total, 24 + 8 * total])])
        self.assertEqual(len(rows.data), 24 + 8 * total)
        self.assertEqual((len(rows.raw) - len(rows.data)) % 8, 0)
        self.assertEqual(rows.metadata, {
            "format": "qlora-rows", "version": "1", "source": "data.jsonl",
            **{key: str(value) for key, value in self.summary.items()}})

    def test_same_input_same_bytes(self):
        data = [{"text": f"hello {i}"} for i in range(600)]
        first, second = self.convert(*data), self.convert(*data)
        self.assertEqual(first.raw, second.raw)
        self.assertEqual(self.decode(first.ids[599]), "hello 599</s>")

    def test_full_disk_leaves_nothing(self):
        def small_files_only():
            resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))

        with open(self.output, "wb") as file:
            file.write(b"old")
        self.write_data({"text": "hello world " * 500})
        before = set(os.listdir(self.folder))
        done = self.run_tool(preexec_fn=small_files_only)
        self.assertEqual(done.returncode, 1)
        self.assertIn(f"error: {self.output}: cannot be written", done.stderr)
        self.assertEqual(set(os.listdir(self.folder)), before)
        with open(self.output, "rb") as file:
            self.assertEqual(file.read(), b"old")

    def test_output_in_no_folder(self):
        self.output = self.path("none", "rows")
        self.assertIn("cannot be written", self.refusal(TALK))

    def test_is_executable(self):
        self.assertTrue(os.access(TOOL, os.X_OK))


if __name__ == "__main__":
    unittest.main()
