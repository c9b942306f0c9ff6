#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Trains every golden case, and compares the results with PyTorch's.

    goldens.py --tools build/bin [--cases DIR] [--work DIR] [CASE ...]
               [--compile-flag F]... [--run-flag F]... [--bf16] [--ranks N]
               [--parallel AXIS=N,...] [--jobs N] [--every N]
               [--target cuda] [--modules DIR] [--library-path DIRS]
               [--kernels ROW,...]

Each case is imported, compiled and trained as a user would, and compared with
expected.safetensors. In float32, it must agree within the tolerances of
golden_case.py, with equal dropout masks. Without options that change the run,
the case is also compared with PEFT (peft_logits.py). train.yaml may name the
model, data and first adapter of another case.

  --bf16          losses agree within 2 %, gradients of step 1 within 5 % of
                  their norms or more (bf16_gradient_limit)
  --ranks         the same global step on N ranks
  --parallel      tp, cp and pp multiply the case's number of ranks
  --every         without names, each N-th case
  --target cuda   runs CUDA programs on the software platform (tests/cuda)
  --library-path  LD_LIBRARY_PATH of qlora-run, to use NVIDIA's libraries
  --modules       folder of compiled programs: NAME.so or NAME-bf16.so
  --kernels       rows of Kernels.def that must run, such as "attention.cudnn"
                  or "attention.cuda (planned: .cudnn)"
"""

import argparse
import concurrent.futures
import json
import math
import os
import re
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import peft_logits  # noqa: E402
import safetensors_io  # noqa: E402
from golden_case import FINAL, GRADIENT, LOGITS, LOSS, NORM  # noqa: E402
from golden_case import Failure, check, run, settings  # noqa: E402

# Limit for gradients in bf16, relative to the norm. In a case with two layers,
# the worst tensor differs by 2.1 to 2.8 %, on CPUs and on CUDA.
GRADIENT_BF16 = 0.05
# Limit for the fraction of different codes in 8-bit states. Gradients differ
# from the reference by 1e-6 of their scale, and codes near zero are 3e-5 apart.
# So 0.1 to 0.7 % of the codes differ by one after six steps. With equal
# gradients, all codes are equal (conformance/AdamW8BitTest.cpp).
CODES = 1e-2
# bitsandbytes' names of states -> AdamW's. Small tensors have AdamW's float32
# states.
SMALL = {"state1": "exp_avg", "state2": "exp_avg_sq"}


def cuda_flags():
    """Returns flags to compile for the software platform."""
    here = os.path.dirname(os.path.abspath(__file__))
    return ["--target", "cuda", "--cuda-arch", "90", "--cuda-compiler",
            os.path.join(here, "..", "cuda", "host-nvcc")]


def cuda_environment(options, ranks):
    """Returns the environment in which qlora-run finds its CUDA libraries."""
    if options.library_path:
        return {**os.environ, "LD_LIBRARY_PATH": options.library_path}
    platform = os.path.join(options.tools, "..", "cuda-platform")
    return {**os.environ, "LD_LIBRARY_PATH": os.path.abspath(platform),
            "QLORA_TEST_CUDA_DEVICES": ",".join(["sm_90:4096"] * ranks)}


def check_kernels(work, wanted):
    """Checks the rows that qlora-run --verbose names. A warning must say why
    an unplanned row runs."""
    with open(os.path.join(work, "log.txt")) as file:
        text = file.read()
    named = re.search(r"^  kernels  (.*)$", text, re.M)
    rows = named[1].split(", ") if named else []
    if missing := set(wanted) - set(rows):
        raise Failure(f"{', '.join(sorted(missing))} did not run: {rows}")
    for row in rows:
        if " (planned: " in row and not re.search(
                rf"warning: launch .*; {row.split()[0]} runs instead", text):
            raise Failure(f"no warning says why {row} runs")


def build(tools, case, work, compile_flags, import_flags=(), name="t.so"):
    """Imports and compiles; returns the module."""
    log = os.path.join(work, "log.txt")
    model, module = os.path.join(work, "m.mlir"), os.path.join(work, name)
    run([f"{tools}/qlora-import", settings(case)["model_name_or_path"], "-o",
         model, *import_flags], log)
    run([f"{tools}/qloracc", "--target=cpu", model, "-o", module, "--config",
         os.path.join(case, "train.yaml"), *compile_flags], log)
    return module


def start_of(case):
    """Returns the file with the initial trainable parameters: the adapter's or
    the model's. None if they are derived from the model."""
    found = settings(case)
    if found.get("finetuning_type") == "full":
        return os.path.join(found["model_name_or_path"], "model.safetensors")
    if "adapter_name_or_path" not in found:
        return None
    return os.path.join(found["adapter_name_or_path"],
                        "adapter_model.safetensors")


