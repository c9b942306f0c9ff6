# SPDX-License-Identifier: MIT
"""Tests which changes of data, model and options change the output of
--print-key."""

import os
import subprocess
import sys

from fixtures import CHATML, TOOL, ToolTest


class KeyTest(ToolTest):
    """Checks that the key of cached rows depends on everything that changes the
    rows."""

    def setUp(self):
        super().setUp()
        self.make_model(CHATML)
        self.write_data({"text": "hello world"})

    def key(self, *flags, **variables):
        done = subprocess.run(
            [sys.executable, TOOL, "--tokenizer", self.model, "--input",
             self.data, "--print-key", *flags],
            env={**os.environ, **variables}, capture_output=True, text=True,
            check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(os.path.exists(self.output))
        return done.stdout

    def put(self, text, *path):
        path = os.path.join(self.model, *path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def test_it_follows_data_options_and_files(self):
        keys = [self.key(), self.key("--max-length", "7"),
                self.key("--assistant-only-loss", "false"),
                self.key("--max-samples", "1"),
                self.key("--chat-template", "qwen3-training")]
        self.put(CHATML + " ", "chat_templates", "tool_use.jinja")
        keys.append(self.key())
        self.put(CHATML, "chat_template.jinja")
        keys.append(self.key())
        named = self.put(CHATML + "  ", "mine.jinja")
        keys.append(self.key("--chat-template", named))
        self.put("{}", "generation_config.json")
        keys.append(self.key())
        self.write_data({"text": "hello worlds"})
        keys.append(self.key())
        self.assertEqual(len(set(keys)), len(keys))
        self.assertEqual(self.key(), keys[-1])

    def test_it_follows_the_versions_of_libraries(self):
        before = self.key()
        folder = os.path.join(self.folder, "jinja2-0.1.dist-info")
        os.makedirs(folder)
        with open(os.path.join(folder, "METADATA"), "w",
                  encoding="utf-8") as file:
            file.write("Metadata-Version: 2.1\nName: jinja2\nVersion: 0.1\n")
        self.assertNotEqual(self.key(PYTHONPATH=self.folder), before)

    def test_it_follows_the_day_where_a_template_writes_it(self):
        days = {"TZ": "XXX-14"}, {"TZ": "XXX+12"}
        plain = {self.key(**day) for day in days}
        self.assertEqual(len(plain), 1)
        self.put("{{ strftime_now('%d') }}" + CHATML, "chat_template.jinja")
        self.assertEqual(len({self.key(**day) for day in days}), 2)
