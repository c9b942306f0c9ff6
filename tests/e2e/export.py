#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Exports the adapters of golden cases, and checks what was written.

    export.py --tools build/bin [--logits] [CASE ...]
    export.py --tools build/bin --faults

Each case is trained. Its adapter is merged into the values that the training
computed with, in float32. Then the loss of the merged model must be that of the
training's program with the adapter, and it must differ from the base's. Every
way to merge must give a folder that qlora reads.

--logits needs the Python of .venv/peft. transformers must load the merged
folder, with all tensors as they were written, and with the logits of PEFT's
merge_and_unload().

--faults: errors, a full disk, and the memory of an export.
"""

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

import golden_case
import goldens
import peft_logits
import safetensors_io
from golden_case import Failure, run, settings

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = os.path.join(HERE, "..", "Inputs", "goldens")
# A merged weight is rounded once more than W x + s B A x.
LOSS = 1e-4
READER = sys.executable  # reads exports
# The forward that --rl and rounded activations do not have.
UNMERGED = {"llama-int8-activations": "the training rounds activations"}


def qlora(tools, words, work, **more):
    """Runs `qlora export`; returns the finished process."""
    environment = {**os.environ, "XDG_CACHE_HOME": os.path.join(work, "cache"),
                   "QLORA_READER_PYTHON": READER}
    return subprocess.run([os.path.join(tools, "qlora"), "export", *words],
                          text=True, capture_output=True, env=environment,
                          **more)


def export(tools, words, work):
    done = qlora(tools, words, work)
    if done.returncode:
        raise Failure(f"qlora export {' '.join(words)} exited "
                      f"{done.returncode}\n{done.stderr[-2000:]}")
    return done


def trained(tools, name, work):
    """Trains a case. Returns the output folder."""
    case, out = os.path.join(CASES, name), os.path.join(work, "out")
    os.makedirs(work, exist_ok=True)
    with open(os.path.join(case, "case.json")) as file:
        imported = json.load(file).get("import_flags", [])
    module = goldens.build(tools, case, work, [], imported)
    run([f"{tools}/qlora-run", module, "--config",
         os.path.join(case, "train.yaml"), "--base-cache", "none",
         "--output-dir", out], os.path.join(work, "log.txt"))
    return out


def report_of(folder):
    with open(os.path.join(folder, "export.json")) as file:
        return json.load(file)


def record(errors, what, difference, limit):
    """Like golden_case.check(), but also records a difference of zero."""
    errors.setdefault(what, (0, 0))
    golden_case.check(errors, what, np.abs(difference).max(), limit)


def check_losses(report, errors):
    """Compares the loss of the merged model with the training's."""
    after, before = (report[f"loss_{when}_training"]
                     for when in ("after", "before"))
    if after is None:
        raise Failure("the training's loss was not measured")
    if abs(after - before) < 10 * LOSS:
        raise Failure(f"the adapter changes the loss {before} only to {after}")
    record(errors, "merged loss", report["artefacts"][0]["loss"] - after, LOSS)