def deltas_of(out):
    """Returns the values that an adapter adds to each weight, by module."""
    with open(os.path.join(out, "adapter_config.json")) as file:
        config = json.load(file)
    scale = config["lora_alpha"] / (
        config["r"] ** 0.5 if config["use_rslora"] else config["r"])
    adapter = safetensors_io.load(
        os.path.join(out, "adapter_model.safetensors"))
    end = ".lora_A.weight"
    return {name[:-len(end)]:
            scale * adapter[name[:-len(end)] + ".lora_B.weight"] @ a
            for name, a in adapter.items() if name.endswith(end)}


def check_adapter_config(start, out):
    """Checks that the output keeps fan_in_fan_out of the first adapter, which
    no option sets here."""
    written = []
    for folder in (start, out):
        with open(os.path.join(folder, "adapter_config.json")) as file:
            written.append(json.load(file)["fan_in_fan_out"])
    if written[0] != written[1]:
        raise Failure(f"fan_in_fan_out is {written[1]}, PEFT has {written[0]}")


def train(tools, case, work, module, run_flags, ranks, environment=None):
    """Returns metrics, dump, adapter and states."""
    log = os.path.join(work, "log.txt")
    yaml = os.path.join(case, "train.yaml")
    out = os.path.join(work, "out")
    dump = os.path.join(work, "dump.safetensors")
    # Use a separate cache, so that other tests' measurements do not matter.
    environment = {**(environment or os.environ), "XDG_CACHE_HOME": work}
    run([f"{tools}/qlora-run", module, "--config", yaml, "--gpus", str(ranks),
         "--output-dir", out, "--overwrite-output-dir", "--dump", dump,
         *run_flags], log, environment)
    start = start_of(case)
    if start and start.endswith("adapter_model.safetensors"):
        check_adapter_config(os.path.dirname(start), out)
    with open(os.path.join(out, "metrics.jsonl")) as lines:
        metrics = [json.loads(line) for line in lines]
    return ([m for m in metrics if "loss" in m], safetensors_io.load(dump),
            safetensors_io.load(os.path.join(out, os.path.basename(start)))
            if start else deltas_of(out),
            states_in(out))


def states_in(out):
    """Returns the optimizer states in the last checkpoint."""
    found = [name for name in os.listdir(out) if name.startswith("checkpoint-")]
    if not found:
        return {}
    last = max(found, key=lambda name: int(name.split("-")[1]))
    return safetensors_io.load(os.path.join(out, last, "state.safetensors"))


def check_states(errors, states, expected):
    for name, want in expected.items():
        if not name.startswith("state."):
            continue
        tensor, kind = name[len("state."):].rsplit(".", 1)
        kind = kind if f"{tensor}.{kind}" in states else SMALL.get(kind, kind)
        got = states.get(f"{tensor}.{kind}")
        if got is None or got.shape != want.shape or got.dtype != want.dtype:
            raise Failure(f"the checkpoint's {tensor}.{kind} is not that of "
                          f"{name}, {want.dtype} {want.shape}")
        if want.dtype == np.uint8:
            check(errors, "codes", np.mean(got != want), CODES)
        else:
            check(errors, "states", np.linalg.norm(got - want)
                  / np.linalg.norm(want), FINAL)


