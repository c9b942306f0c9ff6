#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""docs/options.md has the options that `qlora help options` prints, as tables.

    options_page.py build/bin [--write]

Without --write it compares, and prints how to write the page.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "docs", "options.md")
HEAD = """# Options

All options of `qlora train`, as `qlora help options` prints them. In a YAML
file the names have underscores instead of dashes, and no leading dashes.

**Compiled in?** *yes*: the value is part of the compiled program. `qlora train`
compiles again if it changes, in seconds; `qlora-run` refuses another value.
*no*: it may change from run to run.

**Values**: `N` is an integer, `X` a number, `SIZE` bytes such as `20GiB`, and
`[...]` repeats. An option without a value is true or false: `--packing`,
`--packing false`, `--no-packing`.

**Other names**: a name with a value in parentheses is a switch that sets this
value. `--bf16 (bfloat16)` means that `--bf16`, or `bf16: true` in a YAML file,
is the same as `--compute-dtype bfloat16`.

`qlora generate`, `eval`, `serve`, `export`, `memory` and `compare` have a few
of their own: see their `--help`.
"""
COLUMNS = ("Option", "Other names", "Values", "Default", "Compiled in?",
           "Description", "More")
# The section that explains an option; its page must name the option.
SECTIONS = {
    "adapters.md":
        "output-dir lora-r lora-alpha lora-target-modules "
        "target-parameters exclude-modules layers-to-transform use-rslora "
        "modules-to-save",
    "checkpoints.md":
        "validation-file adapter-name-or-path eval-steps save-strategy "
        "save-steps save-total-limit resume-from-checkpoint "
        "load-best-model-at-end metric-for-best-model greater-is-better "
        "early-stopping-patience on-nonfinite overwrite-output-dir",
    "clusters.md": "rank-speeds gpus-per-node network calibrate ranks-per-gpu "
                   "device-profile",
    "comparing.md": "run-name sweep",
    "data.md": "train-file max-length packing step-packing val-set-size "
               "dataset-columns row-format excess-length-strategy "
               "dataset-num-proc completion-only-loss assistant-only-loss "
               "allow-template-drops",
    "data.md#data-sets-of-the-hub": "dataset-name dataset-train-split "
    "dataset-config dataset-test-split dataset-revision",
    "data.md#how-rows-become-tokens": "max-samples",
    "data.md#generated-answers": "predict-with-generate compute-metrics "
                                 "generation-max-new-tokens",
    "data.md#losses-of-tokens": "label-smoothing-factor",
    "data.md#preferences": "rl beta loss-type loss-weights label-smoothing "
                           "discopop-tau simpo-gamma cpo-alpha",
    "data.md#answers-without-a-pair": "desirable-weight undesirable-weight",
    "developing.md": "activation-dtype-for-lora base-cache print plan-report",
    "formats.md": "load-in-8bit llm-int8-activations llm-int8-threshold "
                  "bnb-4bit-quant-type quant-method",
    "generate.md": "generation-batch generation-length seed",
    "gradient-compression.md": "ddp-comm-hook powersgd-rank",
    "launchers.md": "ddp-timeout",
    "memory.md": "load-in-4bit bnb-4bit-use-double-quant "
                 "per-device-train-batch-size gradient-checkpointing "
                 "memory-limit dequantize",
    "memory.md#offload": "offload offload-embedding host-memory-limit "
                         "offload-activations-policy",
    "memory.md#rows-per-step": "global-batch-size gradient-accumulation-steps "
                               "auto-find-batch-size",
    "optimizers.md": "optim loraplus-lr-ratio lr-scheduler-type warmup-steps "
                     "weight-decay adam-beta1 adam-beta2 adam-epsilon",
    "parallelism.md": "finetuning-type parallel gpus force-single-gpu "
                      "reproducible-reductions sequence-parallel device-map "
                      "node-mtbf-hours",
    "parallelism.md#pp": "num-micro-batches pipeline-schedule "
                         "num-virtual-stages-per-pipeline-rank stage-speeds",
    "predictions.md": "simulate",
    "qlora.md": "push-to-hub hub-model-id hub-private-repo model-revision "
                "dry-run target cuda-arch",
    "watching.md": "logging-steps logging-first-step report-to logging-dir "
                   "profile",
}


def options(text):
    """Yields (group, flags, help) of each option of --help-all. Flags begin in
    column 2 and continue in column 6; their help is in column 24."""
    group, flags, words = None, [], []
    for line in [*text.splitlines(), "end:"]:
        own = re.match(r"  ( {4})?(-.*?)(?:  +(.*)|)$", line)
        if flags and (not line.strip() or line[0] != " " or
                      own and not own[1]):
            yield group, " ".join(flags), " ".join(words)
            flags, words = [], []
        if own:
            flags.append(own[2])
            words += [own[3]] if own[3] else []
        elif line.startswith(" " * 24):
            words.append(line.strip())
        elif line.endswith(":") and line[0] != " ":
            group = line[:-1]


def code(text):
    return f"`{text}`" if text else ""


def row(flags, text):
    """Returns the option's name and the cells of its table row."""
    names = flags.split(", ")
    main = next(i for i, name in enumerate(names) if name.startswith("--"))
    name, _, values = names.pop(main).partition(" ")
    notes = re.search(
        r" \((?:default: ([^()]*?))?(?:; )?(compiled in)?\)$", text)
    default, compiled = notes.groups() if notes else (None, None)
    if not values:
        default = default or "false"
    return name.lstrip("-"), [
        f'<a id="{name}"></a>{code(name)}', ", ".join(map(code, names)),
        ", ".join(map(code, values.split("|"))), code(default),
        "yes" if compiled else "no", text[:notes.start()] if notes else text]


def links():
    """Returns the link to the section of each option."""
    found = {}
    for section, names in SECTIONS.items():
        page = section.partition("#")[0]
        with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as file:
            text = file.read()
        for name in names.split():
            if not re.search(rf"--{name}(?![\w-])", text):
                sys.exit(f"docs/{page} does not name --{name}, which "
                         "tests/docs/options_page.py links to it")
            found[name] = f"[{page.removesuffix('.md')}]({section})"
    return found


def table_line(cells):
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


def page(tools):
    text = subprocess.run(
        [os.path.join(tools, "qlora"), "help", "options"], check=True,
        capture_output=True, text=True).stdout
    found, tables = links(), {}
    for group, flags, words in options(text):
        name, cells = row(flags, words)
        tables.setdefault(group, []).append(
            table_line([*cells, found.pop(name, "")]))
    if found:
        sys.exit(f"options_page.py links unknown options: {', '.join(found)}")
    head = table_line(COLUMNS) + "|---" * len(COLUMNS) + "|\n"
    return HEAD + "".join(f"\n## {group}\n\n{head}{''.join(rows)}"
                          for group, rows in tables.items())


def main(tools, *flags):
    wanted = page(tools)
    if flags == ("--write",):
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(wanted)
        return
    with open(PAGE, encoding="utf-8") as file:
        if file.read() != wanted:
            sys.exit("docs/options.md is not what the programs say; write it: "
                     f"tests/docs/options_page.py {tools} --write")


if __name__ == "__main__":
    main(*sys.argv[1:])
