# SPDX-License-Identifier: MIT

# Configures lit. Runs .mlir files through qlora-opt and FileCheck, and .test
# files through the tools of a build.

import os
import shutil

import lit.formats

config.name = "qlora"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = config.source_tests
config.test_exec_root = config.build_tests

# Search for the tools of this build first, then for LLVM's: FileCheck,
# split-file and `not`.
config.environment["PATH"] = ":".join(
    [config.tools_folder, config.llvm_tools_folder, config.environment["PATH"]]
)
# Hide the machine's GPUs, so that the default target is the same everywhere.
# Tests for a GPU name their target.
config.environment["CUDA_VISIBLE_DEVICES"] = ""
# Skip tests of device code if there is no CUDA compiler.
nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
if nvcc:
    config.available_features.add("nvcc")

config.substitutions += [
    ("%nvcc", nvcc or "nvcc"),
    ("%cuda_platform",
     os.path.join(config.tools_folder, "..", "cuda-platform")),
    ("%source", os.path.dirname(config.source_tests)),
    ("%inputs", config.source_tests + "/Inputs"),
    ("%make_folder", config.source_tests + "/frontend/make_folder.py"),
    ("%python", config.python),
]