def check_metrics(errors, metrics, expected):
    if len(metrics) != len(expected["loss"]):
        raise Failure(f"expected {len(expected['loss'])} logged steps, got "
                      f"{len(metrics)}")
    for i, step in enumerate(metrics):
        check(errors, "loss", abs(step["loss"] - expected["loss"][i]), LOSS)
        norm = expected["grad_norm"][i]
        check(errors, "grad_norm", abs(step["grad_norm"] - norm) / norm, NORM)
        rate = expected["learning_rate"][i]
        check(errors, "learning_rate",
              abs(step["learning_rate"] - rate), 1e-7 * max(rate, 1e-3))
        for name in (name for name in expected if name.startswith("logged.")):
            want, got = expected[name][i], step.get(name[len("logged."):])
            if (got is None) != np.isnan(want):
                raise Failure(f"step {i + 1} logs {name} as {got}, not {want}")
            if got is not None:
                check(errors, "logged", abs(got - want) / max(abs(want), 1),
                      NORM)


def check_gradients(errors, dump, expected, limit):
    for name, want in expected.items():
        if name.startswith("grad."):
            check(errors, "gradient", np.linalg.norm(dump[name] - want)
                  / np.linalg.norm(want), limit)
        elif name.startswith("abs_grad."):
            got = np.abs(dump[name[len("abs_"):]])
            check(errors, "gradient", np.linalg.norm(got - want)
                  / np.linalg.norm(want), limit)


def check_tensors(errors, dump, adapter, case, expected):
    if "logits" in expected:
        check(errors, "logits",
              np.abs(dump["logits"].reshape(expected["logits"].shape)
                     - expected["logits"]).max(), LOGITS)
    start = start_of(case) and safetensors_io.load(start_of(case))
    check_gradients(errors, dump, expected, GRADIENT)
    for name, want in expected.items():
        if name.startswith("final."):
            key = name[len("final."):]
            moved = np.linalg.norm(want - start[key])
            check(errors, "final adapter",
                  np.linalg.norm(adapter[key] - want) / moved, FINAL)
        elif name.startswith("delta."):
            got = adapter[name[len("delta."):]]
            check(errors, "final adapter", np.linalg.norm(got - want)
                  / np.linalg.norm(want), FINAL)
        elif name.startswith("dropout."):
            check(errors, "dropout masks", wrong_bytes(dump, name, want), 0.5)
    if extra := {name for name in dump if name.startswith("dropout.")
                 and name not in expected}:
        raise Failure(f"the dump has {min(extra)}, PyTorch has no dropout")


def bf16_gradient_limit(case):
    """Returns the limit for bf16 gradients. The rounding errors of layers add
    up like a random walk. PiSSA and OLoRA double the number of errors: they
    subtract the initial factors from the weights, so bf16 rounds the weights.

    Returns None, for no limit, if rounding may change a choice: the expert of
    a token, or the 8-bit code of an activation."""
    found = settings(case)
    path = os.path.join(found["model_name_or_path"], "config.json")
    with open(path) as file:
        config = json.load(file)
    config = config.get("text_config", config)
    if ("num_experts_per_tok" in config
            or found.get("llm_int8_activations") == "int8"):
        return None
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    is_residual = str(found.get("init_lora_weights")).startswith(
        ("pissa", "olora"))
    return GRADIENT_BF16 * max(1.0, layers / 2 * (1 + is_residual)) ** 0.5


def wrong_bytes(dump, name, want):
    """Returns how many elements differ; masks and op ids are exact."""
    if name not in dump:
        raise Failure(f"the dump has no {name}")
    if dump[name].shape != want.shape:
        raise Failure(f"{name} is {dump[name].shape}, expected {want.shape}")
    return float(np.count_nonzero(dump[name] != want))


