# SPDX-License-Identifier: MIT
"""`qlora-data end-tokens`, which qlora-run calls to answer during training."""

import json
import subprocess
import sys
import unittest

from fixtures import CHATML, TOOL, ToolTest


class EndTokensTest(ToolTest):
    def run_command(self, *flags, code=0):
        done = subprocess.run(
            [sys.executable, TOOL, "end-tokens", "--model", self.model, *flags],
            capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return json.loads(done.stdout) if code == 0 else done.stderr

    def ids(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def test_are_those_of_generate(self):
        self.make_model(CHATML)
        self.write_model("config.json", json.dumps(
            {"eos_token_id": 901, "text_config": {"eos_token_id": [902]}}))
        self.write_model("generation_config.json", json.dumps(
            {"eos_token_id": [903], "stop_strings": ["###", "<|im_start|>"]}))
        ends = self.ids("</s><|im_end|><|im_start|>")
        self.assertEqual(self.run_command(), {
            "end_tokens": sorted([*ends, 901, 902, 903]),
            "stop_strings": ["###"]})

    def test_of_the_chosen_template(self):
        self.make_model()
        self.assertEqual(self.run_command()["end_tokens"], self.ids("</s>"))
        self.assertEqual(self.run_command("--chat-template=chatml"), {
            "end_tokens": sorted(self.ids("</s><|im_end|>")),
            "stop_strings": []})

    def test_need_a_tokenizer(self):
        self.assertIn("qlora-data: error: ", self.run_command(code=1))


if __name__ == "__main__":
    unittest.main()
