#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Computes the references of the covering array's rows
(tests/e2e/covering_rows.py) with transformers, PEFT and bitsandbytes.

    covering.py --write covering.json [ROW ...]   adds missing rows, and
                                                  replaces the named ones
    covering.py --load DIR [ROW ...]              checks that PEFT gets our
                                                  logits from our adapters
                                                  (e2e/covering.py --keep DIR)

Needs torch, transformers, PEFT and bitsandbytes of the versions in the file.
Computes in float32 with eager attention. Models are decoded before they are
loaded; bnb_values.py (4 bits) and stored_formats.py (FP8, GPTQ, AWQ) confirm
the decoded values. Weights that are quantized on load are quantized by
bitsandbytes after loading.

A seed is used only if rounding does not matter: no router is near another
choice of experts, and the logits after training do not depend on the last bit
of a trainable parameter. If PiSSA's residual is rounded to the type of the
files, small differences between two SVDs must not matter either.
"""

import argparse
import json
import os
import sys
import tempfile

import numpy as np
import peft
import torch
import transformers
from peft.optimizers import create_loraplus_optimizer

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "..", "e2e"))
import safetensors_io  # noqa: E402
from covering_adapters import adapter_tensors, family_of  # noqa: E402
from covering_adapters import is_turned, lora_options  # noqa: E402
from covering_adapters import write_adapter  # noqa: E402
from covering_formats import FORMATS, rounded, widened  # noqa: E402
from covering_models import write_model  # noqa: E402
from covering_rows import STEPS, batches, covering_array  # noqa: E402
from covering_rows import name_of, sampled, settings  # noqa: E402
from bnb_values import decode_state  # noqa: E402
from covering_decoding import check_decoding  # noqa: E402
from other_golden import exact_svd, names_of  # noqa: E402

MARGIN, LIMIT = 1e-3, 5e-5
NUDGE = 2.0 ** -23
APART = 5e-8  # of the largest weight: how far apart two decompositions are
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.set_num_threads(1)


def make_linears(model):
    """Replaces Conv1D by Linear, as bitsandbytes does."""
    for name, module in list(model.named_modules()):
        if type(module).__name__ == "Conv1D":
            linear = torch.nn.Linear(*module.weight.shape)
            linear.weight.data = module.weight.data.T.contiguous()
            linear.bias = module.bias
            path, _, last = name.rpartition(".")
            setattr(model.get_submodule(path), last, linear)


def quantize_on_load(model, options):
    """Quantizes the weights of the layers' linears, and of experts if
    requested. Then replaces each weight by its decoded values."""
    from bitsandbytes import functional as F

    if not options:
        return

    def decoded(weight):
        if options.get("load_in_8bit"):
            codes, scales, _ = F.int8_vectorwise_quant(weight.half())
            return codes.float() * (scales[:, None] * (1 / 127))
        packed, state = F.quantize_4bit(
            weight.contiguous(), quant_type="nf4",
            blocksize=options.get("bnb_4bit_blocksize", 64),
            compress_statistics=options.get("bnb_4bit_use_double_quant",
                                            False))
        return decode_state(packed, state)

    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and not {
                "lm_head", "lora_A", "lora_B"} & set(name.split(".")):
            module.weight.data = decoded(module.weight.data)
    if options.get("quantize_moe_experts"):
        for _, weight in model.named_parameters():
            if weight.dim() == 3:
                weight.data = decoded(weight.data)


def load_base(row, seed):
    family, form = family_of(row), FORMATS[row["format"]]
    with tempfile.TemporaryDirectory() as work:
        folder = os.path.join(work, "decoded")
        write_model(folder, family, form, seed, decoded=True)
        config = transformers.AutoConfig.from_pretrained(folder)
        config._experts_implementation = "eager"
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            folder, config=config, torch_dtype=torch.float32,
            attn_implementation="eager", output_loading_info=True)
    left = {kind: names for kind, names in found.items() if names}
    if left:
        raise SystemExit(f"{name_of(row)}: {left}")
    if not form.is_plain():
        make_linears(model)
    return model


def as_in_files(tensor, row):
    return torch.tensor(widened(rounded(tensor.detach().numpy(),
                                        FORMATS[row["format"]].dtype)))


def factored(model, row):
    """Attaches PEFT's PiSSA adapter. Rounds the residual of each weight to the
    type of the files, and then quantizes it if the row quantizes on load. Also
    returns the residuals without rounding."""
    exact_svd()
    model = peft.get_peft_model(model, peft.LoraConfig(
        task_type="CAUSAL_LM", lora_dropout=0.0,
        fan_in_fan_out=is_turned(row), **lora_options(row)))
    named = names_of(model)
    rest = {name: p.detach().clone() for name, p in model.named_parameters()
            if not p.requires_grad}
    for name, p in model.named_parameters():
        if name.endswith(".base_layer.weight"):
            p.data = as_in_files(p, row)
    quantize_on_load(model, FORMATS[row["format"]].options)
    return model, named, rest


def rounds_apart(model, rest, row, ids):
    """Returns the largest change of the logits if PiSSA's residual is a little
    smaller or larger before it is rounded to the type of the files."""
    bases = {name: p for name, p in model.named_parameters()
             if name.endswith(".base_layer.weight")}
    if not bases or FORMATS[row["format"]].options:
        return 0.0
    logits = []
    for share in (-APART, APART, 0):
        for name, p in bases.items():
            left = rest[name]
            p.data = as_in_files(left + share * left.abs().max(), row)
        with torch.no_grad():
            logits.append(model(input_ids=ids).logits)
    return max(float((other - logits[2]).abs().max()) for other in logits)


def adapted(model, row, seed):
    """Returns PEFT's model with the initial adapter, its trainable parameters
    by the names that PEFT saves, and for PiSSA the residuals of factored().
    Without an adapter: the model and its own parameters."""
    options = lora_options(row)
    if row["adapter"] == "pissa":
        return factored(model, row)
    quantize_on_load(model, FORMATS[row["format"]].options)
    if options is None:
        return model, dict(model.named_parameters()), {}
    options.pop("loraplus_lr_ratio", None)
    with tempfile.TemporaryDirectory() as folder:
        write_adapter(folder, row, seed)
        model = peft.PeftModel.from_pretrained(model, folder,
                                               is_trainable=True)
    saved = peft.get_peft_model_state_dict(model, save_embedding_layers=False)
    want = adapter_tensors(row, seed)
    if set(saved) != set(want):
        raise SystemExit(f"{name_of(row)}: PEFT has other tensors: "
                         f"{sorted(set(saved) ^ set(want))}")
    for name, tensor in saved.items():
        np.testing.assert_array_equal(tensor.detach().numpy(), want[name],
                                      err_msg=name)
    names = {tensor.data_ptr(): name for name, tensor in saved.items()}
    return model, {names[p.data_ptr()]: p for p in model.parameters()
                   if p.requires_grad}, {}


def optimizer_of(model, named, row):
    values = settings(row)
    rate, decay = values["learning_rate"], values["weight_decay"]
    if ratio := values.get("loraplus_lr_ratio"):
        return create_loraplus_optimizer(
            model, torch.optim.AdamW, lr=rate, eps=values["adam_epsilon"],
            loraplus_lr_ratio=ratio, loraplus_weight_decay=decay)
    undecayed = {id(p) for m in model.modules() for n, p
                 in m.named_parameters(recurse=False)
                 if "bias" in n or "Norm" in type(m).__name__}
    groups = [{"params": [p for p in named.values() if id(p) not in undecayed],
               "weight_decay": decay},
              {"params": [p for p in named.values() if id(p) in undecayed],
               "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, eps=values["adam_epsilon"])


def watch_routers(model):
    """Returns a list of margins between chosen experts and the next best."""
    margins = [float("inf")]

    def hook(module, _, out):
        best = out[0].detach().topk(module.top_k + 1).values
        margins.append(float((best[:, -2] - best[:, -1]).min()))
    for module in model.modules():
        if type(module).__name__.endswith("TopKRouter"):
            module.register_forward_hook(hook)
    return margins


def train(row, seed):
    """Returns None if a router's choice, PiSSA's residual, or the result
    depends on rounding."""
    check_decoding(row, seed)
    found = steps(row, seed)
    if found is None:
        return None
    moved = steps(row, seed, NUDGE)["after"] - found["after"]
    if np.abs(moved).max() > LIMIT / 2:
        return None
    return found | {name: sampled(found[name]) for name in ("before", "after")}


def steps(row, seed, nudge=0.0):
    """Trains from values that are larger by the factor 1 + `nudge`. Adam's
    first update has the same size however small a gradient is, so with some
    seeds the last bit matters."""
    model = load_base(row, seed)
    margins = watch_routers(model)
    model, named, rest = adapted(model, row, seed)
    optimizer = optimizer_of(model, named, row)
    data = {name: torch.tensor(values).long()
            for name, values in batches(row, seed).items()}
    if row["adapter"] == "pissa" and rounds_apart(
            model, rest, row, data["input_ids"][0]) > LIMIT:
        return None
    with torch.no_grad():
        for p in named.values():
            p.mul_(1 + nudge)
    losses, norms = [], []
    model.train()
    for step in range(STEPS):
        rows = range(step * row["ranks"], (step + 1) * row["ranks"])
        count = sum(int((data["labels"][i][:, 1:] != -100).sum())
                    for i in rows)
        total = 0.0
        for i in rows:
            logits = model(input_ids=data["input_ids"][i]).logits
            if step == 0 and i == 0:
                before = logits.detach().numpy()
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), data["labels"][i][:, 1:]
                .flatten(), reduction="sum") / count
            loss.backward()
            total += loss.item()
        norms.append(float(torch.nn.utils.clip_grad_norm_(
            named.values(), settings(row)["max_grad_norm"])))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    if row["adapter"] == "full":  # what comes out has the type of the files
        for p in named.values():
            p.data = as_in_files(p, row)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(rest.get(name, p))
        after = model(input_ids=data["input_ids"][0]).logits.numpy()
    if min(margins) < MARGIN and not nudge:
        return None
    return {"seed": seed, "loss": losses, "grad_norm": norms,
            "before": before, "after": after}


def write(path, rows, anew):
    results = {}
    if os.path.exists(path):
        with open(path) as file:
            results = json.load(file)["rows"]
    for name, row in rows.items():
        if name in results and name not in anew:
            continue
        found = next(filter(None, (train(row, seed) for seed in range(1, 200))))
        results[name] = found
        print(f"{name}: seed {found['seed']}, loss {found['loss']}, grad norm "
              f"{found['grad_norm']}", flush=True)
        save(path, rows, results)


def save(path, rows, results):
    import bitsandbytes
    text = {"versions": {module.__name__: module.__version__ for module in (
        torch, transformers, peft, bitsandbytes)}, "rows": {}}
    with open(path, "w") as file:
        head = json.dumps(text)[:-2]
        lines = [f"{json.dumps(name)}: {json.dumps(short(results[name]))}"
                 for name in rows if name in results]
        file.write(head + "\n" + ",\n".join(lines) + "\n}}\n")


def short(value):
    """Numbers with as many digits as float32 has."""
    if isinstance(value, float):
        return float(f"{value:.8g}")
    if isinstance(value, list):
        return [short(entry) for entry in value]
    if isinstance(value, dict):
        return {name: short(entry) for name, entry in value.items()}
    return value


def load(folder, path, rows):
    with open(path) as file:
        seeds = json.load(file)["rows"]
    worst = []
    for name, row in rows.items():
        out = os.path.join(folder, name, "out")
        if not os.path.exists(os.path.join(out, "adapter_model.safetensors")):
            continue
        model = peft.PeftModel.from_pretrained(
            load_base(row, seeds[name]["seed"]), out)
        ids = torch.tensor(batches(row, seeds[name]["seed"])["input_ids"][0])
        with torch.no_grad():
            theirs = model(input_ids=ids.long()).logits.numpy()
        ours = safetensors_io.load(os.path.join(out, "after.safetensors"))
        error = float(abs(ours["logits"].reshape(theirs.shape)
                          - theirs).max())
        worst.append(error)
        print(f"{'ok  ' if error <= LIMIT else 'FAIL'} {name}: logits within "
              f"{error:.1e}", flush=True)
    bad = sum(not error <= LIMIT for error in worst)
    print(f"peft {peft.__version__}: {len(worst) - bad} adapters loaded with "
          f"our logits, {bad} not")
    return 1 if bad or not worst else 0


def main():
    parser = argparse.ArgumentParser()
    here = os.path.dirname(os.path.abspath(__file__))
    parser.add_argument("--write")
    parser.add_argument("--load")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    rows = covering_array()
    if options.load:
        if options.names:
            rows = {name: rows[name] for name in options.names}
        return load(options.load, os.path.join(here, "covering.json"), rows)
    write(options.write, rows, options.names)
    return 0


if __name__ == "__main__":
    sys.exit(main())
