#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Exports adapters of golden cases with `qlora export --quantize`, and checks
what was written.

    export_quantized.py --tools build/bin [--reader PYTHON | --live]
                        [CASE:FORMAT ...]
    export_quantized.py --tools build/bin --faults

The codes must be the nearest ones to the merged weights, which are exported in
float32 for this. The stated loss must be that of the decoded weights. A base
with an adapter of zeros must get the bytes that bitsandbytes has made of it.

--reader: this Python has transformers and the libraries of the formats. They
must load the folder, with all tensors as they were written, and decode the
values that qlora decodes. --live: in the environment of peft_load_all.py.

--faults: errors, a full disk, and the memory of an export.
"""

import argparse
import json
import os
import shutil
import sys

import numpy as np

import export as exports
import goldens
import peft_load_all
import safetensors_io
from export import (copied_with, expect_error, export, leftovers, limited,
                    qlora, record, report_of, trained)
from golden_case import Failure, settings

CASES = exports.CASES
NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
     -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
     0.07958029955625534, 0.16093020141124725, 0.24611230194568634,
     0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
     0.7229568362236023, 1.0], np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)


# ------------------------------------------------------- reference decoders ---

def e4m3(codes):
    """Decodes E4M3 codes."""
    codes = codes.astype(np.int32)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, mantissa * 2.0 ** -9,
                    (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    return np.where(codes & 128, -size, size).astype(np.float32)


def nibbles(packed, first_is_high):
    high, low = packed >> 4, packed & 15
    pair = (high, low) if first_is_high else (low, high)
    return np.stack(pair, axis=-1).reshape(*packed.shape[:-1], -1)


def decode_nf4(tensors, name):
    """Returns the values of a weight, and those of the scales of blocks."""
    state = json.loads(bytes(tensors[
        f"{name}.quant_state.bitsandbytes__nf4"]).decode())
    count = int(np.prod(state["shape"]))
    codes = nibbles(tensors[name].reshape(-1), True)[:count]
    absmax = tensors[f"{name}.absmax"]
    if "nested_offset" in state:
        nested = np.repeat(tensors[f"{name}.nested_absmax"],
                           state["nested_blocksize"])[:len(absmax)]
        absmax = (tensors[f"{name}.nested_quant_map"][absmax] * nested
                  + np.float32(state["nested_offset"]))
    scales = np.repeat(absmax, state["blocksize"])[:count]
    return ((tensors[f"{name}.quant_map"][codes] * scales)
            .reshape(state["shape"]), absmax)


def decode_fp8(tensors, name):
    scales = tensors[name.removesuffix(".weight") + ".weight_scale"]
    return e4m3(tensors[name]["e4m3"]) * scales, scales


def decode_mxfp4(tensors, name):
    codes = nibbles(tensors[f"{name}_blocks"], False)
    values = np.where(codes & 8, -E2M1[codes & 7], E2M1[codes & 7])
    scales = np.ldexp(np.float32(1),
                      tensors[f"{name}_scales"].astype(np.int32) - 127)
    values = values * scales[..., None]
    return values.reshape(*values.shape[:-2], -1), scales


TABLES = {"nf4": NF4, "mxfp4": np.concatenate([E2M1, -E2M1]),
          # The last code of each sign is NaN.
          "fp8": e4m3(np.delete(np.arange(256), (127, 255)))}
DECODERS = {"nf4": (decode_nf4, ".quant_state.bitsandbytes__nf4"),
            "fp8": (decode_fp8, "_scale"), "mxfp4": (decode_mxfp4, "_blocks")}


def tensors_of(folder):
    return safetensors_io.load(os.path.join(folder, "model.safetensors"))


def decoded(folder, kind):
    """Returns {name: (values, scales)} of all quantized weights."""
    decode, mark = DECODERS[kind]
    tensors = tensors_of(folder)
    return {name: decode(tensors, name) for name in (
        key.removesuffix(mark) for key in tensors if key.endswith(mark))}


# ------------------------------------------------------------------- values ---

def by_element(kind, weight, scales):
    """Returns the scale of each element."""
    if kind == "nf4":
        return np.repeat(scales, 64)[:weight.size].reshape(weight.shape)
    return np.repeat(scales, weight.shape[-1] // scales.shape[-1], axis=-1)


def to_bfloat16(values):
    bits = values.astype(np.float32).view(np.uint32)
    bits = bits + 0x7fff + (bits >> 16 & 1) & np.uint32(0xffff0000)
    return bits.view(np.float32)


def check_codes(kind, folder, exact, turns, errors):
    """Compares decoded weights with merged weights in float32."""
    merged = tensors_of(exact)
    weights = decoded(folder, kind)
    if not weights:
        raise Failure(f"{folder} has no quantized weight")
    for name, (values, scales) in weights.items():
        weight = merged[name]
        weight = np.swapaxes(weight, -1, -2) if turns else weight
        if kind == "mxfp4": # is quantized from bfloat16
            weight = to_bfloat16(weight)
        scales = by_element(kind, weight, scales)
        best = np.abs(TABLES[kind] * scales[..., None]
                      - weight[..., None]).min(axis=-1)
        record(errors, "distance to the nearest code",
               (np.abs(values - weight) - best) / scales.max(), 1e-6)
    return len(weights)


def check_stated_loss(tools, out, folder, kind, turns, work, errors):
    """Writes the decoded weights as float32. Their loss must be the stated
    one."""
    plain = os.path.join(work, "decoded")
    shutil.copytree(folder, plain)
    with open(os.path.join(plain, "config.json")) as file:
        config = json.load(file)
    del config["quantization_config"]
    with open(os.path.join(plain, "config.json"), "w") as file:
        json.dump(config, file)
    weights = decoded(folder, kind)
    tensors = {name: tensor for name, tensor in tensors_of(folder).items()
               if not any(name == key or name.startswith((f"{key}.",
                                                          f"{key}_scale",
                                                          f"{key}_blocks"))
                          for key in weights)}
    for name, (values, _) in weights.items():
        tensors[name] = np.ascontiguousarray(
            np.swapaxes(values, -1, -2) if turns else values)
    safetensors_io.save(os.path.join(plain, "model.safetensors"), {
        name: np.asarray(tensor, np.float32)
        for name, tensor in tensors.items()})
    again = os.path.join(work, "again")
    zeros = copied_with(out, work, zero)
    resolved = os.path.join(zeros, "config.resolved.yaml")
    with open(resolved) as file:
        lines = [f"model_name_or_path: {json.dumps(plain)}\n"
                 if line.startswith("model_name_or_path:") else line
                 for line in file]
    with open(resolved, "w") as file:
        file.writelines(lines)
    export(tools, [zeros, "--merge-into", "files", "--outtype", "f32", "-o",
                   again], work)
    stated = report_of(folder)["artefacts"][0]["loss"]
    record(errors, "stated loss",
           report_of(again)["artefacts"][0]["loss"] - stated, 1e-4)


def zero(tensors):
    """Makes an adapter that changes nothing."""
    for name, tensor in tensors.items():
        if "lora_B" in name or "lora_embedding_B" in name:
            tensor[:] = 0


def check_bitsandbytes(tools, name, out, work):
    """Compares with the bytes that bitsandbytes made of the same base."""
    path = os.path.join(CASES, name, "nf4.safetensors")
    if not os.path.exists(path):
        return
    want = safetensors_io.load(path)
    folder = os.path.join(work, "same")
    export(tools, [copied_with(out, work, zero), "--quantize", "nf4",
                   "--bnb-4bit-use-double-quant", "--no-verify",
                   "--merge-into", "files", "-o", folder], work)
    got = tensors_of(folder)
    decodes = decoded(folder, "nf4")
    compared = 0
    for key, tensor in want.items():
        weight = key.rsplit(".", 1)[0]
        if "experts" in weight.split(".") or weight not in decodes:
            continue
        if key.endswith(".nested_offset"):
            continue # a part of quant_state
        ours = (got[weight] if key.endswith(".packed") else
                decodes[weight][0] if key.endswith(".dequantized") else
                got[key])
        if ours.tobytes() != tensor.tobytes():
            raise Failure(f"{key} differs from bitsandbytes'")
        compared += 1
    if compared < 5 * len(decodes):
        raise Failure(f"only {compared} tensors are in {path}")


def check_stored_alike(tools, out, work):
    """transformers has saved the base of llama-nf4 in NF4: all tensors must be
    equal."""
    folder = os.path.join(work, "alike")
    export(tools, [copied_with(out, work, zero), "--quantize", "nf4",
                   "--bnb-4bit-use-double-quant", "--no-verify", "--outtype",
                   "f32", "--merge-into", "files", "-o", folder], work)
    got = tensors_of(folder)
    model = os.path.join(CASES, "prequantized-bnb", "model")
    want = tensors_of(model)
    if got.keys() != want.keys():
        raise Failure(f"other tensors: {sorted(got.keys() ^ want.keys())}")
    for name, tensor in want.items():
        ours = got[name].tobytes()
        if ".quant_state." in name:
            ours = ours.rstrip(b" ")
        if ours != tensor.tobytes():
            raise Failure(f"{name} differs from transformers'")
    with open(os.path.join(folder, "config.json")) as ours, open(
            os.path.join(model, "config.json")) as theirs:
        ours, theirs = (json.load(file)["quantization_config"]
                        for file in (ours, theirs))
    theirs["llm_int8_skip_modules"] = ["lm_head"]
    if ours != theirs:
        raise Failure(f"quantization_config {ours}, not {theirs}")


# -------------------------------------------------------------------- cases ---

def check_report(report, kind, errors):
    first, *others = report["artefacts"]
    if not first["written"] or any(other["written"] for other in others):
        raise Failure("not exactly the first artefact is written")
    # Each base is measured with and without the quantization.
    if len(report["artefacts"]) % 2 or not any(
            other["artefact"].endswith(("BF16", "F16", "F32"))
            for other in others):
        raise Failure(f"no loss without quantization: {report}")
    before, after = (report[f"loss_{when}_training"]
                     for when in ("before", "after"))
    if not abs(first["loss"] - after) < abs(before - after):
        raise Failure(f"{kind} loses the training: {before} before, {after} "
                      f"after, {first['loss']} quantized")


def check_case(tools, name, kind, work, has_reader):
    errors = {}
    out = trained(tools, name, work)
    with open(os.path.join(out, "config.resolved.yaml")) as file:
        resolved = dict(line.split(": ", 1) for line in file)
    into = exports.merge_into(os.path.join(CASES, name), resolved)
    turns = kind == "mxfp4" or name.startswith("gpt2")
    folder, exact = (os.path.join(work, end) for end in ("small", "exact"))
    export(tools, [out, "--quantize", kind, *into, "-o", folder], work)
    export(tools, [out, "--no-verify", "--outtype", "f32", *into, "-o", exact],
           work)
    count = check_codes(kind, folder, exact, turns, errors)
    report = report_of(folder)
    check_report(report, kind, errors)
    check_stated_loss(tools, out, folder, kind, turns, work, errors)
    if has_reader:
        check_reader(report["artefacts"][0], kind, count, errors)
    if kind == "nf4" and name != "prequantized-bnb":
        check_bitsandbytes(tools, name, out, work)
    if name == "llama-nf4":
        check_stored_alike(tools, out, work)
        check_choice(tools, out, work)
    if kind == "nf4" and has_reader:
        # Several files, and metadata that is padded.
        double = os.path.join(work, "double")
        export(tools, [out, "--quantize", kind, *into, "-o", double,
                       "--bnb-4bit-use-double-quant", "--max-shard-size",
                       "20kB"], work)
        check_reader(report_of(double)["artefacts"][0], kind, count, errors)
    return errors


def check_choice(tools, out, work):
    """Two bases are possible. The one that is better when it is quantized must
    be written."""
    folder = os.path.join(work, "chosen")
    export(tools, [out, "--quantize", "nf4", "-o", folder], work)
    first, second, *plain = report_of(folder)["artefacts"]
    if first["loss"] > second["loss"] or len(plain) != 2:
        raise Failure(f"not the better one: {first}, {second}")
    if not all(each["artefact"].endswith("NF4") for each in (first, second)):
        raise Failure(f"not quantized: {first}, {second}")


def check_reader(artefact, kind, weights, errors):
    if artefact["not_checked"] or artefact["reader_equal_tensors"] < weights:
        raise Failure(f"the reader did not decode all weights: {artefact}")
    # compressed-tensors rounds activations too.
    record(errors, "reader's loss", artefact["reader_loss"] - artefact["loss"],
           5e-2 if kind == "fp8" else 1e-3)


# ------------------------------------------------------------------- faults ---

def check_errors(tools, work):
    target = os.path.join(work, "merged")
    cases = {name: trained(tools, name, os.path.join(work, name))
             for name in ("llama-lora", "gpt2")}
    plain = [cases["llama-lora"], "--no-verify", "-o", target]

    def fails(words, *expected, **more):
        expect_error(qlora(tools, words, work, **more), *expected)
    fails([*plain, "--quantize", "mxfp4"], "--quantize mxfp4",
          "LlamaForCausalLM", "--quantize nf4")
    fails([cases["gpt2"], *plain[1:], "--quantize", "fp8"], "Conv1D",
          "--quantize nf4")
    fails([*plain, "--to", "peft", "--quantize", "nf4"], "--to peft",
          "--to merged")
    for more in ([], ["--quantize", "fp8"]):
        fails([*plain, "--bnb-4bit-use-double-quant", *more],
              "--bnb-4bit-use-double-quant", "--quantize nf4")
    fails([*plain, "--quantize", "int3"], "--quantize", "nf4")
    fails([*plain, "--quantize", "nf4"], "merged.part", "File too large",
          preexec_fn=limited(60000))
    if leftovers(work):
        raise Failure(f"left behind: {leftovers(work)}")
    done = export(tools, [*plain, "--quantize", "fp8", "--dry-run"], work)
    if "quantize 14 weights to FP8" not in done.stdout or os.path.exists(
            target):
        raise Failure(f"wrong plan:\n{done.stdout}")
    return {"left behind": (0, 0)}


def check_memory(tools, work):
    """The peak must not exceed the stated one, nor three times the largest
    tensor, for a model whose largest tensors are quantized."""
    adapter, largest = exports.large_model(work, vocabulary=64, width=4096)
    errors = {}
    idle, _ = exports.peak_of(tools, [adapter, "--dry-run"], work)
    for kind in ("nf4", "fp8"):
        words = [adapter, "--no-verify", "--quantize", kind, "-o",
                 os.path.join(work, kind)]
        peak, output = exports.peak_of(tools, words, work)
        stated = exports.bytes_of(
            exports.re.search(r"memory +([\d.]+ \w+)", output)[1])
        # Code of the writer and small allocations take 24 MiB at most.
        record(errors, "memory", peak - idle, stated + (24 << 20))
        record(errors, "stated memory", stated, 3 * 2 * 4096 * 4096)
    return errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--reader")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    tools = os.path.abspath(options.tools)
    if options.live:
        options.reader = peft_load_all.make_environment(
            os.path.abspath(peft_load_all.ENVIRONMENT))
    if options.reader:
        exports.READER = options.reader
    if options.faults:
        results = {
            "errors": exports.attempt(lambda work: check_errors(tools, work)),
            "memory": exports.attempt(lambda work: check_memory(tools, work))}
    else:
        results = {name: exports.attempt(lambda work, name=name: check_case(
            tools, *name.split(":"), work, options.reader))
            for name in options.names}
    return goldens.conclude("export", results)


if __name__ == "__main__":
    sys.exit(main())