def check_base(errors, dump, case):
    """Compares the bits of the quantized base, and the mean offset within 2
    ulp."""
    found = settings(case)
    if found.get("load_in_4bit") is False and "load_in_8bit" not in found:
        return
    folder = os.path.join(found["model_name_or_path"], "..")
    paths = [os.path.join(folder, name)
             for name in ("nf4.safetensors", "int8.safetensors")]
    path = next(filter(os.path.exists, paths), None)
    if not path:
        return
    for name, want in safetensors_io.load(path).items():
        weight = name.rsplit(".", 1)[0]
        if (not {f"{weight}.packed", f"{weight}.CB"} & set(dump)
                and not name.endswith(".dequantized")):
            continue  # weights are decoded once: no codes
        if name not in dump:
            raise Failure(f"the dump has no {name}")
        got = dump[name].reshape(want.shape)
        if name.endswith(".nested_offset"):
            ulps = abs(got.view(np.int32).astype(np.int64)
                       - want.view(np.int32)).max()
            check(errors, "nested offset (ulp)", float(ulps), 2)
            continue
        offset = f"{weight}.nested_offset"
        nested = name.endswith((".absmax", ".nested_absmax", ".dequantized"))
        exact = got.tobytes() == want.tobytes()
        same_offset = (offset not in dump or
                       dump[offset].tobytes() ==
                       safetensors_io.load(path)[offset].tobytes())
        if nested and not same_offset:
            continue  # unit tests compare nested scales
        check(errors, "base bytes", 0.0 if exact else 2.0, 1)


def is_plain(options):
    """Returns whether a case runs as in train.yaml, on a CPU."""
    return not (options.bf16 or options.ranks or options.parallel
                or options.compile_flag or options.run_flag
                or options.target != "cpu")


