#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Weights of GPTQ, AWQ and FP8, made and decoded from the formats' definitions.

    stored_formats.py matrices TO     small matrices, their decoded values, and
                                      results of quantizers
    stored_formats.py cases TO        golden cases TO/llama-{gptq,awq,fp8}
    stored_formats.py experts TO      TO/mixtral-gptq, from TO/mixtral

Needs torch, transformers, peft, bitsandbytes and safetensors; their versions
are in case.json. `make` packs tensors and `decode` reads them again, so the
expected values follow from the bytes of the files.
"""

import json
import math
import os
import sys
import tempfile

import torch
from safetensors.torch import save_file

from bnb_values import decode_state

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
GROUP, TILE = 32, 128


def pack(codes, bits, order=None):
    """Packs [rows, n] to int32 [rows, n * bits / 32], the first in the low
    bits."""
    count = 32 // bits
    words = codes.reshape(codes.shape[0], -1, count).long()
    if order:
        words = words[:, :, order]
    words = (words << torch.arange(0, 32, bits)).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def unpack(words, bits, order=None):
    codes = (words.long()[:, :, None] >> torch.arange(0, 32, bits)) & (
        2**bits - 1)
    if order:
        codes = codes[:, :, torch.argsort(torch.tensor(order))]
    return codes.reshape(words.shape[0], -1)


def round_to_grid(w, group, bits, symmetric):
    """Returns codes [in, out], and f16 scales and zeros [in / group, out]."""
    most = 2**bits - 1
    x = w.T.reshape(-1, group, w.shape[0])
    if symmetric:
        scales = (x.abs().amax(1) * 2 / most).half()
        zeros = torch.full(scales.shape, (most + 1) // 2)
    else:
        low, high = x.amin(1).clamp(max=0), x.amax(1).clamp(min=0)
        scales = ((high - low) / most).half()
        zeros = (-low / scales.float()).round().clamp(0, most).long()
    codes = (x / scales.float()[:, None]).round() + zeros[:, None]
    return codes.clamp(0, most).long().reshape(w.shape[1], -1), scales, zeros


def make_gptq(w, group=GROUP, bits=4, symmetric=False, v2=False):
    codes, scales, zeros = round_to_grid(w, group, bits, symmetric)
    qzeros = pack(zeros, bits)
    if not v2:  # one less in each place; a zero borrows from its neighbour
        ones = sum(1 << place for place in range(0, 32, bits))
        words = (qzeros.long() - ones) & 0xffffffff
        qzeros = torch.where(words >= 2**31, words - 2**32, words).int()
    return {"qweight": pack(codes.T, bits).T.contiguous(), "qzeros": qzeros,
            "scales": scales,
            "g_idx": (torch.arange(w.shape[1]) // group).int()}


def make_awq(w, group=GROUP):
    codes, scales, zeros = round_to_grid(w, group, 4, False)
    return {"qweight": pack(codes, 4, AWQ_ORDER),
            "qzeros": pack(zeros, 4, AWQ_ORDER), "scales": scales}


def decode_integers(t, bits=4, awq=False, v2=False):
    order = AWQ_ORDER if awq else None
    qzeros = t["qzeros"]
    if not awq and not v2:
        qzeros = qzeros + pack(torch.ones(1, 32 // bits), bits).item()
    zeros = unpack(qzeros, bits, order)
    codes = (unpack(t["qweight"], bits, order) if awq
             else unpack(t["qweight"].T, bits).T)
    group = codes.shape[0] // zeros.shape[0]
    numbers = (codes - zeros.repeat_interleave(group, 0)).float()
    return (numbers * t["scales"].float().repeat_interleave(group, 0)
            ).T.contiguous()


def make_fp8(w, rows=TILE, columns=TILE, name="weight_scale_inv"):
    """Uses one scale per tile; the last tiles may be smaller."""
    tiles = [math.ceil(w.shape[0] / rows), math.ceil(w.shape[1] / columns)]
    scales = torch.zeros(tiles)
    for i in range(tiles[0]):
        for j in range(tiles[1]):
            part = w[i * rows:(i + 1) * rows, j * columns:(j + 1) * columns]
            scales[i, j] = part.abs().max() / 448
    each = scales.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    codes = (w / each[:w.shape[0], :w.shape[1]]).to(torch.float8_e4m3fn)
    return {"weight": codes, name: scales}


def decode_fp8(t, rows=TILE, columns=TILE, name="weight_scale_inv"):
    w = t["weight"].float()
    each = t[name].float().reshape(-(-w.shape[0] // rows), -1)
    each = each.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return w * each[:w.shape[0], :w.shape[1]]


# Matrices --------------------------------------------------------------------

def stored_matrices():
    """Returns {module: (stored tensors, decoded values)}."""
    def w(*shape):
        return torch.randn(*shape) * torch.rand(shape[0], 1).exp()
    made = {"gptq": (t := make_gptq(w(72, 96)), decode_integers(t)),
            "gptq_whole": (t := make_gptq(w(40, 56), 56, symmetric=True),
                           decode_integers(t)),
            "gptq_8": (t := make_gptq(w(24, 64), bits=8),
                       decode_integers(t, 8)),
            "gptq_v2": (t := make_gptq(w(72, 96), v2=True),
                        decode_integers(t, v2=True)),
            "awq": (t := make_awq(w(72, 96)), decode_integers(t, awq=True)),
            "awq_whole": (t := make_awq(w(16, 40), 40),
                          decode_integers(t, awq=True)),
            "fp8": (t := make_fp8(w(131, 160)), decode_fp8(t))}
    x, name = w(7, 61), "weight_scale"
    t = make_fp8(x, 7, 61, name)
    made["fp8_tensor"] = ({**t, name: t[name].reshape(())},
                          decode_fp8(t, 7, 61, name))
    t = make_fp8(x, 1, 61, name)
    t[name] = t[name].bfloat16()
    made["fp8_rows"] = (t, decode_fp8(t, 1, 61, name))
    return made


def e2m1(x):
    """Rounds to the nearest value of MXFP4; ties to even codes."""
    grid = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    away = (x.abs().double()[..., None] - grid).abs()
    away = away * 2 + torch.arange(8) % 2 * 1e-9
    return away.argmin(-1) | torch.signbit(x).long() << 3


def quantized():
    """Quantizes a matrix whose rows have very different magnitudes."""
    import bitsandbytes.functional as F
    x = torch.randn(70, 96) * torch.logspace(-12, 3, 70)[:, None]
    x[3], x[4, 32:64] = 0, 0
    x[5, :8] = torch.tensor([6, .25, .75, 1.25, 1.75, 2.5, 3.5, -5])
    x[6, :9] = torch.tensor([448, 17, 19, 2**-6, 2**-9, 3 * 2**-10, 2**-10,
                             -449 / 16, 465])
    found = {"input": x}
    for double in (False, True):
        packed, state = F.quantize_4bit(x, blocksize=64, quant_type="fp4",
                                        compress_statistics=double)
        name = f"fp4.{int(double)}"
        found |= {f"{name}.packed": packed.reshape(-1),
                  f"{name}.absmax": state.absmax,
                  f"{name}.dequantized": decode_state(packed, state)}
    scales = x.abs().amax(1) / 448
    codes = (x / scales[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    codes[3] = 0
    found |= {"fp8.packed": codes.view(torch.uint8), "fp8.absmax": scales}
    blocks = x.bfloat16().float().reshape(-1, 32)
    bits = (blocks.abs().amax(1) / 6).view(torch.int32)
    bits = (bits + 0x7fffff) & 0x7f800000
    scales = bits.view(torch.float32)
    inverse = torch.where(scales == 0, 0, 1 / scales)
    codes = e2m1(blocks * inverse[:, None])
    return found | {
        "mxfp4.packed": (codes[:, ::2] << 4 | codes[:, 1::2]).byte(),
        "mxfp4.absmax": (bits >> 23).byte()}


def write_matrices(to):
    torch.manual_seed(3)
    os.makedirs(to, exist_ok=True)
    tensors = {}
    for module, (parts, numbers) in stored_matrices().items():
        tensors |= {f"{module}.{name}": t for name, t in parts.items()}
        tensors[f"{module}.dequantized"] = numbers
    save_file({k: v.contiguous() for k, v in tensors.items()},
              os.path.join(to, "model.safetensors"))
    save_file({k: v.contiguous() for k, v in quantized().items()},
              os.path.join(to, "quantized.safetensors"))


# Cases -----------------------------------------------------------------------

CONFIG = {"vocab_size": 96, "hidden_size": 160, "intermediate_size": 288,
          "num_hidden_layers": 1, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 40,
          "max_position_embeddings": 64, "tie_word_embeddings": True}
CASE = {"seed": 41, "weights_dtype": "bfloat16", "batch": 2, "seq": 16,
        "steps": 6, "gradient_accumulation_steps": 1, "learning_rate": 0.01,
        "max_grad_norm": 1.0, "config": CONFIG,
        "lora": {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}}
FORMATS = {
    "gptq": (make_gptq, decode_integers,
             {"quant_method": "gptq", "bits": 4, "group_size": GROUP,
              "sym": False, "desc_act": False, "checkpoint_format": "gptq"}),
    "awq": (make_awq, lambda t: decode_integers(t, awq=True),
            {"quant_method": "awq", "bits": 4, "group_size": GROUP,
             "zero_point": True, "version": "gemm",
             "modules_to_not_convert": ["o_proj"]}),
    "fp8": (make_fp8, decode_fp8,
            {"quant_method": "fp8", "fmt": "e4m3",
             "activation_scheme": "dynamic",
             "weight_block_size": [TILE, TILE]})}


def build(folder, make, decode, quantization):
    """Writes a model; returns one with the decoded values of the files."""
    import transformers
    torch.manual_seed(CASE["seed"])
    config = transformers.LlamaConfig(**CONFIG)
    model = transformers.LlamaForCausalLM(config)
    kept = quantization.get("modules_to_not_convert", [])
    tensors = {}
    with torch.no_grad():
        for name, p in model.named_parameters():
            module, _, end = name.rpartition(".")
            if p.dim() < 2:
                p.copy_((1 + 0.1 * torch.randn(p.shape)).bfloat16())
                tensors[name] = p.bfloat16()
                continue
            p.copy_((torch.randn(p.shape) / p.shape[-1]**0.5).bfloat16())
            if "proj" not in module or module.rsplit(".")[-1] in kept:
                tensors[name] = p.bfloat16()
                continue
            parts = make(p.data)
            tensors |= {f"{module}.{n}": t for n, t in parts.items()}
            p.copy_(decode(parts))
    os.makedirs(folder, exist_ok=True)
    config.architectures, config.dtype = ["LlamaForCausalLM"], torch.bfloat16
    text = config.to_dict() | {"quantization_config": quantization}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(text, file, indent=1, sort_keys=True, default=str)
    save_file({k: v.detach().contiguous().clone() for k, v in tensors.items()},
              os.path.join(folder, "model.safetensors"), {"format": "pt"})
    return model


def make_batches():
    shape = (CASE["steps"], CASE["batch"], CASE["seq"])
    ids = torch.randint(0, CONFIG["vocab_size"], shape)
    ids[:, :, 1::2] = (ids[:, :, ::2] * 3 + 7) % CONFIG["vocab_size"]
    labels = ids.clone()
    labels[:, 0, :5] = -100
    return {"input_ids": ids.int(), "labels": labels.int()}


def write_yaml(to, shared):
    lora = CASE["lora"]
    values = {
        "model_name_or_path": "model",
        "train_file": shared + "batches.safetensors",
        "adapter_name_or_path": shared + "adapter_init",
        "compute_dtype": "float32", "lora_r": lora["r"],
        "lora_alpha": lora["lora_alpha"], "lora_dropout": 0.0,
        "lora_target_modules": lora["target_modules"],
        "per_device_train_batch_size": CASE["batch"],
        "max_length": CASE["seq"], "gradient_accumulation_steps": 1,
        "max_steps": CASE["steps"], "learning_rate": CASE["learning_rate"],
        "lr_scheduler_type": "constant", "weight_decay": 0.01,
        "max_grad_norm": 1.0, "logging_steps": 1, "seed": CASE["seed"]}
    with open(os.path.join(to, "train.yaml"), "w") as file:
        file.writelines(f"{k}: {json.dumps(v)}\n" for k, v in values.items())


def adamw(model, rate, decay):
    """Returns AdamW, and the trainable tensors by their names in PEFT files."""
    import peft
    saved = {t.data_ptr(): k for k, t in
             peft.get_peft_model_state_dict(model).items()}
    named = {saved[p.data_ptr()]: p for p in model.parameters()
             if p.requires_grad}
    return torch.optim.AdamW(named.values(), lr=rate,
                             weight_decay=decay), named


def write_json(to, case):
    import peft
    import transformers
    case["reference"] = {"torch": torch.__version__.split("+")[0],
                         "transformers": transformers.__version__,
                         "peft": peft.__version__}
    with open(os.path.join(to, "case.json"), "w") as file:
        json.dump(case, file, indent=2)


def write_case(to, name, first):
    import peft
    from other_golden import train
    model = build(os.path.join(to, "model"), *FORMATS[name])
    torch.manual_seed(CASE["seed"] + 1)
    model = peft.get_peft_model(model, peft.LoraConfig(
        task_type="CAUSAL_LM", lora_dropout=0.0, **CASE["lora"]))
    for key, p in model.named_parameters():
        if "lora_B" in key:
            p.data.copy_(0.02 * torch.randn(p.shape))
    batches = make_batches()
    if to == first:
        model.save_pretrained(os.path.join(to, "adapter_init"))
        os.remove(os.path.join(to, "adapter_init", "README.md"))
        save_file(batches, os.path.join(to, "batches.safetensors"))
    expected = train(model, *adamw(model, CASE["learning_rate"], 0.01), CASE,
                     batches)
    save_file({k: v.contiguous() for k, v in expected.items()},
              os.path.join(to, "expected.safetensors"))
    write_yaml(to, "" if to == first else f"../{os.path.basename(first)}/")
    write_json(to, CASE | {"quantization": FORMATS[name][2]})
    print(to, expected["loss"].tolist())


def write_experts(to):
    """Writes TO/mixtral-gptq. Only attention and experts are quantized."""
    import peft
    from other_golden import load, train
    from safetensors.torch import load_file
    source, folder = os.path.join(to, "mixtral"), to + "/mixtral-gptq"
    stored, numbers = {}, {}
    for name, t in load_file(source + "/model/model.safetensors").items():
        module, _, _ = name.rpartition(".")
        if t.dim() < 2 or not any(part in name for part in
                                  (".self_attn.", ".experts.")):
            stored[name], numbers[name] = t, t.float()
            continue
        parts = make_gptq(t.float())
        stored |= {f"{module}.{n}": p for n, p in parts.items()}
        numbers[name] = decode_integers(parts)
    os.makedirs(folder + "/model", exist_ok=True)
    with open(source + "/model/config.json") as file:
        config = json.load(file)
    with tempfile.TemporaryDirectory() as decoded:
        with open(decoded + "/config.json", "w") as file:
            json.dump(config, file)
        save_file(numbers, decoded + "/model.safetensors", {"format": "pt"})
        model = load(decoded)
    config["quantization_config"] = FORMATS["gptq"][2]
    with open(folder + "/model/config.json", "w") as file:
        json.dump(config, file, indent=1)
    save_file({k: v.contiguous() for k, v in stored.items()},
              folder + "/model/model.safetensors", {"format": "pt"})
    with open(source + "/case.json") as file:
        case = json.load(file) | {"steps": CASE["steps"], "from": "mixtral",
                                  "quantization": FORMATS["gptq"][2]}
    model = peft.PeftModel.from_pretrained(model, source + "/adapter_init",
                                           is_trainable=True)
    expected = train(model, *adamw(model, case["learning_rate"], 0.0), case,
                     load_file(source + "/batches.safetensors"))
    save_file({k: v.contiguous() for k, v in expected.items()},
              folder + "/expected.safetensors")
    with open(source + "/train.yaml") as file:
        values = dict(line.split(": ", 1) for line in file)
    values |= {"max_steps": f"{CASE['steps']}\n"} | {
        name: json.dumps("../mixtral/" + json.loads(values[name])) + "\n"
        for name in ("train_file", "adapter_name_or_path")}
    with open(folder + "/train.yaml", "w") as file:
        file.writelines(f"{k}: {v}" for k, v in values.items())
    write_json(folder, case)
    print(folder, expected["loss"].tolist())


def main(what, to):
    if what == "matrices":
        return write_matrices(to)
    if what == "experts":
        return write_experts(to)
    folders = {name: os.path.join(to, f"llama-{name}") for name in FORMATS}
    for name, folder in folders.items():
        os.makedirs(folder, exist_ok=True)
        write_case(folder, name, folders["gptq"])


if __name__ == "__main__":
    main(*sys.argv[1:3])
