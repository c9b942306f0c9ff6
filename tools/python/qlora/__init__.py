# SPDX-License-Identifier: MIT
"""Fine-tuning from Python: the program `qlora`, started and read.

    import qlora

    run = qlora.train("Qwen3-0.6B", "data.jsonl", load_in_4bit=True,
                      max_length=512, output_dir="adapter")
    for row in run:                       # as metrics.jsonl has them
        print(row["step"], row.get("loss"))

Options are those of `qlora train` (`qlora help options`), as keywords. What the
program says goes to sys.stderr. Nothing is computed in this process.
"""

from ._run import Error, Training, memory, plan, train

__all__ = ["Error", "Training", "memory", "plan", "train"]
