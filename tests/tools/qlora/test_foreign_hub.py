# SPDX-License-Identifier: MIT
"""Keys of axolotl, LLaMA-Factory and TRL that select rows of data sets."""

import json
import os

from test_foreign_configs import LLAMA, ForeignTest


class FirstRowsTest(ForeignTest):
    def test_llama_factory_takes_the_first_rows_of_each_data_set(self):
        self.write(json.dumps({name: {"file_name": f"../{name}.jsonl"}
                               for name in ("alpaca", "more")}),
                   "data/dataset_info.json")
        self.write("{}\n", "more.jsonl")
        options, _ = self.options(LLAMA + "dataset: alpaca\n"
                                  "eval_dataset: more\nmax_samples: 7\n")
        self.assertEqual(options["max-samples"], "7")
        self.assertEqual(options["validation-file"],
                         os.path.join(self.folder, "more.jsonl"))
