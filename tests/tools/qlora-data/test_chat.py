# SPDX-License-Identifier: MIT
"""`qlora-data chat` in a pipe."""

import json
import re
import unittest

from chats import PipeChatTest, chatml
from fixtures import adds, byte_level


class PipeTest(PipeChatTest):
    def test_each_line_is_a_message(self):
        self.answers("hello world<|im_end|>", "the</s>", "user<|im_end|>")
        self.assertEqual(self.chat("say", "", "hello", "é"),
                         "hello world\nthe\nuser\n")
        self.assertEqual(self.errors, "")
        self.assertEqual(self.prompts(), [
            chatml("say"), chatml("say", "hello world", "hello"),
            chatml("say", "hello world", "hello", "the", "é")])
        self.assertEqual([request["seed"] for request in self.asked()],
                         [0, 1, 2])

    def test_messages_of_several_lines(self):
        self.answers("the")
        self.chat('"""say', " hello ", 'world"""', "a\\", "b\\", "c", '"""',
                  "d", '"""', '"""/e"""', "//f")
        last = self.prompts()[-1]
        self.assertEqual(last, chatml(
            "say\n hello \nworld", "the", "a\nb\nc", "the", "d", "the", "/e",
            "the", "/f"))

    def test_system_messages(self):
        self.answers("the")
        self.chat("a", "/system say hello", "b", "/system", "c",
                  flags=["--system", "user"])
        self.assertEqual(self.prompts(), [
            chatml("a", system="user"),
            chatml("a", "the", "b", system="say hello"),
            chatml("a", "the", "b", "the", "c")])

    def test_undo_and_reset(self):
        self.answers("hello", "world", "the")
        self.chat("a", "b", "/undo", "c", "/reset", "d")
        self.assertEqual(self.prompts(), [
            chatml("a"), chatml("a", "hello", "b"), chatml("a", "hello", "c"),
            chatml("d")])

    def test_retry(self):
        self.answers("hello", "world", "the")
        self.assertEqual(self.chat("a", "/retry", "b"), "hello\nworld\nthe\n")
        self.assertEqual(self.prompts(), [
            chatml("a"), chatml("a"), chatml("a", "world", "b")])
        first, second, _ = self.asked()
        self.assertNotEqual(first["seed"], second["seed"])

    def test_sampling(self):
        self.answers("the")
        self.chat("/set temperature 0.5", "/set top-k 3", "/set seed 7",
                  "/set max_new_tokens 4", "/set stop wor", "a", "b",
                  "/set max_new_tokens auto", "/set ignore_eos true", "c",
                  flags=["--top-p=0.5"])
        first, second, third = self.asked()
        self.assertEqual(
            {name: first[name] for name in
             ("temperature", "top_k", "top_p", "seed", "max_new_tokens")},
            {"temperature": 0.5, "top_k": 3, "top_p": 0.5, "seed": 7,
             "max_new_tokens": 4})
        self.assertEqual(second["seed"], 8)
        self.assertEqual(third["eos_token_id"], [])
        self.assertNotIn("max_new_tokens", third)
        self.answers("hello world")
        self.assertEqual(self.chat("/set stop wor", "a", "/set stop none", "b"),
                         "hello \nhello world\n")
        self.chat("/set seed 7", "/set")
        shown = dict(line.split(maxsplit=1)
                     for line in self.errors.splitlines())
        self.assertEqual((shown["temperature"], shown["seed"], shown["stop"],
                          shown["ignore_eos"], shown["max_new_tokens"]),
                         ("0", "7", "none", "false", "auto"))

    def test_adapters(self):
        self.answers("the")
        self.script["adapters"] = ["short", "long"]
        self.chat("a", "/adapter long", "b", "/adapter none", "c", "/adapter")
        self.assertEqual([request.get("adapter", "")
                          for request in self.asked()], ["", "long", None])
        self.assertIn("adapter none; there are: short, long", self.errors)
        self.script.update(adapters=["dora"], has_base=False)
        self.chat("/adapter none", code=1)
        self.assertIn("the program applies the adapter 'dora' to all answers",
                      self.errors)

    def test_save(self):
        self.answers("hello world", "the")
        with open(self.path("saved.jsonl"), "w", encoding="utf-8") as file:
            file.write('{"text": "user"}')  # without a line break
        self.chat("/system user", "say é", "the", "/save "
                  + self.path("saved.jsonl"), "/undo", "/save "
                  + self.path("saved.jsonl"))
        messages = [{"role": "system", "content": "user"},
                    {"role": "user", "content": "say é"},
                    {"role": "assistant", "content": "hello world"},
                    {"role": "user", "content": "the"},
                    {"role": "assistant", "content": "the"}]
        self.assertEqual(self.saved()[1:], [{"messages": messages},
                                            {"messages": messages[:3]}])
        rows = self.convert(*[json.dumps(row) for row in self.saved()])
        self.assertEqual(self.learned(rows)[2], "hello world<|im_end|>")

    def test_without_a_chat_template(self):
        self.make_model(tokenizer=adds(byte_level(), "<s> $A </s>"))
        self.answers(" hello", "world")
        self.assertEqual(self.chat("say", "the", "/undo", "the", "/save "
                                   + self.path("saved.jsonl")),
                         " hello\nworld\nworld\n")
        self.assertIn("note: the tokenizer has no chat template", self.errors)
        self.assertEqual(self.prompts(), ["<s>say", "<s>the", "<s>the"])
        self.assertEqual(self.saved(), [
            {"prompt": "say", "completion": " hello"},
            {"prompt": "the", "completion": "world"}])
        self.convert(*self.saved())
        self.chat("/system hello", code=1)
        self.assertIn("/system needs a chat template", self.errors)
        self.chat(code=1, flags=["--system=hello"])
        self.assertIn("--system needs a chat template", self.errors)

    def test_mistakes(self):
        self.answers("hello")
        for line, error in (
                ("/sett seed 1", "'/sett' is not a command; did you mean '/"),
                ("/etc/passwd?", "'/etc/passwd?' is not a command; see /help; "
                 "a message that begins with / is written with two"),
                ("/set temp 1", "'temp' is not an option of sampling; did you "
                                "mean 'temperature'?"),
                ("/set zzz 1", "'zzz' is not an option of sampling; /set "),
                ("/set temperature -1", "temperature expects a number of at "
                                        "least 0, but got '-1'"),
                ("/set temperature inf", "temperature expects a number"),
                ("/set temperature", "temperature expects a number"),
                ("/set top_p 0", "top_p expects a number above 0 and at most"),
                ("/set top_k 1.5", "top_k expects a whole number of at least"),
                ("/set ignore_eos 1", "ignore_eos expects true or false"),
                ("/set stop", "stop expects a text, or none"),
                ("/adapter x", "no adapter is called 'x'; there is none; start "
                               "with --adapter NAME=DIR"),
                ("/retry", "there is no message to answer again"),
                ("/undo", "there is no message to remove"),
                ("/save", "/save names no file"),
                ("/save x", "there is no answer to save"),
                ("\udce9", "not UTF-8; write the message in UTF-8")):
            with self.subTest(line):
                self.assertEqual(self.chat(line, code=1), "")
                first, last = self.errors.splitlines()
                self.assertRegex(first, "qlora-data: error: standard input:1: "
                                 + re.escape(error))
                self.assertEqual(last, "qlora-data: error: 1 of 1 lines "
                                       "failed; see the errors above")

    def test_quotes_that_do_not_end(self):
        self.chat('"""a', code=1)
        self.assertIn('standard input:2: the message has no """ at its end',
                      self.errors)

    def test_the_other_messages_are_answered(self):
        self.answers("hello")
        self.assertEqual(self.chat("a", "/undoo", "/save /none/x", "b", code=1),
                         "hello\nhello\n")
        self.assertIn("error: /none/x: cannot be written", self.errors)
        self.assertIn("2 of 4 lines failed", self.errors)

    def test_a_full_cache(self):
        self.answers("hello world " * 30)
        prompt = len(self.tokens(chatml("say")))
        self.script["capacity"] = prompt + 5
        shown = self.chat("say", "the", "/reset", "say", code=1)
        first, second = shown.splitlines()
        self.assertEqual(first, second)
        self.assertEqual(len(self.tokens(first)), 5)
        notes = self.errors.splitlines()
        self.assertRegex(notes[0], "note: the answer ends here, because the "
                         f"conversation fills the {prompt + 5} tokens of "
                         "--generation-length. Fix: /reset")
        self.assertRegex(notes[1], "input:2: the conversation has .* tokens, "
                         f"but --generation-length allows {prompt + 5}.*; "
                         "/reset, or start with a larger --generation-length")
        self.assertEqual(self.prompts(), [chatml("say")] * 2)

    def test_a_refused_row(self):
        self.answers("hello")
        self.script["refuses"] = 1
        self.assertEqual(self.chat("a", "b", "c", code=1), "hello\nhello\n")
        self.assertIn("error: standard input:2: refused\n", self.errors)
        self.assertEqual(self.prompts()[-1], chatml("a", "hello", "c"))

    def test_an_engine_that_dies(self):
        self.answers("hello world the user")
        self.script["tokens"] = 3
        self.chat("say", "the", code=1)
        first, second = self.errors.splitlines()
        self.assertEqual(first, "qlora-run: error: the fake engine dies")
        self.assertIn("ended with code 3 before the last answer", second)

    def test_exit(self):
        self.answers("hello")
        for word in ("/exit", "/bye"):
            self.assertEqual(self.chat("a", word, "b"), "hello\n")


if __name__ == "__main__":
    unittest.main()
