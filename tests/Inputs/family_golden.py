#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a golden case of a model family from its description.

    family_golden.py CASE_DIR

CASE_DIR/case.json has transformers' classes and their arguments (`hf_config`,
`hf_model`, `config`), PEFT's options (`lora`), and the training options;
`quantization` has bitsandbytes' options. The rest of the folder is written:

    model/                the input of qlora-import
    train.yaml            the input of qloracc and qlora-run
    adapter_init/         the adapter before step 1, by PEFT
    batches.safetensors   input_ids and labels, int32 [micro-batches, B, T].
                          If case.json has `segment` (the least and the most
                          tokens of a segment), also position_ids and
                          segment_ids
    nf4.safetensors       bitsandbytes' tensors of each linear, and the decoded
                          values
    expected.safetensors  logits before step 1, loss, gradient norm and learning
                          rate by step, gradients of step 1, the last adapter

Needs torch, transformers, peft and safetensors, and bitsandbytes for 4 bits.
Their versions are written to case.json. Computes in float32, with eager
attention.
Each segment of a packed row is a separate call, so that the longest row of a
batch does not influence the others. A case with a value near a discontinuity is
refused (edges.py). To change a case, change its case.json and run this again.
"""

import json
import math
import os
import sys

import peft
import torch
import transformers
from safetensors.torch import save_file

import edges
from bnb_values import decode_state
from other_golden import names_of, train

transformers.logging.disable_progress_bar()


def numbers(case, offset):
    """Each part of a case has its own generator."""
    return torch.Generator().manual_seed(case["seed"] + offset)


def make_model(case):
    """Draws larger weights than a new model's, so that every path matters."""
    config = getattr(transformers, case["hf_config"])(**case["config"])
    config._attn_implementation = "eager"
    model = getattr(transformers, case["hf_model"])(config)
    generator = numbers(case, 1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            drawn = torch.randn(p.shape, generator=generator)
            if p.dim() >= 2:
                p.copy_(drawn * (1.0 / math.sqrt(p.shape[-1])))
            elif "norm" in name and name.endswith("weight"):
                p.copy_(1.0 + 0.1 * drawn)
            else:
                p.copy_(0.1 * drawn)
    return model


def save_model(model, case, folder):
    """Rounds the trained weights to the stored type, and saves them."""
    dtype = getattr(torch, case["weights_dtype"])
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(dtype).float())
    stored = type(model)(model.config).to(dtype)
    stored.load_state_dict({name: tensor.to(dtype) for name, tensor
                            in model.state_dict().items()})
    stored.save_pretrained(folder)


def quantize(model, options):
    """Gives every linear except the head the values of bitsandbytes' codes;
    returns the stored tensors."""
    from bitsandbytes import functional
    tensors = {}
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or path == "lm_head":
            continue
        packed, state = functional.quantize_4bit(
            module.weight.data.contiguous(), quant_type="nf4",
            blocksize=options["blocksize"],
            compress_statistics=options["double_quant"])
        module.weight.data = decode_state(packed, state)
        parts = {"packed": packed.view(-1), "absmax": state.absmax,
                 "quant_map": state.code, "dequantized": module.weight.data}
        if state.nested:
            parts |= {"nested_absmax": state.state2.absmax,
                      "nested_quant_map": state.state2.code,
                      "nested_offset": state.offset.reshape(1)}
        tensors |= {f"{path}.weight.{part}": tensor.clone().contiguous()
                    for part, tensor in parts.items()}
    return tensors


def attach_adapter(model, case, folder):
    """Attaches an adapter, and saves it in `folder`. Adds noise to B, because
    A's gradient would be zero if B were. Also adds noise to trainable tokens,
    so that a test notices if the base's values are used instead."""
    torch.manual_seed(case["seed"] + 3)
    model = peft.get_peft_model(model, peft.LoraConfig(
        task_type="CAUSAL_LM", lora_dropout=0.0, **case["lora"]))
    generator = numbers(case, 4)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "lora_B" in name:
                p.copy_(0.02 * torch.randn(p.shape, generator=generator))
            elif "trainable_tokens" in name:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    model.save_pretrained(folder, save_embedding_layers=False)
    os.remove(os.path.join(folder, "README.md"))  # a model card, not filled in
    return model


