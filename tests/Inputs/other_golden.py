#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case TO with the model and data of the case FROM.

    other_golden.py full FROM TO        full fine-tuning, with decay
    other_golden.py unfrozen FROM TO    the same for UNFROZEN; FROM is of `full`
    other_golden.py loraplus FROM TO    a higher learning rate for B, by PEFT's
                                        LoRA+
    other_golden.py KIND FROM TO        adapters of KINDS, with the same model

Needs torch, transformers, peft and safetensors, and bitsandbytes for 4 bits.
Their versions are in case.json. `full` has its own model folder, in float32, so
that the result can be compared with PyTorch's values.

PiSSA, OLoRA and LoftQ compute the initial adapter from the model's weights, so
these cases have no adapter file. Singular vectors are only determined up to
their signs. So these cases expect magnitudes of gradients, and the change of
each adapted weight, as `delta.`.
"""

import json
import os
import re
import sys

import numpy as np
import peft
import torch
import transformers
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file

from bnb_values import decode_state

# PEFT's options, and whether the base has 4 bits.
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
       "down_proj"]
FACTORS = {"r": 4, "lora_alpha": 8, "target_modules": ALL}
KINDS = {
    "bias-all": ({"bias": "all"}, False),
    "bias-lora-only": ({"bias": "lora_only", "r": 4, "lora_alpha": 8,
                        "target_modules": ["q_proj", "v_proj", "down_proj"]},
                       False),
    "pissa": (FACTORS | {"init_lora_weights": "pissa"}, False),
    "pissa-niter": (FACTORS | {"init_lora_weights": "pissa_niter_4"}, False),
    "olora": (FACTORS | {"init_lora_weights": "olora", "use_rslora": True},
              False),
    "pissa-nf4": (FACTORS | {"init_lora_weights": "pissa"}, True),
    "loftq": (FACTORS | {"init_lora_weights": "loftq"}, True),
}
# Layer 0's MLP needs a gradient through layer 1; lm_head is the embedding's.
UNFROZEN = ["^model.layers.1.self_attn", "model.norm.weight$",
            ".+.0.mlp.up_proj", "^lm_head"]
STEPS, DECAY, RATIO = 6, 0.1, 8.0
# Biases of keys do not change a softmax, so their gradients are rounding
# errors. With a usual epsilon AdamW would make full steps of them.
EPSILON = 1e-5
transformers.logging.set_verbosity_error()
torch.set_num_threads(1)  # the matrices are small


def load(folder):
    """Loads a model in float32. Replaces the keys of config.json that only
    newer versions of transformers read."""
    with open(os.path.join(folder, "config.json")) as file:
        config = json.load(file)
    config.pop("dtype", None)
    rope = config.pop("rope_parameters", {})
    config |= {"rope_theta": rope.pop("rope_theta", 10000.0),
               "torch_dtype": "float32"}
    if rope.get("rope_type", "default") != "default":
        config["rope_scaling"] = rope
    config = transformers.AutoConfig.for_model(**config)
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, torch_dtype=torch.float32,
        attn_implementation="eager")


def save(model, source, to):
    """Writes the model folder `to` in float32, with tied weights once."""
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(source, "config.json")) as file:
        config = json.load(file)
    config["dtype"] = "float32"
    with open(os.path.join(to, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
    save_file({n: p.detach().contiguous()
               for n, p in model.named_parameters()},
              os.path.join(to, "model.safetensors"), metadata={"format": "pt"})


def full_optimizer(model, case):
    """Makes Trainer's two groups: neither biases nor norms have weight
    decay."""
    undecayed = {f"{path}.{name}" for path, module in model.named_modules()
                 for name, _ in module.named_parameters(recurse=False)
                 if name == "bias" or "Norm" in type(module).__name__}
    named = {name: p for name, p in model.named_parameters()
             if p.requires_grad}
    groups = [{"params": [p for n, p in named.items() if n not in undecayed],
               "weight_decay": DECAY},
              {"params": [p for n, p in named.items() if n in undecayed],
               "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=case["learning_rate"],
                             eps=EPSILON), named


def freeze_layers_except(model, patterns):
    """As axolotl's utils/freeze.py."""
    for name, p in model.named_parameters():
        p.requires_grad = any(
            re.match(re.sub(r"\.(?!\+)", r"\.", pattern), name)
            for pattern in patterns)


def lora_plus_optimizer(model, case):
    named = names_of(model)
    return create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=case["learning_rate"],
        loraplus_lr_ratio=RATIO, loraplus_weight_decay=DECAY), named


def decoded(weight):
    """Returns a weight after quantization to bitsandbytes' NF4."""
    from bitsandbytes.functional import quantize_4bit
    return decode_state(*quantize_4bit(weight, quant_type="nf4"))


def adapted(model):
    return {name: module for name, module in model.named_modules()
            if isinstance(module, peft.tuners.lora.LoraLayer)}


def delta(module):
    """Returns the adapter's change of its weight."""
    return (module.scaling["default"] * module.lora_B["default"].weight
            @ module.lora_A["default"].weight).detach().clone()