def flags_of(options, case):
    """Returns the flags to import, to compile and to train with, and the number
    of ranks; None if the case cannot have that number."""
    with open(os.path.join(case, "case.json")) as file:
        described = json.load(file)
    compile_flags = list(options.compile_flag)
    run_flags = list(options.run_flag)
    ranks = options.ranks or described.get("ranks", 1)
    if described.get("only_ranks", ranks) != ranks:
        return None
    if options.bf16 and described.get("only_float32"):
        return None
    if options.ranks:  # the same global step on another number of ranks
        micro_batches = (described["gradient_accumulation_steps"]
                         * described.get("ranks", 1))
        if micro_batches % ranks:
            return None
        run_flags += ["--gradient-accumulation-steps",
                      str(micro_batches // ranks)]
    if options.parallel:  # tp and cp multiply the ranks
        compile_flags += ["--parallel", options.parallel]
        ranks *= math.prod(int(number) for axis, number in
                           (each.split("=")
                            for each in options.parallel.split(","))
                           if axis in ("tp", "cp", "pp"))
    if options.bf16:
        compile_flags += ["--compute-dtype", "bfloat16"]
        run_flags += ["--compute-dtype", "bfloat16"]
    if options.target == "cuda":
        compile_flags += cuda_flags()
    return described.get("import_flags", []), compile_flags, run_flags, ranks


def module_name(options, case):
    return os.path.basename(case) + ("-bf16" if options.bf16 else "") + ".so"


def run_case(options, case):
    flags = flags_of(options, case)
    if flags is None:
        return None
    import_flags, compile_flags, run_flags, ranks = flags
    expected = safetensors_io.load(os.path.join(case, "expected.safetensors"))
    environment = (cuda_environment(options, ranks)
                   if options.target == "cuda" else None)
    if options.kernels:
        run_flags.append("--verbose")
    errors = {}
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        if options.modules:
            module = os.path.join(options.modules, module_name(options, case))
        else:
            module = build(options.tools, case, work, compile_flags,
                           import_flags)
        metrics, dump, adapter, states = train(
            options.tools, case, work, module, run_flags, ranks, environment)
        if options.kernels:
            check_kernels(work, options.kernels.split(","))
        if is_plain(options) and "logits" in expected:
            peft_logits.check_case(errors, options.tools, case, work, module)
    if options.bf16:
        for i, step in enumerate(metrics):
            want = expected["loss"][i]
            check(errors, "loss (bf16)", abs(step["loss"] - want) / want, 0.02)
        if limit := bf16_gradient_limit(case):
            check_gradients(errors, dump, expected, limit)
        return errors
    check_metrics(errors, metrics, expected)
    check_tensors(errors, dump, adapter, case, expected)
    check_states(errors, states, expected)
    check_base(errors, dump, case)
    return errors


def attempt(options, name):
    """Returns the result or failure of run_case()."""
    try:
        return run_case(options, os.path.join(options.cases, name))
    except Failure as failure:
        return failure


def report(name, errors, of_all):
    """Prints a case's result: ok, FAIL or skip. A case that cannot be sharded
    fails only if it is named."""
    if isinstance(errors, Failure):
        cannot = of_all and re.search("matmul of this model can be"
                                      "|not divisible by"
                                      "|cannot be sharded by"
                                      "|but --parallel cp shards them"
                                      "|needs as many layers"
                                      "|but a micro-batch has [0-9]+ rows"
                                      "|use --num-micro-batches 1"
                                      "|--num-micro-batches: the router loss"
                                      "|the model has no experts"
                                      "|cannot update shards"
                                      "|cannot shard updates",
                                      str(errors))
        kind = "skip" if cannot else "FAIL"
        text = errors
        if cannot:
            text = next(line for line in str(errors).splitlines()
                        if cannot.group() in line)
    elif errors is None:
        kind, text = "skip", "not for this number of ranks"
    else:
        bad = not errors or any(not ratio <= 1 for ratio, _ in errors.values())
        kind = "FAIL" if bad else "ok"
        text = ", ".join(f"{what} {value:.2g}" for what, (_, value)
                         in errors.items()) or "nothing was compared"
    sys.stdout.write(f"{kind:<4} {name}: {text}\n")  # one write: threads
    sys.stdout.flush()
    return kind


def conclude(what, results):
    """Reports the results of named cases. Returns the exit code: 1 if one
    failed, or if there are none."""
    kinds = [report(name, result, False) for name, result in results.items()]
    failed = kinds.count("FAIL")
    print(f"{what}: {len(kinds) - failed} passed, {failed} failed")
    return 1 if failed or not kinds else 0


def main():
    parser = argparse.ArgumentParser()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--tools", required=True)
    parser.add_argument("--cases", default=f"{here}/../Inputs/goldens")
    parser.add_argument("--work", default=None)
    parser.add_argument("--compile-flag", action="append", default=[])
    parser.add_argument("--run-flag", action="append", default=[])
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--parallel", default=None)
    parser.add_argument("--target", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--modules", default=None)
    parser.add_argument("--library-path", default=None)
    parser.add_argument("--kernels", default=None)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    if options.modules and options.compile_flag:
        parser.error("--compile-flag is for cases that are compiled here, not "
                     "for --modules")
    if options.target == "cpu" and (options.modules or options.library_path):
        parser.error("--modules and --library-path need --target cuda")
    names = options.names or sorted(
        name for name in os.listdir(options.cases)
        if os.path.exists(os.path.join(options.cases, name, "case.json"))
    )[::options.every]
    for name in names:
        if not os.path.exists(os.path.join(options.cases, name, "case.json")):
            parser.error(f"there is no case '{name}' in {options.cases}")
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(
            lambda name: report(name, attempt(options, name),
                                not options.names),
            names))
    passed, failed, skipped = (outcomes.count(kind)
                               for kind in ("ok", "FAIL", "skip"))
    print(f"goldens: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
