#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Exports adapters of golden cases for llama.cpp, which must load them.

    gguf_export.py --tools build/bin [--types T,...] [CASE ...]
    gguf_export.py --tools build/bin --refusals | --demo | --quality

Needs the Python of .venv/llama, with gguf and xllamacpp. Each case is trained,
and exported with --to gguf in each type, and with --to gguf-lora:

  * the package gguf must read all tensors with our values, bit for bit
  * the loss of an f32 file must be that of the training, and its reader's too
  * llama.cpp's loss must be ours, within what its arithmetic rounds
  * base and adapter in llama.cpp must have the loss of the merged model

--refusals: what a form cannot say, a full disk, and the memory of an export.
--demo: a model with a tokenizer, whose tokens must be those of qlora-data; its
Modelfile for ollama. --quality: the error of our quantized types is at most
llama.cpp's.
"""

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np

import golden_case
import goldens
import safetensors_io
from export import (CASES, attempt, bytes_of, expect_error, export,
                    large_model, leftovers, limited, peak_of, qlora, record,
                    report_of, trained)
from golden_case import Failure

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                    "tools", "qlora-data", "qlora_data")
# Our arithmetic and llama.cpp's: with f32, with 16 bits, and with activations
# that llama.cpp rounds to 8 bits.
LIMITS = {"f32": 1e-4, "f16": 1e-3, "bf16": 1e-3, "q8_0": 5e-3,
          "q4_k_m": 5e-3, "q5_k_m": 5e-3, "q4_0": 5e-3}
TYPES = ("f32", "f16", "q8_0", "q5_k_m", "q4_k_m")


def gguf_file(folder):
    name, = (name for name in os.listdir(folder) if name.endswith(".gguf"))
    return os.path.join(folder, name)


def tensors_of(path):
    """Returns {name: tensor of the package gguf}."""
    import gguf
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def check_reader(artefact, path, limit, errors, what):
    """All tensors were read with our values, and the loss is ours."""
    if artefact["not_checked"]:
        raise Failure(f"{what}: not checked: {artefact['not_checked']}")
    if artefact["reader_equal_tensors"] != len(tensors_of(path)):
        raise Failure(f"{what}: the reader compared only "
                      f"{artefact['reader_equal_tensors']} tensors")
    if limit:
        record(errors, f"llama.cpp's loss, {what}",
               artefact["reader_loss"] - artefact["loss"], limit)


def check_notes(report):
    """Returns whether llama.cpp computes the model differently. If that changes
    the loss, a warning must name the cause."""
    best = report["artefacts"][0]
    causes = [note.removesuffix(".") for note in report["notes"]
              if re.match("llama.cpp (ignores|rounds)", note)]
    gain = report["loss_before_training"] - report["loss_after_training"]
    if causes and abs(best["reader_difference"]) > gain / 100 and not any(
            causes[0] in warning for warning in report["warnings"]):
        raise Failure(f"no warning names {causes[0]}: {report['warnings']}")
    return bool(causes)


def usual(name, work):
    """Returns the case's folder. Copies one whose clamped activation has not
    the limit of all published models, which llama.cpp has fixed."""
    case = os.path.join(CASES, name)
    model = golden_case.settings(case)["model_name_or_path"]
    with open(os.path.join(model, "config.json")) as file:
        config = json.load(file)
    if "swiglu_limit" not in config:
        return case
    copy = os.path.join(work, "case")
    shutil.copytree(case, copy)
    with open(os.path.join(copy, "model", "config.json"), "w") as file:
        json.dump({**config, "swiglu_limit": 7.0}, file)
    return copy


def check_case(tools, name, work, types):
    errors = {}
    out = trained(tools, usual(name, work), work)
    for kind in types:
        folder = os.path.join(work, kind)
        export(tools, [out, "--to", "gguf", "--outtype", kind, "-o", folder],
               work)
        report = report_of(folder)
        best = report["artefacts"][0]
        before, after = (report[f"loss_{when}_training"]
                         for when in ("before", "after"))
        if before is None:  # the initialization changed the base
            check_reader(best, gguf_file(folder), LIMITS[kind], errors, kind)
            continue
        check_reader(best, gguf_file(folder),
                     not check_notes(report) and LIMITS[kind], errors, kind)
        if not before - best["loss"] > (before - after) / 2:
            raise Failure(f"{kind}: the loss is {best['loss']}, {before} "
                          f"before training and {after} after")
        if kind in ("f32", "f16"):
            record(errors, f"loss, {kind}", best["difference"], LIMITS[kind])
    if name not in NO_LORA:
        check_lora(tools, out, work, errors)
    return errors


# Adapters that llama.cpp cannot load without merging, and why.
NO_LORA = {"qwen2-bias": "no biases", "gpt2-bias-all": "no biases",
           "llama-dora": "no DoRA", "gpt2-dora": "no DoRA",
           "llama-embed": "no modules_to_save",
           "llama-embed-tied": "is tied to the embedding",
           "llama-tokens-nf4": "no trainable_token_indices"}


def check_lora(tools, out, work, errors):
    """Compares base and adapter in llama.cpp with the merged model."""
    lora, merged = (os.path.join(work, name) for name in ("lora", "files"))
    export(tools, [out, "--to", "gguf-lora", "-o", lora], work)
    export(tools, [out, "--to", "gguf", "--outtype", "f32", "--merge-into",
                   first_choice(out), "-o", merged], work)
    adapter, expected = (report_of(folder)["artefacts"][0]
                         for folder in (lora, merged))
    check_reader(adapter, gguf_file(lora), None, errors, "gguf-lora")
    record(errors, "llama.cpp's loss with the adapter",
           adapter["reader_loss"] - expected["reader_loss"], LIMITS["f32"])


def first_choice(out):
    """Returns the base whose values llama.cpp's base has."""
    with open(os.path.join(out, "config.resolved.yaml")) as file:
        model = re.search(r"^model_name_or_path: \"?([^\"\n]*)", file.read(),
                          re.M)[1]
    with open(os.path.join(model, "config.json")) as file:
        stored = "quantization_config" in json.load(file)
    return "dequantized" if stored else "files"