def make_batches(case):
    """Draws tokens that mostly follow from the previous one, so the loss
    falls."""
    generator = numbers(case, 2)
    length, vocabulary = case["seq"], case["config"]["vocab_size"]
    count = case["steps"] * case["gradient_accumulation_steps"]
    shape = (count, case["batch"])
    ids = torch.zeros(*shape, length, dtype=torch.long)
    token = torch.randint(0, vocabulary, shape, generator=generator)
    for place in range(length):
        ids[:, :, place] = token
        other = torch.randint(0, vocabulary, shape, generator=generator)
        follows = torch.rand(shape, generator=generator) < 0.85
        token = torch.where(follows, (token * 3 + 7) % vocabulary, other)
    labels = ids.clone()
    if case.get("mask_prompt"):
        prompt, padding = (
            torch.randint(least, limit, shape, generator=generator)[..., None]
            for least, limit in ((1, length // 2), (0, length // 4)))
        place = torch.arange(length)
        labels[(place < prompt) | (place >= length - padding)] = -100
    return {"input_ids": ids.int(), "labels": labels.int()}


def cut_rows(case, batches):
    """Divides each row into segments that fill it. The first token of a segment
    is not predicted."""
    least, most = case["segment"]
    generator = numbers(case, 5)
    positions, segments = (torch.zeros_like(batches["input_ids"])
                           for _ in range(2))
    for row in range(batches["labels"].flatten(0, 1).shape[0]):
        own = [tensor.flatten(0, 1)[row] for tensor in
               (positions, segments, batches["labels"])]
        begin, number = 0, 0
        while begin < case["seq"]:
            length = int(torch.randint(least, most + 1, (),
                                       generator=generator))
            left = case["seq"] - begin - length
            length += left if left < least else 0
            end, number = begin + length, number + 1
            own[0][begin:end] = torch.arange(length)
            own[1][begin:end] = number
            own[2][begin] = -100
            begin = end
    return {**batches, "position_ids": positions, "segment_ids": segments}


def forget_lengths(model):
    """Resets RoPE of type dynamic, which remembers an earlier, longer row."""
    for module in model.modules():
        if hasattr(module, "max_seq_len_cached"):
            module.max_seq_len_cached = module.original_max_seq_len
            module.inv_freq = module.original_inv_freq.clone()


def segments_alone(model, batches):
    """Returns a function: micro-batch number to logits of separate segments."""
    def segment_logits(ids):
        forget_lengths(model)
        return model(input_ids=ids[None]).logits[0]

    def logits(i):
        return torch.stack([
            torch.cat([segment_logits(ids[segments == number])
                       for number in segments.unique_consecutive()])
            for ids, segments in zip(batches["input_ids"][i].long(),
                                     batches["segment_ids"][i])])
    return logits


def write_yaml(case, path):
    lora, optimizer = dict(case["lora"]), case["optimizer"]
    values = {"model_name_or_path": "model",
              "train_file": "batches.safetensors",
              "adapter_name_or_path": "adapter_init",
              "load_in_4bit": "quantization" in case}
    if "quantization" in case:
        values |= {
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": case["quantization"]["double_quant"],
            "bnb_4bit_blocksize": case["quantization"]["blocksize"]}
    values |= {
        "compute_dtype": "float32", "lora_r": lora.pop("r"),
        "lora_alpha": lora.pop("lora_alpha"), "lora_dropout": 0.0,
        "lora_target_modules": lora.pop("target_modules"), **lora,
        "per_device_train_batch_size": case["batch"],
        "max_length": case["seq"], "max_steps": case["steps"],
        "gradient_accumulation_steps": case["gradient_accumulation_steps"],
        "learning_rate": case["learning_rate"],
        "lr_scheduler_type": case.get("lr_scheduler_type", "constant"),
        "warmup_steps": case.get("warmup_steps", 0),
        "weight_decay": optimizer["weight_decay"],
        "adam_beta1": optimizer["beta1"], "adam_beta2": optimizer["beta2"],
        "adam_epsilon": optimizer["eps"],
        "max_grad_norm": case["max_grad_norm"], "logging_steps": 1,
        "seed": case["seed"]}
    with open(path, "w") as file:
        file.writelines(f"{name}: {json.dumps(value)}\n"
                        for name, value in values.items())


def main(folder):
    def beside(name):
        return os.path.join(folder, name)
    with open(beside("case.json")) as file:
        case = json.load(file)
    model = make_model(case)
    save_model(model, case, beside("model"))
    if "quantization" in case:
        save_file(quantize(model, case["quantization"]),
                  beside("nf4.safetensors"))
    model = attach_adapter(model, case, beside("adapter_init"))
    batches, logits_of = make_batches(case), None
    if "segment" in case:
        batches = cut_rows(case, batches)
        logits_of = segments_alone(model, batches)
    save_file(batches, beside("batches.safetensors"))
    named, options = names_of(model), case["optimizer"]
    optimizer = torch.optim.AdamW(
        named.values(), lr=case["learning_rate"],
        betas=(options["beta1"], options["beta2"]), eps=options["eps"],
        weight_decay=options["weight_decay"])
    with edges.watched(model) as distances:
        expected = train(model, optimizer, named, case, batches, case["steps"],
                         logits_of)
    edges.check(distances)
    save_file({name: tensor.contiguous() for name, tensor in expected.items()},
              beside("expected.safetensors"))
    write_yaml(case, beside("train.yaml"))
    case["reference"] = {"torch": torch.__version__.split("+")[0],
                         "transformers": transformers.__version__,
                         "peft": peft.__version__}
    with open(beside("case.json"), "w") as file:
        json.dump(case, file, indent=2)
        file.write("\n")
    print(f"{os.path.basename(folder)}: loss " + " ".join(
        f"{loss:.4f}" for loss in expected["loss"].tolist()))


if __name__ == "__main__":
    main(sys.argv[1].rstrip("/"))
