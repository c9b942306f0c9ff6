#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""docs/options.md equals the output of the option tables.

    options_page.py build/bin [--write]

Without --write it compares, and prints how to write the page.
"""

import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PAGE = os.path.join(ROOT, "docs", "options.md")
HEAD = """# Options

All of `qlora train`, as `qlora help options` prints them; a YAML file has the
same names with underscores. `qlora memory` has a few of its own: see its
`--help`.

```text
"""


def page(tools):
    text = subprocess.run(
        [os.path.join(tools, "qlora"), "help", "options"], check=True,
        capture_output=True, text=True).stdout
    return HEAD + text + "```\n"


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
