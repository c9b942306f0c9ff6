#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case from another one, whose data it shares.

    other_golden.py full FROM TO        all weights are trained, with decay
    other_golden.py loraplus FROM TO    B learns faster, by PEFT's LoRA+
    other_golden.py OPTIM FROM TO       LoRA with that --optim, B's faster too

Needs torch, transformers, peft and safetensors, for some OPTIM bitsandbytes or
schedulefree; what they were is in case.json. OPTIM has an adapter that the case
of the first has, llama-adamw8bit, with tensors above and below 4096 elements (from where bitsandbytes has 8 bits)
whose last block is partial, and B's that are not zero; what the optimizer keeps
after the last step is under `state.`.
`full` has a model folder of its own, in float32, so that what comes out can be
held against PyTorch's numbers.
"""

import importlib.metadata
import json
import os
import sys

import peft
import torch
import transformers
from peft.optimizers import create_loraplus_optimizer
from safetensors.torch import load_file, save_file

STEPS, DECAY, RATIO = 6, 0.1, 8.0
TARGETS, RANK, WARMUP = ["q_proj", "k_proj"], 65, 3
# Keys' biases have no gradient but rounding, as a softmax does not see them:
# with a usual epsilon AdamW would make whole steps of it.
EPSILON = 1e-5
PATHS = ("model_name_or_path", "train_file", "adapter_name_or_path")
transformers.logging.set_verbosity_error()


def load(folder):
    """In float32, whichever transformers wrote its config.json."""
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
    """Under the names that are in the files, tied weights once."""
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
    """Trainer's two groups: neither biases nor norms are decayed."""
    undecayed = {f"{path}.{name}" for path, module in model.named_modules()
                 for name, _ in module.named_parameters(recurse=False)
                 if name == "bias" or "Norm" in type(module).__name__}
    named = dict(model.named_parameters())
    groups = [{"params": [p for n, p in named.items() if n not in undecayed],
               "weight_decay": DECAY},
              {"params": [p for n, p in named.items() if n in undecayed],
               "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=case["learning_rate"],
                             eps=EPSILON), named


def adapter_names(model):
    saved = {t.data_ptr(): k for k, t in peft.get_peft_model_state_dict(
        model, save_embedding_layers=False).items()}
    return {saved[p.data_ptr()]: p for p in model.parameters()
            if p.requires_grad}


def lora_plus_optimizer(model, case):
    return create_loraplus_optimizer(
        model, torch.optim.AdamW, lr=case["learning_rate"],
        loraplus_lr_ratio=RATIO,
        loraplus_weight_decay=DECAY), adapter_names(model)


def muon(groups, lr):
    """Its products in float32, as ours are; torch rounds them to bf16."""
    from torch.optim import _muon
    class InFloat32:
        bfloat16 = torch.float32
        def __getattr__(self, name):
            return getattr(torch, name)
    _muon.torch = InFloat32()
    return torch.optim.Muon(groups, lr=lr)


def optimizer_class(kind):
    """As transformers' Trainer makes it."""
    if kind == "adamw_bnb_8bit":
        import bitsandbytes
        return lambda groups, lr: bitsandbytes.optim.AdamW(
            groups, lr=lr, optim_bits=8)
    if kind == "lion_32bit":
        import bitsandbytes
        return lambda groups, lr: bitsandbytes.optim.Lion(
            groups, lr=lr, betas=(0.9, 0.999))
    if kind == "adafactor":
        return lambda groups, lr: transformers.Adafactor(
            groups, lr=lr, scale_parameter=False, relative_step=False)
    if kind == "schedule_free_adamw":
        import schedulefree
        return lambda groups, lr: schedulefree.AdamWScheduleFree(
            groups, lr=lr, warmup_steps=WARMUP)
    return muon


def other_optimizer(model, case, kind):
    named, rate = adapter_names(model), case["learning_rate"]
    groups = [{"params": [p for n, p in named.items() if "lora_A" in n],
               "weight_decay": DECAY, "lr": rate},
              {"params": [p for n, p in named.items() if "lora_B" in n],
               "weight_decay": DECAY, "lr": RATIO * rate}]
    return optimizer_class(kind)(groups, rate), named


def new_adapter(model, to, kind):
    torch.manual_seed(7)
    model = peft.get_peft_model(model, peft.LoraConfig(
        r=RANK, lora_alpha=RANK, target_modules=TARGETS,
        init_lora_weights=False, task_type="CAUSAL_LM"))
    for name, p in model.named_parameters():
        if p.requires_grad:
            torch.nn.init.normal_(p, std=0.05)
    if kind == "adamw_bnb_8bit":
        model.save_pretrained(os.path.join(to, "adapter_init"))
        os.remove(os.path.join(to, "adapter_init", "README.md"))
    return model


def train(model, optimizer, named, case, batches, keeps):
    schedule = transformers.get_scheduler(
        case.get("lr_scheduler_type", "constant"), optimizer,
        case.get("warmup_steps", 0), STEPS)
    per = case["gradient_accumulation_steps"]
    expected, losses, norms, rates = {}, [], [], []
    model.train()
    getattr(optimizer, "train", lambda: None)()
    for step in range(STEPS):
        rows = range(step * per, (step + 1) * per)
        labels = batches["labels"].long()
        count = sum(int((labels[i][:, 1:] != -100).sum()) for i in rows)
        total = 0.0
        for i in rows:
            logits = model(input_ids=batches["input_ids"][i].long()).logits
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
        for key, value in optimizer.state[p].items() if keeps else ():
            if torch.is_tensor(value) and value.numel() > 1 \
                    and not key.startswith("qmap"):
                expected[f"state.{name}.{key}"] = value.detach().clone()
    expected.update(loss=torch.tensor(losses), grad_norm=torch.tensor(norms),
                    learning_rate=torch.tensor(rates))
    return expected


def write_yaml(source, to, kind):
    with open(os.path.join(source, "train.yaml")) as file:
        values = dict(line.split(":", 1) for line in file)
    beside = "../" + os.path.basename(source) + "/"
    for name in PATHS if kind in ("full", "loraplus") else PATHS[:2]:
        values[name] = json.dumps(os.path.normpath(
            beside + json.loads(values[name])))
    values |= {"max_steps": json.dumps(STEPS),
               "weight_decay": json.dumps(DECAY)}
    if kind == "full":
        values = {name: value for name, value in values.items()
                  if not name.startswith(("lora_", "use_", "adapter_", "fan_in",
                                          "exclude_", "layers_"))}
        values |= {"finetuning_type": '"full"',
                   "model_name_or_path": '"model"',
                   "adam_epsilon": json.dumps(EPSILON)}
    else:
        values["loraplus_lr_ratio"] = json.dumps(RATIO)
    if kind not in ("full", "loraplus"):
        values |= {"optim": json.dumps(kind), "lora_r": str(RANK),
                   "lora_alpha": str(RANK),
                   "lora_target_modules": json.dumps(TARGETS),
                   "save_steps": "0", "adapter_name_or_path": json.dumps(
                       "adapter_init" if kind == "adamw_bnb_8bit"
                       else "../llama-adamw8bit/adapter_init")}
    if kind == "schedule_free_adamw":
        values["warmup_steps"] = str(WARMUP)
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{name}: {value.strip()}\n"
                        for name, value in values.items())


