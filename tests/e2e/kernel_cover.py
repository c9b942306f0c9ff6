#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""The fewest golden cases that reach every CUDA kernel with every type.

    kernel_cover.py --tools build/bin MODE:CASE,... ...
    kernel_cover.py --tools build/bin --choose [MODE:CASE,... ...]

A mode is how a case is compiled (MODES): on one rank or on a mesh, in float32
or bfloat16. What a case reaches is read from its program (qlora-run --print):
for each CUDA row of Kernels.def, the types of its first operand and of operands
that may have several. The cases are trained and compared with PyTorch's results
(goldens.py). If an op has several rows, the planned one must have run.

Fails if the cases leave out a type of an operand that Kernels.def declares,
unless UNREACHED gives the reason. --choose measures the given cases, or all in
all modes, and prints a smallest list of them, chosen greedily.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

import goldens

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "Inputs", "goldens")
TABLE = os.path.join(HERE, "..", "..", "runtime", "Kernels", "Kernels.def")
# Compile modes: options of goldens.py.
SHARDS = {"ranks": 2, "compile_flag": ["--parallel=fsdp=2",
                                       "--shard-embeddings=true"]}
MODES = {
    "one": {},
    "tp": {"parallel": "tp=2"},
    "cp": {"parallel": "cp=2"},
    "ep": {"ranks": 2, "compile_flag": ["--parallel=ep=2"]},
    "fsdp": SHARDS,
    "panel": {"compile_flag": ["--dequantize=tiled"]},
}
MODES |= {f"{mode}-bf16": {**options, "bf16": True}
          for mode, options in MODES.items()}
# The entries of a training step whose launches count.
ENTRIES = ("accumulate", "update")
# Reason -> row, operand and type that no golden case reaches. The conformance
# tests (KernelTests) cover them, except those of cuDNN.
UNREACHED = {
    "no golden case has float16 in its files": """
        adapted_norm.cuda w f16, copy_rows.cuda x f16, decode.cuda out f16,
        decode.cuda w f16, embedding.cuda w f16, grouped_matmul.cuda w f16,
        grouped_matmul.tensor w f16, head_loss.cuda w f16,
        head_loss_grad.cuda w f16, head_merge.cuda w f16, head_part.cuda w f16,
        matmul.cublaslt a f16, matmul.cublaslt b f16, matmul.cublaslt c f16,
        panel_matmul.decoded w f16, swap_blocks.cuda x f16""",
    "no golden case has frozen weights in float32": """
        adapted_norm.cuda w f32, decode.cuda w f32, head_merge.cuda w f32,
        head_part.cuda w f32, panel_matmul.decoded w f32""",
    "golden cases do not evaluate": """
        head_loss.cuda columns bf16, head_loss.cuda columns f32,
        head_loss.cuda w f32""",
    "sums of activations are fused, and dhidden is computed in place": """
        accumulate.cuda x bf16, accumulate.cuda y bf16,
        head_merge.cuda dhidden bf16, head_merge.cuda dhidden f32""",
    "the row refuses the type": """
        attention.cudnn q f32, attention_grad.cudnn q f32,
        grouped_matmul.tensor a f32, panel_matmul.tensor a f32,
        panel_matmul.tensor w bf16, panel_matmul.tensor w f16,
        panel_matmul.tensor w f32""",
    "launched by entries of generation (generation.py), not of training": """
        adapter_matmul.cuda x f32, adapter_matmul.cuda x bf16,
        adapter_matmul.cuda y f32, adapter_matmul.cuda y bf16,
        cache_rows.cuda x f32, cache_rows.cuda x bf16,
        cache_rows.cuda cache f32, cache_rows.cuda cache bf16,
        cache_rows.cuda cache f16, cache_rows.cuda cache i8,
        cached_attention.cuda q f32, cached_attention.cuda q bf16,
        cached_attention.cuda keys f32, cached_attention.cuda keys bf16,
        cached_attention.cuda keys f16, cached_attention.cuda keys i8,
        panel_matmul.tensor a bf16, panel_matmul.tensor w quantized,
        panel_matmul.tensor c f32, panel_matmul.tensor c bf16""",
    "launched while weights load, not by a program": """
        quantize.cuda x bf16, quantize.cuda x f16, quantize.cuda x f32,
        quantize_scales.cuda scales f32""",
}


def table():
    """Returns the CUDA rows, and the operands of each op with their types."""
    with open(TABLE) as file:
        text = file.read()
    text = re.sub(r"//.*", "", text[text.index("QLORA_KERNEL_OP(matmul"):])
    operands = {}
    for op, words in re.findall(
            r'QLORA_KERNEL_OP\((\w+),\s*((?:"[^"]*"\s*)+),', text):
        operands[op] = []
        for word in "".join(re.findall(r'"([^"]*)"', words)).split():
            name, _, types = word.partition(":")
            types = types.split("|")
            # The first operand always counts. Others count only if they may
            # have several types.
            operands[op].append((name.rstrip("!+?@^"), types if len(types) > 1
                                 or not operands[op] else []))
    return re.findall(r"QLORA_KERNEL\((\w+), (\w+), cuda\)", text), operands