# --------------------------------------------------------------- refusals ---

def check_refusals(tools, work):
    for number, (name, why) in enumerate(NO_LORA.items()):
        out = trained(tools, name, os.path.join(work, str(number)))
        expect_error(qlora(tools, [out, "--to", "gguf-lora"], work),
                     "--to gguf-lora: ", why, "Fix: qlora export RUN --to gguf")
    out = trained(tools, "llama-nf4", work)
    folder = os.path.join(work, "gguf")
    plain = [out, "--to", "gguf", "--no-verify", "--merge-into", "files", "-o",
             folder]
    expect_error(qlora(tools, [out, "--to", "merged", "--outtype", "q4_k_m"],
                       work), "--outtype q4_k_m does not fit --to merged")
    expect_error(qlora(tools, [out, "--to", "ollama", *plain[3:]], work),
                 "no tokenizer", "Fix: --to gguf")
    expect_error(qlora(tools, plain, work, preexec_fn=limited(100000)),
                 "gguf.part", "File too large")
    gpt_oss = trained(tools, "gptoss", os.path.join(work, "gptoss"))
    expect_error(qlora(tools, [gpt_oss, *plain[1:]], work),
                 "clamped activation with limit 3", "--to merged")
    export(tools, plain, work)
    expect_error(qlora(tools, plain, work), "is not empty")
    export(tools, [*plain, "--overwrite", "--outtype", "q8_0"], work)
    if leftovers(work) or sorted(os.listdir(folder)) != [
            "README.md", "export.json", "gguf-Q8_0.gguf"]:
        raise Failure(f"left: {leftovers(work)}, {os.listdir(folder)}")
    return {"left behind": (0, 0)}


