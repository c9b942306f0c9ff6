#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Runs peft_load.py on every golden case that has an adapter, with the torch,
transformers and PEFT versions of the references: the long form.

    peft_load_all.py --tools build/bin [--environment DIR] [CASE ...]

The environment is installed from PyPI's packages, in 5 to 10 minutes and 6 GB;
later calls reuse it. Fails if it cannot be created. export_quantized.py --live
uses it too, with bitsandbytes and compressed-tensors.
"""

import argparse
import os
import subprocess
import sys
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
ENVIRONMENT = os.path.join(HERE, "..", "..", "build", "peft-live")
PACKAGES = ("torch==2.15.0", "transformers==5.24.0", "peft==0.21.2",
            "accelerate==1.15.0", "safetensors==0.8.0", "numpy==2.4.6",
            "bitsandbytes==0.50.2", "compressed-tensors==0.20.0")


def has_packages(python):
    """Returns whether an environment has exactly the pinned packages."""
    code = ("import importlib.metadata as m, sys; sys.exit(any(m.version(n) != "
            "v for n, v in (p.split('==') for p in sys.argv[1:])))")
    return os.path.exists(python) and subprocess.run(
        [python, "-c", code, *PACKAGES], capture_output=True).returncode == 0


def make_environment(folder):
    """Returns the environment's Python."""
    python = os.path.join(folder, "bin", "python")
    if not has_packages(python):
        print(f"installing {' '.join(PACKAGES)} into {folder}", flush=True)
        venv.create(folder, clear=True, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES],
                       check=True)
        if not has_packages(python):
            raise SystemExit(f"{folder} does not have {' '.join(PACKAGES)}")
    return python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--environment", default=ENVIRONMENT)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    python = make_environment(os.path.abspath(options.environment))
    return subprocess.run([python, os.path.join(HERE, "peft_load.py"),
                           "--tools", options.tools, *options.names]).returncode


if __name__ == "__main__":
    sys.exit(main())
