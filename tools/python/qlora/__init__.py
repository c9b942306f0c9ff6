# SPDX-License-Identifier: MIT
"""Fine-tuning from Python: starts the program `qlora` and reads its output.

    import qlora

    run = qlora.train("Qwen3-0.6B", "data.jsonl", load_in_4bit=True,
                      max_length=512, output_dir="adapter")
    for row in run:                       # rows of metrics.jsonl
        print(row["step"], row.get("loss"))

Keyword arguments are the options of `qlora train` (`qlora help options`).
Messages of the program go to sys.stderr. This process computes nothing.
"""

from ._run import Error, Training, memory, plan, train

__all__ = ["Error", "Training", "memory", "plan", "train"]