def check_logits(case, out, merged, errors):
    """Compares the merged model in transformers with the adapter in PEFT, whose
    merging changes both ends of a tied embedding."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM
    import peft_model
    ids = peft_model.first_row(settings(case)["train_file"])
    base = peft_model.load_base(case)
    ours = AutoModelForCausalLM.from_pretrained(
        merged, torch_dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        plain = base(input_ids=ids, use_cache=False).logits.numpy().copy()
        model = PeftModel.from_pretrained(base, out).eval()
        want = model(input_ids=ids, use_cache=False).logits.numpy()
        got = ours(input_ids=ids, use_cache=False).logits.numpy()
    if not np.abs(want - plain).max() >= 100 * golden_case.LOGITS:
        raise Failure("PEFT's logits with the adapter are those without it")
    record(errors, "logits", got - want, golden_case.LOGITS)


def check_values(base, out, merged, errors):
    """Compares the merged weights of linears with base + scale * B A."""
    weights, got = ({} for _ in range(2))
    for folder, into in ((base, weights), (merged, got)):
        into.update(safetensors_io.load(os.path.join(folder,
                                                     "model.safetensors")))
    with open(os.path.join(out, "adapter_config.json")) as file:
        config = json.load(file)
    adapter = safetensors_io.load(os.path.join(out,
                                               "adapter_model.safetensors"))
    end = ".lora_A.weight"
    for name, a in adapter.items():
        if not name.endswith(end):
            continue
        module = name.removesuffix(end)
        weight = module.removeprefix(peft_logits.PREFIX) + ".weight"
        rank = len(a) ** 0.5 if config["use_rslora"] else len(a)
        change = config["lora_alpha"] / rank * (
            adapter[f"{module}.lora_B.weight"] @ a)
        if not np.abs(change).max() >= 1e-4:
            raise Failure(f"{name} changes nothing")
        record(errors, "merged weight",
               got[weight] - weights[weight] - change, 1e-6)


def check_reader(artefact, errors):
    if artefact["not_checked"] or not artefact["reader_equal_tensors"]:
        raise Failure(f"the reader checked nothing: {artefact}")
    record(errors, "reader's loss",
           artefact["reader_loss"] - artefact["loss"], 1e-3)


def check_case(tools, name, work, with_logits):
    case, errors = os.path.join(CASES, name), {}
    out = trained(tools, name, work)
    with open(os.path.join(out, "config.resolved.yaml")) as file:
        resolved = dict(line.split(": ", 1) for line in file)
    exact, merged = (os.path.join(work, end) for end in ("exact", "merged"))
    factors = peft_logits.WITHOUT.get(name) in (peft_logits.FACTORS,
                                                peft_logits.FACTORS_NF4)
    export(tools, [out, "--outtype", "f32", "-o", exact,
                   *(["--merge-into", "files"] if factors else
                     merge_into(case, resolved))], work)
    report = report_of(exact)
    if factors:
        check_values(settings(case)["model_name_or_path"], out, exact, errors)
    elif name not in UNMERGED:
        check_losses(report, errors)
    if with_logits:
        check_reader(report["artefacts"][0], errors)
        check_logits(case, out, exact, errors)
    export(tools, [out, "-o", merged, "--max-shard-size", "20kB"], work)
    report = report_of(merged)
    losses = [artefact["loss"] for artefact in report["artefacts"]]
    if losses[0] != min(losses):
        raise Failure(f"the written model has not the smallest loss: {losses}")
    if with_logits:
        check_reader(report["artefacts"][0], errors)
    check_peft(tools, out, work, with_logits,
               "files" in merge_into(case, resolved), errors)
    return errors


def check_peft(tools, out, work, with_reader, is_exact, errors):
    """Exports the adapter alone. If the training's base was not quantized, PEFT
    must compute its loss."""
    folder = os.path.join(work, "peft")
    export(tools, [out, "--to", "peft", "-o", folder], work)
    artefact, = report_of(folder)["artefacts"]
    if with_reader and not artefact["not_checked"]:
        if not artefact["reader_equal_tensors"]:
            raise Failure(f"PEFT read nothing: {artefact}")
        if is_exact:
            record(errors, "PEFT's loss", artefact["reader_difference"], 1e-3)


def merge_into(case, resolved):
    """Returns the flags that select the values of the training."""
    with open(os.path.join(settings(case)["model_name_or_path"],
                           "config.json")) as file:
        stored = "quantization_config" in json.load(file)
    reads = any(resolved[key].strip() == "true"
                for key in ("load_in_4bit", "load_in_8bit"))
    return ["--merge-into", "dequantized" if stored or reads else "files"]


# ------------------------------------------------------------------ faults ---

def expect_error(done, *words):
    lines = done.stderr.strip().splitlines()
    if done.returncode != 1 or not lines or not all(
            word in lines[-1] for word in words):
        raise Failure(f"expected an error with {words}, but got "
                      f"{done.returncode}:\n{done.stderr}")


def leftovers(work):
    return [name for name in os.listdir(work) if ".part." in name]


def limited(size):
    """Returns a function that limits the files of a process, like a full
    disk."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return limit


def copied_with(out, work, change):
    """Copies an adapter, and lets `change` change its tensors."""
    copy = os.path.join(work, "changed")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(out, copy)
    path = os.path.join(copy, "adapter_model.safetensors")
    tensors = {name: tensor.copy()
               for name, tensor in safetensors_io.load(path).items()}
    change(tensors)
    safetensors_io.save(path, tensors)
    return copy


def check_errors(tools, work):
    out = trained(tools, "llama-nf4", work)
    plain = [out, "--no-verify", "--merge-into", "files", "-o",
             os.path.join(work, "merged")]

    def spoil(tensors):
        next(iter(tensors.values())).flat[0] = np.nan

    def widen(tensors):
        for name, tensor in tensors.items():
            if name.endswith("q_proj.lora_B.weight"):
                tensors[name] = np.concatenate([tensor, tensor])
    for change, words in ((spoil, ("has the value nan",)),
                          (widen, ("has shape", "--base DIR"))):
        expect_error(qlora(tools, [copied_with(out, work, change), *plain[1:]],
                           work), *words)
    other = os.path.join(CASES, "gpt2", "model")
    expect_error(qlora(tools, [*plain, "--base", other], work), "--base")
    other = os.path.join(CASES, "llama-yarn", "model")
    expect_error(qlora(tools, [*plain, "--base", other], work),
                 "is another model than")
    expect_error(qlora(tools, [*plain[:2], *plain[4:]], work),
                 "--merge-into dequantized")
    expect_error(qlora(tools, [*plain[:4], "-o", out], work), "is not empty")
    expect_error(qlora(tools, ["/nonexistent"], work), "does not exist")
    bias = trained(tools, "llama-lora-bias", os.path.join(work, "bias"))
    expect_error(qlora(tools, [bias, *plain[1:]], work), "is a bias")
    expect_error(qlora(tools, plain, work, preexec_fn=limited(100000)),
                 "merged.part", "File too large")
    if leftovers(work):
        raise Failure(f"left behind: {leftovers(work)}")
    export(tools, plain, work)
    expect_error(qlora(tools, plain, work), "is not empty")
    export(tools, [*plain, "--overwrite"], work)
    if leftovers(work):
        raise Failure(f"left behind: {leftovers(work)}")
    return {"left behind": (0, 0)}


