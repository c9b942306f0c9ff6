# SPDX-License-Identifier: MIT

"""The baseline on a GPU: transformers + PEFT, on a model of random weights.

    baseline_gpu.py CONFIG.json --batch B --length T --accumulation N --rank R
                --warm-up N --steps N [--checkpointing] [--device cuda]
                [--weights bitsandbytes|torch|compiled|bf16]

The default of --weights is the first of these forms that can run:

    bitsandbytes  NF4 with double quantization, if bitsandbytes is installed
    compiled      the same format by nf4_torch.py, with torch.compile; needs a
                  GPU and Triton
    torch         nf4_torch.py without torch.compile

bf16 is LoRA on unquantized weights. Prints one JSON object: what ran, the
median tokens per second of the steps after the warm-up, and the peak GiB that
PyTorch allocated.
"""

import argparse
import importlib.util
import json
import statistics
import time

import peft
import torch
import transformers

import nf4_torch


def default_weights():
    has_triton = importlib.util.find_spec("triton") is not None
    return ("bitsandbytes" if importlib.util.find_spec("bitsandbytes")
            else "compiled" if has_triton and torch.cuda.is_available()
            else "torch")


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    for name in ("batch", "length", "accumulation", "rank", "warm-up",
                 "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--weights", default=default_weights(), choices=(
        "bitsandbytes", "torch", "compiled", "bf16"))
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("error: torch sees no CUDA device")
    return options


def bitsandbytes_layer(module, device):
    """Returns a copy of a linear layer in the form that load_in_4bit makes."""
    import bitsandbytes
    layer = bitsandbytes.nn.Linear4bit(
        module.in_features, module.out_features,
        bias=module.bias is not None, compute_dtype=torch.bfloat16,
        compress_statistics=True, quant_type="nf4", device="meta")
    layer.weight = bitsandbytes.nn.Params4bit(
        module.weight.data, requires_grad=False, quant_type="nf4",
        compress_statistics=True).to(device)
    layer.bias = module.bias
    return layer


def quantize(model, make_layer):
    """Replaces all linear layers except the LM head by make_layer(layer)."""
    for name, module in list(model.named_modules()):
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, make_layer(module))


def quantized(model, options):
    """Quantizes the model as --weights requests. Returns a description."""
    if options.weights == "bf16":
        return "bf16 LoRA, not quantized"
    if options.weights == "bitsandbytes":
        quantize(model, lambda layer: bitsandbytes_layer(layer,
                                                         options.device))
        return "bitsandbytes NF4 with double quantization"
    if options.weights == "compiled":
        nf4_torch.Linear.decode = staticmethod(
            torch.compile(nf4_torch.decode, dynamic=True))
    quantize(model, nf4_torch.Linear)
    return (f"NF4 with double quantization, decoded by PyTorch "
            f"{torch.__version__} ({options.weights}; no bitsandbytes)")


def build(options):
    """Returns the adapted model and its description."""
    torch.manual_seed(0)
    config = transformers.AutoConfig.from_pretrained(options.config)
    with torch.device(options.device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa")
    weights = quantized(model, options)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=options.rank, lora_alpha=2 * options.rank,
        target_modules="all-linear", task_type="CAUSAL_LM"))
    if options.checkpointing:
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable(
            gradient_checkpointing_kwargs={"use_reentrant": False})
    model.config.use_cache = False
    return model.train(), (f"transformers {transformers.__version__} + PEFT "
                           f"{peft.__version__}, {weights}")


def synchronize(options):
    if options.device == "cuda":
        torch.cuda.synchronize()


def step(model, optimizer, batches, options):
    """Returns the seconds of one optimizer step, and its loss."""
    synchronize(options)
    start, total = time.perf_counter(), 0.0
    for ids in batches:
        with torch.autocast(options.device, torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss / len(batches)
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    synchronize(options)
    return time.perf_counter() - start, float(total)


def measure(model, what, options):
    """Trains, and returns the figures that main() prints. Also called by
    baseline_unsloth.py."""
    if options.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, model.config.vocab_size,
                             (options.batch, options.length),
                             generator=generator).to(options.device)
               for _ in range(options.accumulation)]
    done = [step(model, optimizer, batches, options)
            for _ in range(options.warm_up + options.steps)]
    seconds = [taken for taken, _ in done[options.warm_up:]]
    tokens = options.batch * options.length * options.accumulation
    peak = (torch.cuda.max_memory_allocated() / 2**30
            if options.device == "cuda" else None)
    return {"what": f"{what}, {options.device}", "step_times": seconds,
            "losses": [loss for _, loss in done], "peak_gib": peak,
            "tokens_per_second": tokens / statistics.median(seconds)}


def main():
    options = parse_arguments()
    transformers.logging.set_verbosity_error()
    print(json.dumps(measure(*build(options), options)))


if __name__ == "__main__":
    main()