def main(kind, source, to):
    os.makedirs(to, exist_ok=True)
    with open(os.path.join(source, "case.json")) as file:
        case = json.load(file)
    model = load(os.path.join(source, "model"))
    if kind == "full":
        save(model, os.path.join(source, "model"), os.path.join(to, "model"))
        optimizer, named = full_optimizer(model, case)
    elif kind != "loraplus":
        model = new_adapter(model, to, kind)
        optimizer, named = other_optimizer(model, case, kind)
    else:
        model = peft.PeftModel.from_pretrained(
            model, os.path.join(source, "adapter_init"), is_trainable=True)
        optimizer, named = lora_plus_optimizer(model, case)
    batches = load_file(os.path.join(source, "batches.safetensors"))
    keeps = kind not in ("full", "loraplus")
    expected = train(model, optimizer, named, case, batches, keeps)
    save_file({k: v.contiguous() for k, v in expected.items()},
              os.path.join(to, "expected.safetensors"))
    write_yaml(source, to, kind)
    case.pop("lora", None)
    case |= {"steps": STEPS, "kind": kind, "from": os.path.basename(source),
             "reference": {"torch": torch.__version__.split("+")[0],
                           "transformers": transformers.__version__,
                           "peft": peft.__version__} | {
                 name: importlib.metadata.version(name)
                 for name in ("bitsandbytes", "schedulefree")
                 if name in sys.modules}}
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump(case, file, indent=2)


if __name__ == "__main__":
    main(*(arg.rstrip("/") for arg in sys.argv[1:4]))