def check_memory(tools, work):
    adapter, largest = large_model(work)
    words = [adapter, "--to", "gguf", "--outtype", "q4_k_m", "--no-verify"]
    folder = os.path.join(work, "big")
    idle, _ = peak_of(tools, [*words, "--dry-run"], work)
    peak, output = peak_of(tools, [*words, "-o", folder], work)
    stated = bytes_of(re.search(r"memory +([\d.]+ \w+)", output)[1])
    errors = {}
    # Code of the writer and small allocations take 24 MiB at most.
    record(errors, "memory", peak - idle, stated + (24 << 20))
    record(errors, "stated memory", stated, 3 * largest)
    import gguf
    tensors = tensors_of(gguf_file(folder))
    for name, value in (("token_embd.weight", 5), ("output.weight", 1)):
        tensor = tensors[name]
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        record(errors, "values", values - value, 0.05)
    return errors


# ------------------------------------------------------------------- demo ---

def check_demo(tools, work):
    """A model with a tokenizer and a chat template."""
    demo = os.path.join(CASES, "..", "..", "..", "examples", "demo")
    out, errors = os.path.join(work, "out"), {}
    golden_case.run(
        [f"{tools}/qlora", "train", os.path.join(demo, "train.yaml"),
         "--target", "cpu", "--max-steps", "30", "--output-dir", out],
        os.path.join(work, "log.txt"))
    folder = os.path.join(work, "demo")
    export(tools, [out, "--to", "ollama", "-o", folder], work)
    report = report_of(folder)
    check_reader(report["artefacts"][0], gguf_file(folder), LIMITS["q4_k_m"],
                 errors, "demo")
    with open(os.path.join(folder, "Modelfile")) as file:
        modelfile = file.read()
    for part in (f"FROM ./{os.path.basename(gguf_file(folder))}\n",
                 'TEMPLATE """', "PARAMETER stop "):
        if part not in modelfile:
            raise Failure(f"the Modelfile has no {part}:\n{modelfile}")
    with open(os.path.join(demo, "data", "valid.jsonl")) as file:
        texts = [json.loads(line)["messages"][0]["content"] for line in file]
    check_tokens(out, gguf_file(folder), texts)
    return errors


def check_tokens(model, path, texts):
    """llama.cpp's tokens of each text must be those of the tokenizer."""
    wanted = subprocess.run(
        [os.path.join(CASES, "..", "..", "..", ".venv", "bin", "python3"),
         "-c", "import json, sys, tokenizers\n"
         "of = tokenizers.Tokenizer.from_file(sys.argv[1])\n"
         "print(json.dumps([of.encode(text, add_special_tokens=False).ids\n"
         "                  for text in json.load(sys.stdin)]))",
         os.path.join(model, "tokenizer.json")],
        input=json.dumps(texts), text=True, capture_output=True, check=True)
    sys.path.append(DATA)
    import read_gguf
    library, _ = read_gguf.find_llama()
    library.llama_tokenize.argtypes = (
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32,
        ctypes.POINTER(ctypes.c_int32), ctypes.c_int32, ctypes.c_bool,
        ctypes.c_bool)
    with read_gguf.Llama(library, path, None, [{"input_ids": [0]}]) as llama:
        for text, ids in zip(texts, json.loads(wanted.stdout)):
            out = (ctypes.c_int32 * 4096)()
            count = library.llama_tokenize(
                llama.vocabulary, text.encode(), len(text.encode()), out,
                4096, False, False)
            if out[:count] != ids:
                raise Failure(f"llama.cpp's tokens of {text!r} are "
                              f"{out[:count]}, not {ids}")


# ---------------------------------------------------------------- quality ---

