#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""check_help.py TOOL: rules for a tool's --help and --help-all.

* no line is wider than 80 columns;
* --help has ten options and an example, all of them in --help-all;
* --help-all has every flag once, and the tool accepts each of them;
* no option is named with underscores.
"""

import re
import subprocess
import sys


def run(*words, code=0):
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == code, (words, done.returncode, done.stderr)
    return done.stdout if code == 0 else done.stderr


def rows(text):
    """Returns the flags of each option, its name first. Aliases may be on a
    second line, and two spaces separate flags from text."""
    found = []
    for line in text.splitlines():
        match = re.match(r"(  |      )(-.*?)(  |$)", line)
        if not match:
            continue
        flags = re.findall(r"(?:^| )(--?[a-z][a-z0-9-]*)", match[2])
        if match[1] == "  ":
            found.append(flags)
        else:
            found[-1] += flags
    return found


def check_width(text):
    wide = [line for line in text.splitlines() if len(line) > 80]
    assert not wide, wide


def check_spelling(text, names):
    for name in names:
        written = name.lstrip("-").replace("-", "_")
        if "_" in written:
            assert not re.search(rf"\b{written}\b(?!\.)", text), written


def main():
    tool = sys.argv[1]
    short, full = run(tool, "--help"), run(tool, "--help-all")
    assert run(tool, "-h") == short
    check_width(short)
    check_width(full)
    every = [flag for row in rows(full) for flag in row]
    assert len(every) == len(set(every)), sorted(
        flag for flag in every if every.count(flag) > 1)
    common = rows(short.split("\nexample:")[0])
    assert len(common) == 10, common
    assert all(row in rows(full) for row in common)
    assert f"\nexample:\n  {tool} " in short and "--help-all" in short
    check_spelling(full, every)
    for flag in every:
        said = run(tool, f"{flag}=", "--no-such-flag", code=1)
        assert f"unknown option '{flag}'" not in said, said
    print(f"{tool}: {len(rows(full))} options, {len(every)} flags")


if __name__ == "__main__":
    main()