def declared():
    """Returns (row, operand, type) for the first operand of each row and for
    operands with a choice of types. `quantized` is one type, for any stored
    format."""
    rows, operands = table()
    return {(f"{op}.{name}", operand, kind) for op, name in rows
            for operand, types in operands[op] for kind in types}


def reached(printed):
    """Returns (row, operand, type) of the launches of a training step, and the
    rows of ops that have several."""
    rows, operands = table()
    names = {f"{op}.{name}": op for op, name in rows}
    found, entry = set(), ""
    for line in printed.splitlines():
        if start := re.match(r"entry (\w+)", line):
            entry = start[1]
        if not entry.startswith(ENTRIES):
            continue
        for row in (row for row in names if f"  {row}  " in line):
            for (operand, types), given in zip(
                    operands[names[row]],
                    re.split(r"  +", line.split(f"  {row}  ")[1])):
                kind = re.search(r"\[\d+ (\w+)\]", given)
                if kind and types:
                    found.add((row, operand, kind[1] if kind[1] in types
                               else "quantized"))
    # For an op with several rows, qlora-run prints the row that ran.
    return found, {row for row, op in names.items() if f"  {row}  " in printed
                   and list(names.values()).count(op) > 1}


def options_of(tools, mode, **more):
    return argparse.Namespace(**{
        "tools": tools, "compile_flag": [], "run_flag": [], "ranks": 0,
        "parallel": None, "bf16": False, "target": "cuda", "work": None,
        "modules": None, "library_path": None, "kernels": None,
        **MODES[mode], **more})


def compiled(tools, mode, case, folder):
    """Compiles a case into `folder`. Returns what reached() finds in its
    program."""
    options = options_of(tools, mode)
    flags = goldens.flags_of(options, os.path.join(CASES, case))
    if flags is None:
        raise goldens.Failure("not for this number of ranks")
    os.makedirs(folder, exist_ok=True)
    import_flags, compile_flags, _, _ = flags
    module = goldens.build(tools, os.path.join(CASES, case), folder,
                           compile_flags, import_flags)
    os.rename(module, os.path.join(folder, goldens.module_name(options, case)))
    printed = subprocess.run(
        [f"{tools}/qlora-run", "--print",
         os.path.join(folder, goldens.module_name(options, case))],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    return reached(printed)


def train(tools, mode, case, folder):
    """Compiles, trains and compares a case; returns what it reaches, or a
    failure."""
    try:
        found, rows = compiled(tools, mode, case, folder)
        errors = goldens.run_case(options_of(
            tools, mode, modules=folder, kernels=",".join(sorted(rows))),
            os.path.join(CASES, case))
    except goldens.Failure as failure:
        errors = failure
    kind = goldens.report(f"{mode}:{case}", errors, False)
    return found if kind == "ok" else None


def candidates_of(words):
    if words:
        return [(mode, case) for mode, cases in
                (word.split(":") for word in words)
                for case in cases.split(",")]
    names = sorted(name for name in os.listdir(CASES)
                   if os.path.exists(os.path.join(CASES, name, "case.json")))
    return [(mode, case) for mode in MODES for case in names]


def choose(tools, work, candidates):
    """Prints a small list of cases, chosen greedily: the next case reaches the
    most kernels and types that the list lacks."""
    def measure(candidate):
        mode, case = candidate
        try:
            return compiled(tools, mode, case,
                            os.path.join(work, mode, case))[0]
        except goldens.Failure:
            return set()  # refused: impossible with this mesh
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        reach = dict(zip(candidates, pool.map(measure, candidates)))
    left, chosen = set().union(*reach.values()), {}
    while left:
        best = max(candidates, key=lambda each: len(reach[each] & left))
        left -= reach[best]
        chosen.setdefault(best[0], []).append(best[1])
    print(" ".join(f"{mode}:{','.join(cases)}"
                   for mode, cases in chosen.items()))
    print("unreached:", *sorted(declared() - set().union(*reach.values())),
          sep="\n  ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("cases", nargs="*", metavar="MODE:CASE,...")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        if options.choose:
            return choose(options.tools, work, candidates_of(options.cases))
        found, failed = set(), 0
        for mode, case in candidates_of(options.cases):
            more = train(options.tools, mode, case,
                         os.path.join(work, mode, case))
            failed += more is None
            found |= more or set()
    missing = {tuple(words.split()) for group in UNREACHED.values()
               for words in group.split(",")}
    for each in sorted(declared() - found - missing):
        print("FAIL no case reaches", *each)
    for each in sorted(missing - declared() | missing & found):
        print("FAIL UNREACHED has", *each, "which is reached or not declared")
    return 1 if failed or declared() - found != missing else 0


if __name__ == "__main__":
    sys.exit(main())