def random_model(work, layers=4, width=512):
    """Writes a Llama with random weights, whose rows have whole blocks of all
    types, and an adapter."""
    base, adapter = (os.path.join(work, name) for name in ("model", "lora"))
    os.makedirs(base)
    os.makedirs(adapter)
    with open(os.path.join(base, "config.json"), "w") as file:
        json.dump({"architectures": ["LlamaForCausalLM"],
                   "model_type": "llama", "vocab_size": 1024,
                   "hidden_size": width, "intermediate_size": 2 * width,
                   "num_hidden_layers": layers, "num_attention_heads": 8,
                   "num_key_value_heads": 8, "max_position_embeddings": 128,
                   "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
                   "hidden_act": "silu", "torch_dtype": "float32"}, file)
    shapes = {"model.embed_tokens.weight": (1024, width),
              "lm_head.weight": (1024, width), "model.norm.weight": (width,)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        for norm in ("input", "post_attention"):
            shapes[f"{prefix}{norm}_layernorm.weight"] = (width,)
        for name in "qkvo":
            shapes[f"{prefix}self_attn.{name}_proj.weight"] = (width, width)
        for name in ("gate", "up"):
            shapes[f"{prefix}mlp.{name}_proj.weight"] = (2 * width, width)
        shapes[f"{prefix}mlp.down_proj.weight"] = (width, 2 * width)
    random = np.random.default_rng(7)
    safetensors_io.save(os.path.join(base, "model.safetensors"), {
        name: random.standard_t(4, shape).astype(np.float32) / 30
        for name, shape in shapes.items()})
    with open(os.path.join(adapter, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 1, "lora_alpha": 1,
                   "target_modules": ["q_proj"],
                   "base_model_name_or_path": base}, file)
    prefix = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    safetensors_io.save(
        os.path.join(adapter, "adapter_model.safetensors"),
        {f"{prefix}A.weight": np.ones((1, width), np.float32),
         f"{prefix}B.weight": np.ones((width, 1), np.float32) / 1000})
    return adapter


def quantized_by_llama(library, values, kind):
    """Returns what llama.cpp's quantizer makes of a matrix."""
    import gguf
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    out = np.zeros(values.size // block * size, np.uint8)
    library.ggml_quantize_chunk(
        ctypes.c_int(int(kind)), values.ctypes.data_as(ctypes.c_void_p),
        out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(0),
        ctypes.c_int64(rows), ctypes.c_int64(columns), None)
    return gguf.dequantize(out.reshape(rows, -1), kind)


def check_quality(tools, work):
    """The squared error of each quantized tensor is at most llama.cpp's."""
    import gguf
    sys.path.append(DATA)
    import read_gguf
    library, _ = read_gguf.find_llama()
    library.ggml_quantize_chunk.restype = ctypes.c_size_t
    adapter, errors = random_model(work), {}
    files = {}
    for kind in ("f32", "q8_0", "q4_0", "q5_k_m", "q4_k_m"):
        folder = os.path.join(work, kind)
        export(tools, [adapter, "--to", "gguf", "--no-verify", "--outtype",
                       kind, "-o", folder], work)
        files[kind] = tensors_of(gguf_file(folder))
    exact = {name: np.ascontiguousarray(tensor.data, np.float32)
             for name, tensor in files.pop("f32").items()}
    for tensors in files.values():
        for name, tensor in tensors.items():
            kind = tensor.tensor_type
            if kind == gguf.GGMLQuantizationType.F32:
                continue
            ours = gguf.dequantize(tensor.data, kind)
            theirs = quantized_by_llama(library, exact[name], kind)
            record(errors, f"error of {kind.name}",
                   np.square(ours - exact[name]).sum(),
                   np.square(theirs - exact[name]).sum())
    if len(errors) != 5:  # Q8_0, Q4_0, Q4_K, Q5_K, Q6_K
        raise Failure(f"not all types were compared: {sorted(errors)}")
    return errors


# ------------------------------------------------------------------- main ---

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--types", default=",".join(TYPES))
    for check in CHECKS:
        parser.add_argument(f"--{check}", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    tools = os.path.abspath(options.tools)
    results = {name: attempt(lambda work, name=name: check_case(
        tools, name, work, options.types.split(","))) for name in options.names}
    for check, parts in CHECKS.items():
        if getattr(options, check):
            for part in parts:
                results[part.__name__.removeprefix("check_")] = attempt(
                    lambda work, part=part: part(tools, work))
    return goldens.conclude("gguf", results)


CHECKS = {"refusals": (check_refusals, check_memory), "demo": (check_demo,),
          "quality": (check_quality,)}

if __name__ == "__main__":
    sys.exit(main())