def exact_svd(svd=torch.linalg.svd):
    """Computes SVDs in float64: float32 rounding rotates the vectors of nearly
    equal singular values, differently in each implementation."""
    torch.linalg.svd = lambda w, **options: tuple(
        part.float() for part in svd(w.double(), **options))


def normal_draws(seed, name, count):
    """The draws of runtime/Weights/ParameterInit.cpp: a stream of splitmix64
    for each weight, and the Box-Muller transform of two of its numbers."""
    def mix(x):
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
        return x ^ x >> np.uint64(31)
    fnv = 0xcbf29ce484222325
    for byte in name.encode():
        fnv = (fnv ^ byte) * 0x100000001b3 % 2**64
    stream = mix(mix(np.array([seed], np.uint64)) ^ np.uint64(fnv))
    index = np.arange(1, 2 * count + 1, dtype=np.uint64)
    drawn = mix(stream + index * np.uint64(0x9e3779b97f4a7c15))
    first, second = ((drawn >> np.uint64(11)) * 2.0**-53).reshape(-1, 2).T
    return (np.sqrt(-2 * np.log(1 - first)) * np.cos(2 * np.pi * second)
            ).astype(np.float32)


def subspace_iteration(model, seed):
    """Replaces PEFT's SVD for pissa_niter_N, with float64 and our own draws:
    Halko et al. (2011), algorithm 4.4. torch transposes a wide matrix first."""
    names = {p.data_ptr(): name for name, p in model.named_parameters()}

    def svd(weight, rank, niter):
        draws = normal_draws(seed, names[weight.data_ptr()],
                             weight.shape[1] * rank)
        w = weight.double()
        q = w @ torch.from_numpy(draws).double().reshape(-1, rank)
        for _ in range(niter):
            q = w @ torch.linalg.qr(w.T @ torch.linalg.qr(q).Q).Q
        q = torch.linalg.qr(q).Q
        u, s, v = torch.linalg.svd(q.T @ w, full_matrices=False)
        return (q @ u.double()).float(), s.float(), v.T.float()
    peft.tuners.lora.layer.svd_lowrank = svd


def factored(model, options, is_packed, seed):
    """Returns the model with PEFT's adapter. In 4 bits PiSSA's residual is
    quantized, and LoftQ starts at the quantization error. PEFT's LoftQ needs a
    GPU, so only its low-rank decomposition is called."""
    from peft.utils.loftq_utils import _low_rank_decomposition
    exact_svd()
    subspace_iteration(model, seed)
    is_loftq = options["init_lora_weights"] == "loftq"
    config = peft.LoraConfig(**options | (
        {"init_lora_weights": True} if is_loftq else {}))
    model = peft.get_peft_model(model, config)
    if not is_packed:
        return model
    with torch.no_grad():
        for module in adapted(model).values():
            base = module.base_layer.weight
            packed = decoded(base.data)
            if is_loftq:
                parts = _low_rank_decomposition(base - packed, config.r)
                module.lora_A["default"].weight.copy_(parts["R"])
                module.lora_B["default"].weight.copy_(parts["L"])
            base.copy_(packed)
    return model


def names_of(model):
    """Returns trainable parameters by the names that PEFT saves."""
    saved = {t.data_ptr(): k for k, t in peft.get_peft_model_state_dict(
        model, save_embedding_layers=False).items()}
    return {saved[p.data_ptr()]: p for p in model.parameters()
            if p.requires_grad}


def trainer_optimizer(named, case):
    """Makes Trainer's groups."""
    groups = [{"params": [p for n, p in named.items()
                          if n.endswith("bias") == is_bias],
               "weight_decay": 0.0 if is_bias else DECAY}
              for is_bias in (False, True)]
    return torch.optim.AdamW([g for g in groups if g["params"]],
                             lr=case["learning_rate"], eps=EPSILON)


def without_signs(expected, before, model, is_residual):
    """Returns expected values that do not depend on the signs of singular
    vectors. `is_residual`: the initial adapter was subtracted from the base, so
    a weight's change is the adapter's difference from its initial value."""
    numbers = {k: v for k, v in expected.items()
               if not k.startswith(("grad.", "final."))}
    numbers |= {"abs_" + k: v.abs() for k, v in expected.items()
                if k.startswith("grad.")}
    for name, module in adapted(model).items():
        change = delta(module) - (before[name] if is_residual else 0)
        numbers["delta." + name] = change
    return numbers


