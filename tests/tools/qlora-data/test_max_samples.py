# SPDX-License-Identifier: MIT
"""--max-samples reads only the first rows, before any is left out."""

import json
import os
import subprocess
import sys

from fixtures import TOOL, Rows, ToolTest


class MaxSamplesTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model()

    def rows(self, count, length=1):
        return [{"prompt": f"row {number}", "completion": "hello" * length}
                for number in range(count)]

    def test_the_first_rows(self):
        rows = self.rows(5)
        for limit in (3, 9):
            self.assertEqual(
                self.convert(*rows, flags=["--max-samples", str(limit)]).ids,
                self.convert(*rows[:limit]).ids)

    def test_a_dropped_row_counts(self):
        rows = [{"prompt": "a", "completion": "hello " * 30}, *self.rows(2)]
        flags = ["--max-length=20", "--excess-length-strategy=drop"]
        made = self.convert(*rows, flags=[*flags, "--max-samples=2"])
        self.assertEqual(made.ids, self.convert(rows[1]).ids)

    def test_a_folder_is_one_data_set(self):
        rows = self.rows(6)
        folder = self.path("many")
        os.mkdir(folder)
        for number in range(3):
            with open(os.path.join(folder, f"{number}.jsonl"), "w",
                      encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n"
                                for row in rows[2 * number:2 * number + 2])
        expected = self.convert(*rows[:3]).ids
        self.data = folder
        self.assertEqual(self.run_tool("--max-samples=3").returncode, 0)
        self.assertEqual(Rows(self.output).ids, expected)

    def test_several_processes(self):
        rows = self.rows(1100, 200)
        expected = self.convert(*rows[:300]).ids
        made = self.convert(*rows, flags=["--max-samples=300", "--workers=3"])
        self.assertEqual(made.ids, expected)

    def test_rows_after_the_last_are_not_shown(self):
        self.write_data(*self.rows(4))
        shown = subprocess.run(
            [sys.executable, TOOL, "--tokenizer", self.model, "--input",
             self.data, "--show", "--json", "--num-rows=9", "--max-samples=2"],
            capture_output=True, text=True, check=True).stdout
        self.assertEqual(len(shown.splitlines()), 2)
        self.assertIn("expects a number above 0",
                      self.refusal(flags=["--max-samples=0"]))