def large_model(work, vocabulary=96000, width=512):
    """Writes a Llama whose embedding is its largest tensor, and an adapter."""
    base, adapter = (os.path.join(work, name) for name in ("large", "lora"))
    os.makedirs(base)
    os.makedirs(adapter)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
              "vocab_size": vocabulary, "hidden_size": width,
              "intermediate_size": width, "num_hidden_layers": 1,
              "num_attention_heads": 4, "num_key_value_heads": 4,
              "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
              "tie_word_embeddings": True, "hidden_act": "silu",
              "torch_dtype": "float16"}
    with open(os.path.join(base, "config.json"), "w") as file:
        json.dump(config, file)
    linears = [f"self_attn.{name}_proj" for name in "qkvo"] + [
        f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    shapes = {"model.embed_tokens.weight": (vocabulary, width),
              "model.norm.weight": (width,),
              **{f"model.layers.0.{norm}_layernorm.weight": (width,)
                 for norm in ("input", "post_attention")},
              **{f"model.layers.0.{name}.weight": (width, width)
                 for name in linears}}
    safetensors_io.save(os.path.join(base, "model.safetensors"),
                        {name: np.ones(shape, np.float16)
                         for name, shape in shapes.items()})
    with open(os.path.join(adapter, "adapter_config.json"), "w") as file:
        json.dump({"peft_type": "LORA", "r": 4, "lora_alpha": 4,
                   "target_modules": ["embed_tokens", "q_proj"],
                   "base_model_name_or_path": base}, file)
    prefix = "base_model.model.model."
    safetensors_io.save(
        os.path.join(adapter, "adapter_model.safetensors"),
        {f"{prefix}embed_tokens.lora_embedding_A":
             np.ones((4, vocabulary), np.float32),
         f"{prefix}embed_tokens.lora_embedding_B":
             np.ones((width, 4), np.float32),
         f"{prefix}layers.0.self_attn.q_proj.lora_A.weight":
             np.ones((4, width), np.float32),
         f"{prefix}layers.0.self_attn.q_proj.lora_B.weight":
             np.ones((width, 4), np.float32)})
    return adapter, 2 * vocabulary * width


def peak_of(tools, words, work):
    """Returns the peak resident bytes of `qlora export`, and its output. The
    system's rusage would count this process too, which starts it."""
    with open(os.path.join(work, "text"), "w+") as text:
        process = subprocess.Popen(
            [os.path.join(tools, "qlora"), "export", *words], stdout=text,
            stderr=subprocess.STDOUT,
            env={**os.environ, "XDG_CACHE_HOME": os.path.join(work, "cache")})
        peak = 0
        while process.poll() is None:
            with open(f"/proc/{process.pid}/status") as status:
                found = re.search(r"VmHWM:\s+(\d+) kB", status.read())
            peak = max(peak, int(found[1]) * 1024 if found else 0)
            time.sleep(0.001)
        text.seek(0)
        output = text.read()
    if process.returncode:
        raise Failure(f"qlora export failed:\n{output}")
    return peak, output


def bytes_of(text):
    """Parses "12.3 MiB"."""
    number, unit = text.split()
    return float(number) * 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)


def check_memory(tools, work):
    adapter, largest = large_model(work)
    words = [adapter, "--no-verify", "-o", os.path.join(work, "big")]
    idle, _ = peak_of(tools, [adapter, "--dry-run"], work)
    peak, output = peak_of(tools, words, work)
    stated = bytes_of(re.search(r"memory +([\d.]+ \w+)", output)[1])
    used = peak - idle
    errors = {}
    # Code of the writer and small allocations take 24 MiB at most.
    record(errors, "memory", used, stated + (24 << 20))
    record(errors, "stated memory", stated, 3 * largest)
    merged = safetensors_io.load(os.path.join(work, "big",
                                              "model.safetensors"))
    embedding = merged["model.embed_tokens.weight"]
    head = merged["lm_head.weight"]
    if not ((embedding == 5).all() and (head == 1).all()):
        raise Failure("the merged embedding or its head is wrong")
    return errors


# -------------------------------------------------------------------- main ---

def attempt(what):
    with tempfile.TemporaryDirectory() as work:
        try:
            return what(work)
        except Failure as failure:
            return failure


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", required=True)
    parser.add_argument("--logits", action="store_true")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    tools = os.path.abspath(options.tools)
    if options.faults:
        results = {"errors": attempt(lambda work: check_errors(tools, work)),
                   "memory": attempt(lambda work: check_memory(tools, work))}
    else:
        results = {name: attempt(lambda work, name=name: check_case(
            tools, name, work, options.logits)) for name in options.names}
    return goldens.conclude("export", results)


if __name__ == "__main__":
    sys.exit(main())