def train(model, optimizer, named, case, batches, steps=STEPS,
          logits_of=None):
    """`logits_of` maps the number of a micro-batch to its logits."""
    logits_of = logits_of or (lambda i: model(
        input_ids=batches["input_ids"][i].long()).logits)
    schedule = transformers.get_scheduler(
        case.get("lr_scheduler_type", "constant"), optimizer,
        case.get("warmup_steps", 0), steps)
    per = case["gradient_accumulation_steps"]
    expected, losses, norms, rates = {}, [], [], []
    model.train()
    getattr(optimizer, "train", lambda: None)()  # schedule-free
    for step in range(steps):
        rows = range(step * per, (step + 1) * per)
        labels = batches["labels"].long()
        count = sum(int((labels[i][:, 1:] != -100).sum()) for i in rows)
        total = 0.0
        for i in rows:
            logits = logits_of(i)
            expected.setdefault("logits", logits.detach().clone())
            loss = torch.nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, logits.shape[-1]),
                labels[i][:, 1:].reshape(-1), ignore_index=-100,
                reduction="sum") / count
            loss.backward()
            total += loss.item()
        if step == 0:
            for name, p in named.items():
                expected["grad." + name] = p.grad.detach().clone()
        norms.append(float(torch.nn.utils.clip_grad_norm_(
            named.values(), case["max_grad_norm"])))
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(total)
    getattr(optimizer, "eval", lambda: None)()
    for name, p in named.items():
        expected["final." + name] = p.detach().clone()
    expected.update(loss=torch.tensor(losses), grad_norm=torch.tensor(norms),
                    learning_rate=torch.tensor(rates))
    return expected


def settings(case):
    with open(os.path.join(case, "train.yaml")) as file:
        return {name: json.loads(value) for name, value in
                (line.split(":", 1) for line in file)}


def write_yaml(source, to, kind):
    values = settings(source)
    beside = "../" + os.path.basename(source) + "/"
    for name in ("model_name_or_path", "train_file", "adapter_name_or_path"):
        if name in values:
            values[name] = os.path.normpath(beside + values[name])
    values = {name: json.dumps(value) for name, value in values.items()}
    values |= {"max_steps": json.dumps(STEPS),
               "weight_decay": json.dumps(DECAY)}
    if kind == "unfrozen":
        values["unfrozen_parameters"] = json.dumps(UNFROZEN)
    elif kind == "full":
        values = {name: value for name, value in values.items()
                  if not name.startswith(("lora_", "use_", "adapter_", "fan_in",
                                          "exclude_", "layers_"))}
        values |= {"finetuning_type": '"full"',
                   "model_name_or_path": '"model"',
                   "adam_epsilon": json.dumps(EPSILON)}
    elif kind == "loraplus":
        values["loraplus_lr_ratio"] = json.dumps(RATIO)
    else:
        options, is_packed = KINDS[kind]
        values.pop("finetuning_type", None)
        for name, value in options.items():
            name = "lora_" * (name in ("r", "target_modules")) + name
            values[name] = json.dumps(value)
        values |= {"adam_epsilon": json.dumps(EPSILON),
                   "load_in_4bit": json.dumps(is_packed)}
        if kind.startswith("bias"):
            values["adapter_name_or_path"] = '"adapter_init"'
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {value.strip()}\n"
                        for name, value in values.items())


def write_case(source, to, case, kind, expected, versions):
    """Writes expected values and versions; `versions` has additional ones."""
    save_file({k: v.contiguous() for k, v in expected.items()},
              os.path.join(to, "expected.safetensors"))
    case.pop("lora", None)
    case |= {"steps": STEPS, "kind": kind, "from": os.path.basename(source),
             "reference": {"torch": torch.__version__.split("+")[0],
                           "transformers": transformers.__version__,
                           "peft": peft.__version__} | versions}
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump(case, file, indent=2)


def main(kind, source, to):
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(source, "case.json")) as file:
        case = json.load(file)
    model = load(os.path.join(source,
                              settings(source)["model_name_or_path"]))
    if kind == "full":
        save(model, os.path.join(source, "model"), os.path.join(to, "model"))
        optimizer, named = full_optimizer(model, case)
    elif kind == "unfrozen":
        freeze_layers_except(model, UNFROZEN)
        optimizer, named = full_optimizer(model, case)
    elif kind == "loraplus":
        model = peft.PeftModel.from_pretrained(
            model, os.path.join(source, "adapter_init"), is_trainable=True)
        optimizer, named = lora_plus_optimizer(model, case)
    elif kind.startswith("bias"):
        torch.manual_seed(case["seed"])
        options = case["lora"] | KINDS[kind][0]
        model = peft.get_peft_model(model, peft.LoraConfig(
            **options, init_lora_weights=False, task_type="CAUSAL_LM"))
        model.peft_config["default"].base_model_name_or_path = ""
        model.save_pretrained(os.path.join(to, "adapter_init"))
        named = names_of(model)
        optimizer = trainer_optimizer(named, case)
    else:
        options, is_packed = KINDS[kind]
        model = factored(model, options, is_packed, case["seed"])
        named = names_of(model)
        optimizer = trainer_optimizer(named, case)
        before = {n: delta(m) for n, m in adapted(model).items()}
    batches = load_file(os.path.join(
        source, settings(source)["train_file"]))
    expected = train(model, optimizer, named, case, batches)
    if kind in KINDS and not kind.startswith("bias"):
        expected = without_signs(expected, before, model, kind != "loftq")
    write_yaml(source, to, kind)
    write_case(source, to, case, kind, expected, {})


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:4]))
