# SPDX-License-Identifier: MIT
"""`qlora-data generate` with an engine that gives prepared tokens."""

import json
import os
import signal
import subprocess
import sys
import unittest

from fixtures import CHATML, LLAMA3, TOOL, ToolTest, adds, byte_level, chat

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "../../../tools/qlora-data"))
from qlora_data import results  # noqa: E402
from qlora_data.errors import DataError  # noqa: E402

ENGINE = [sys.executable, os.path.join(HERE, "fake_engine.py")]


class GenerateTest(ToolTest):
    """`self.script` is the fake engine's."""

    def setUp(self):
        super().setUp()
        self.script = {"answers": [[1]], "log": self.path("requests")}
        self.data = self.path("rows.jsonl")
        self.output = self.path("answers.jsonl")

    def tokens(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def answers(self, *texts):
        """Lets the engine answer with the tokens of these texts."""
        self.script["answers"] = [self.tokens(text) for text in texts]

    def command(self, *flags):
        with open(self.path("script.json"), "w", encoding="utf-8") as file:
            json.dump(self.script, file)
        return [sys.executable, TOOL, "generate", "--model", self.model,
                *flags, "--", *ENGINE, self.path("script.json")]

    def generate(self, *flags, code=0, **options):
        done = subprocess.run(self.command(*flags), capture_output=True,
                              check=False, **options)
        self.errors = done.stderr.decode()
        self.assertEqual(done.returncode, code, self.errors)
        return done.stdout.decode()

    def refused(self, *flags, **options):
        """Returns the only line of a failing command's errors."""
        self.generate(*flags, code=1, **options)
        self.assertEqual(self.errors.count("\n"), 1, self.errors)
        self.assertTrue(self.errors.startswith("qlora-data: error: "))
        return self.errors

    def requests(self):
        with open(self.script["log"], encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def prompt(self):
        """Returns the text of the first request's tokens."""
        return self.decode(self.requests()[0]["input_ids"])

    def rows(self, *rows, flags=(), code=0):
        """Answers the rows. Returns the results."""
        self.write_data(*rows)
        self.generate("--input", self.data, "--output", self.output, *flags,
                      code=code)
        return self.results()

    def results(self):
        with open(self.output, encoding="utf-8") as file:
            return [json.loads(line) for line in file]


class PromptTest(GenerateTest):
    def test_a_users_message(self):
        self.make_model(CHATML)
        self.answers("hello world")
        self.assertEqual(self.generate("--prompt", "say hello"),
                         "hello world\n")
        self.assertEqual(self.prompt(), "<|im_start|>user\nsay hello<|im_end|>"
                                        "\n<|im_start|>assistant\n")

    def test_a_system_message(self):
        self.make_model(CHATML)
        self.answers("hello")
        self.generate("--prompt", "say", "--system", "the user")
        self.assertTrue(self.prompt().startswith(
            "<|im_start|>system\nthe user<|im_end|>\n<|im_start|>user\nsay"))
        self.make_model()
        self.assertIn("--system needs a chat template, but the tokenizer in",
                      self.refused("--prompt", "say", "--system", "user"))

    def test_one_bos(self):
        # The template writes BOS, and the post-processor adds it to texts.
        self.make_model(LLAMA3, adds(byte_level(), "<s> $A </s>"))
        self.answers("hello")
        self.generate("--prompt", "say")
        self.assertEqual(self.prompt().count("<s>"), 1)
        self.make_model(tokenizer=adds(byte_level(), "<s> $A </s>"))
        for prompt in ("say", "<s>say"):
            os.remove(self.script["log"])
            self.generate("--prompt", prompt)
            self.assertEqual(self.prompt(), "<s>say")

    def test_a_named_template(self):
        self.make_model()
        self.answers("hello")
        self.generate("--prompt", "say", "--chat-template", "chatml")
        self.assertIn("<|im_start|>user\nsay<|im_end|>", self.prompt())

    def test_standard_input(self):
        self.make_model()
        self.answers("hello")
        self.generate(input="say é\n\n".encode())
        self.assertEqual(self.prompt(), "say é\n")
        self.assertIn("standard input: not UTF-8",
                      self.refused(input=b"\xe9"))

    def test_characters_of_several_tokens(self):
        self.make_model()
        self.answers("é日本 x日")
        self.script["delay"] = 0.02
        run = subprocess.Popen(self.command("--prompt", "say"),
                               stdout=subprocess.PIPE)
        self.addCleanup(run.stdout.close)
        seen = []
        while part := os.read(run.stdout.fileno(), 100):
            seen.append(part.decode())
        self.assertEqual(run.wait(), 0)
        self.assertEqual("".join(seen), "é日本 x日\n")
        self.assertGreater(len(seen), 3)  # not all at the end

    def test_an_end_token_is_not_printed(self):
        self.make_model(CHATML)
        for end in ("</s>", "<|im_end|>"):
            self.answers("hello" + end + "world")
            self.assertEqual(self.generate("--prompt", "say"), "hello\n")
            self.assertEqual(self.generate("--prompt", "say", "--ignore-eos"),
                             "helloworld\n")

    def test_stop_strings(self):
        self.make_model()
        self.answers("hello world the user")
        for stops, text in ((["o w"], "hell"), (["user", "wor"], "hello "),
                            (["hello x", "d"], "hello worl"), (["x"],
                            "hello world the user"), (["user!"],
                            "hello world the user")):
            flags = [f"--stop={stop}" for stop in stops]
            self.assertEqual(self.generate("--prompt", "say", *flags),
                             text + "\n")
        self.answers("hello<|eot_id|>world")
        self.assertEqual(self.generate("--prompt=say", "--stop=<|eot_id|>"),
                         "hello\n")

    def test_a_stop_string_cancels(self):
        self.make_model()
        self.answers("hello world" + " the user" * 20)
        self.script["delay"] = 0.02
        self.generate("--prompt", "say", "--stop", "world")
        self.assertEqual(self.requests()[-1], {"cancel": 0})

    def test_ctrl_c_keeps_the_partial_answer(self):
        self.make_model()
        self.answers("hello world the user" * 9)
        self.script["delay"] = 0.3
        run = subprocess.Popen(self.command("--prompt", "say"),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = os.read(run.stdout.fileno(), 100)
        run.send_signal(signal.SIGINT)
        rest, errors = run.communicate(timeout=20)
        self.assertEqual((run.returncode, errors), (130, b""))
        self.assertTrue("hello world the user".startswith(
            (first + rest).decode().rstrip("\n")))
        self.assertTrue(rest.endswith(b"\n"))

    def test_no_space_for_the_rest(self):
        self.make_model()
        self.answers("hello world the user" * 9)
        self.script["capacity"] = 8
        done = subprocess.run(self.command("--prompt", "say"), text=True,
                              capture_output=True)
        self.assertEqual(done.returncode, 0)
        self.assertIn("note: the answer ends here, because a row has at most 8 "
                      "tokens", done.stderr)
        done = subprocess.run(
            self.command("--prompt", "say", "--max-new-tokens", "2"),
            capture_output=True)
        self.assertEqual(done.stderr, b"")

    def test_errors(self):
        self.make_model(CHATML)
        self.assertIn("the prompt is empty", self.refused("--prompt="))
        self.assertIn("the prompt is empty", self.refused(input=b"\n"))
        self.assertFalse(os.path.exists(self.script["log"]))
        self.assertIn("the prompt has ", self.refused("--prompt", "say " * 99))
        self.make_model()
        self.assertIn("the prompt is empty", self.refused("--prompt="))
        self.assertIn("expects the command of an engine", self.refused_words())
        self.assertIn("cannot start '/none': No such file",
                      self.refused_words("--", "/none"))

    def refused_words(self, *words):
        done = subprocess.run(
            [sys.executable, TOOL, "generate", "--model", self.model,
             "--prompt=a", *words], capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        return done.stderr

    def test_an_engine_that_dies(self):
        self.make_model()
        self.answers("hello world the user")
        for count in (0, 3):
            self.script["tokens"] = count
            self.generate("--prompt", "say", code=1)
            first, second = self.errors.splitlines()
            self.assertEqual(first, "qlora-run: error: the fake engine dies")
            self.assertIn("ended with code 3 before the last answer", second)


class RowsTest(GenerateTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)

    def test_order_and_fields(self):
        self.answers("hello world the user say", "the", "hello</s>", "world")
        rows = [{"prompt": "a", "name": 7, "error": 1},
                {"messages": chat(("user", "b"))},
                {"prompt": chat(("system", "c"), ("user", "d"))},
                {"prompt": "e"}]
        results = self.rows(*rows, flags=["--max-new-tokens=3"])
        self.assertEqual(results, [
            {**row, "index": index, "output": output, "finish_reason": finish}
            for index, (row, output, finish) in enumerate(zip(
                [{"prompt": "a", "name": 7}, *rows[1:]],
                ("hello world the", "the", "hello", "world"),
                ("length", "length", "stop", "length")))])
        prompts = {request["id"]: self.decode(request["input_ids"])
                   for request in self.requests()}
        self.assertEqual(prompts[0], "a")
        self.assertIn("<|im_start|>system\nc<|im_end|>", prompts[2])
        self.assertTrue(prompts[1].endswith("<|im_start|>assistant\n"))

    def test_rows_have_different_seeds(self):
        self.rows(*[{"prompt": "a"}] * 3, flags=["--seed=5"])
        self.assertEqual(sorted((request["id"], request["seed"])
                                for request in self.requests()),
                         [(0, 5), (1, 6), (2, 7)])

    def test_ids_need_no_tokenizer(self):
        for name in os.listdir(self.model):
            os.remove(os.path.join(self.model, name))
        self.write_model("config.json", '{"eos_token_id": [7, 8]}')
        self.script["answers"] = [[5, 8, 6], [5, 6]]
        results = self.rows({"input_ids": [3, 4]}, {"input_ids": [3]},
                            flags=["--logprobs=2"])
        self.assertEqual([(row["output_ids"], row["finish_reason"])
                          for row in results],
                         [([5, 8], "stop"), ([5, 6], "length")])
        self.assertEqual(results[0]["logprobs"], [
            {"token": token, "logprob": -0.5,
             "top_logprobs": [[0, -1.0], [1, -2.0]]} for token in (5, 8)])
        self.assertIn("has no tokenizer.json", self.refused("--prompt=a"))

    def test_ids_need_no_packages(self):
        bare = ["/usr/bin/env", "-i", "QLORA_PYTHON=" + self.path("python")]
        with open(self.path("python"), "w", encoding="utf-8") as file:
            file.write(f"#!/bin/sh\nexec {sys.executable} -I -S \"$@\"\n")
        os.chmod(self.path("python"), 0o755)
        for row, code, message in (
                ({"input_ids": [3]}, 0, ""), ({"prompt": "a"}, 1, "the Python "
                "packages tokenizers and jinja2 are missing")):
            self.write_data(row)
            done = subprocess.run(
                [*bare, *self.command("--input", self.data)],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            self.assertIn(message, done.stderr)

    def test_broken_rows(self):
        self.answers("hello")
        rows = ["{", {"prompt": "a"}, {"prompt": ""}, {"text": "a"},
                {"messages": chat(("user", "a"), ("assistant", "b"))},
                {"input_ids": [1, -1]}, {"input_ids": []}, {"prompt": 7},
                {"prompt": "a" * 99}, '{"prompt": "\\ud800"}', {"prompt": "b"}]
        results = self.rows(*rows, code=1)
        self.assertIn("9 of 11 rows have no answer; see their 'error'",
                      self.errors)
        self.assertEqual(self.errors.count("\n"), 1)
        self.assertEqual([row["index"] for row in results], list(range(11)))
        for row, message in zip(results, (
                "malformed JSON", "", "the prompt is empty", "a row without a "
                "prompt (it has 'text')", "the last message is the assistant's",
                "expects a list of token ids", "the prompt is empty",
                "'prompt' expects a string or a list of messages, but got a "
                "number", "the prompt has 99 tokens",
                "half of a surrogate pair", "")):
            self.assertIn(message, row.get("error", ""))
            self.assertEqual("error" in row, bool(message))
            self.assertEqual(row.get("output"), None if message else "hello")
        self.assertTrue(results[0]["error"].startswith(f"{self.data}:1: "))
        self.assertEqual(results[9]["prompt"], "\ud800")

    def test_resuming(self):
        self.answers("hello", "world", "the", "user")
        rows = [{"prompt": letter} for letter in "abcd"]
        whole = self.rows(*rows)
        with open(self.output, "rb") as file:
            lines = file.read().splitlines(keepends=True)
        for kept in (b"", lines[0], lines[0] + lines[1][:-1], b"".join(lines)):
            os.remove(self.script["log"])
            with open(self.output, "wb") as file:
                file.write(kept)
            self.assertEqual(self.rows(*rows), whole)
            with open(self.output, "rb") as file:
                self.assertEqual(file.read(), b"".join(lines))
            if b"".join(lines) != kept:
                self.assertEqual(len(self.requests()),
                                 4 - kept.count(b"\n"))

    def test_errors_of_an_earlier_run_count(self):
        self.rows("{", {"prompt": "a"}, code=1)
        self.rows("{", {"prompt": "a"}, code=1)
        self.assertIn("1 of 2 rows have no answer", self.errors)

    def test_an_output_of_something_else(self):
        self.write_data({"prompt": "a"})
        flags = ["--input", self.data, "--output", self.output]
        for text in ('{"a": 1}\n', "text\n", "text", '{"index": 1, "a": 1}\n',
                     '{"index": 0, x}\n'):
            with open(self.output, "w", encoding="utf-8") as file:
                file.write(text)
            self.assertIn(f"{self.output}:1: is not the result of row 0",
                          self.refused(*flags))
            with open(self.output, encoding="utf-8") as file:
                self.assertEqual(file.read(), text)
        with open(self.output, "w", encoding="utf-8") as file:
            file.write('{"index": 0, "a": 1}\n{"index": 1, "a": 2}\n')
        self.assertIn("has 1 rows, but the output has 2 already",
                      self.refused(*flags))

    def test_many_rows(self):
        self.script["slots"] = 3
        self.answers("hello " * 9, *["the"] * 500)
        results = self.rows(*({"prompt": "a"} for _ in range(1500)))
        self.assertEqual([row["index"] for row in results], list(range(1500)))

    def test_standard_output_and_its_reader(self):
        self.write_data(*[{"prompt": "é"}] * 3)
        self.answers("日")
        shown = self.generate("--input", self.data).splitlines()
        self.assertEqual([json.loads(line)["output"] for line in shown],
                         ["日"] * 3)
        self.assertIn('"é"', shown[0])
        done = subprocess.run(["bash", "-c", '"$@" | head -1', "bash",
                               *self.command("--input", self.data)],
                              capture_output=True, text=True, check=True)
        self.assertEqual((done.stdout.count("\n"), done.stderr), (1, ""))

    def test_files(self):
        self.assertIn("No such file", self.refused("--input", self.data))
        self.write_data("")
        self.assertIn(f"{self.data}: the data has no rows",
                      self.refused("--input", self.data))
        self.write_data({"prompt": "a"})
        self.assertIn("cannot be written", self.refused(
            "--input", self.data, "--output", self.path("none", "file")))

    def test_a_full_disk(self):
        with self.assertRaises(DataError) as caught:
            with results.opened("/dev/full", 0) as file:
                results.write_result(file, "/dev/full", {"index": 0})
        self.assertIn("No space left", str(caught.exception))

    def test_system_messages(self):
        self.rows({"messages": chat(("user", "a"))},
                  {"messages": chat(("system", "c"), ("user", "a"))},
                  {"prompt": "a"}, flags=["--system", "b"], code=1)
        prompts = [self.decode(request["input_ids"])
                   for request in self.requests()]
        for prompt, system in zip(prompts, "bc"):
            self.assertTrue(prompt.startswith(
                f"<|im_start|>system\n{system}<|im_end|>"))
        self.assertIn("has no place for --system", self.results()[2]["error"])

    def test_an_engine_that_dies_keeps_finished_rows(self):
        self.script.update(slots=1, tokens=2)
        self.answers("hello")
        self.rows(*[{"prompt": "a"}] * 3, code=1)
        self.assertEqual(len(self.results()), 2)
        del self.script["tokens"]
        self.assertEqual(len(self.rows(*[{"prompt": "a"}] * 3)), 3)


class DefaultsTest(GenerateTest):
    def request(self, config, *flags):
        self.write_model("generation_config.json", json.dumps(config))
        if os.path.exists(self.script["log"]):
            os.remove(self.script["log"])
        self.generate("--prompt", "say", *flags)
        return self.requests()[0]

    def test_numbers(self):
        self.make_model()
        sampled = {"do_sample": True, "temperature": 0.6, "top_k": 20,
                   "top_p": 0.95, "repetition_penalty": 1.1, "min_p": None}
        for config, flags, wanted in (
                ({}, [], {"temperature": 0}),
                ({"do_sample": False, "temperature": 0.6, "top_k": 20}, [],
                 {"temperature": 0, "top_k": 20}),
                ({"do_sample": True}, [], {"temperature": 1}),
                (sampled, [], {"temperature": 0.6, "top_k": 20, "top_p": 0.95,
                               "repetition_penalty": 1.1}),
                (sampled, ["--temperature=0", "--top-k=3", "--top-p=0.5",
                           "--min-p=0.1", "--repetition-penalty=1",
                           "--presence-penalty=2", "--max-new-tokens=4"],
                 {"temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1,
                  "repetition_penalty": 1, "presence_penalty": 2,
                  "max_new_tokens": 4}),
                ({}, ["--temperature=0.5"], {"temperature": 0.5})):
            request = self.request(config, *flags)
            for name in ("id", "input_ids", "seed", "eos_token_id", "logprobs"):
                del request[name]
            self.assertEqual(request, wanted)
        self.write_model("generation_config.json", '{"top_k": "x"}')
        self.assertIn("'top_k' expects a number, but got a string",
                      self.refused("--prompt=a"))

    def test_end_tokens(self):
        self.make_model(CHATML)
        ends = self.tokens("</s><|im_end|>")
        self.write_model("config.json", json.dumps(
            {"eos_token_id": 901, "text_config": {"eos_token_id": [902]}}))
        self.assertEqual(self.request({"eos_token_id": [903, 904]})
                         ["eos_token_id"], [*sorted(ends), 901, 902, 903, 904])
        self.assertEqual(self.request({}, "--ignore-eos")["eos_token_id"], [])

    def test_stop_strings(self):
        self.make_model()
        self.answers("hello world")
        for stops in ("wor", ["x", "wor"]):
            self.request({"stop_strings": stops})
            self.assertEqual(self.generate("--prompt", "say"), "hello \n")


if __name__ == "__main__":
    unittest.main()
