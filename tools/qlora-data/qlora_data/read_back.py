# SPDX-License-Identifier: MIT

"""Reads an exported model or adapter with the program that it is for, and
measures its loss.

    PYTHON read_back.py merged FOLDER ROWS.jsonl [--digests DIGESTS.json]
    PYTHON read_back.py peft FOLDER ROWS.jsonl --base MODEL
    PYTHON read_back.py gguf FILE ROWS.jsonl --digests DIGESTS.json
    PYTHON read_back.py gguf-lora FILE ROWS.jsonl --digests DIGESTS.json --base
           FILE

PYTHON has torch, transformers and, for adapters, peft; for GGUF files it has
gguf and llama.cpp. This file needs two other modules of qlora-data,
read_quantized.py and read_gguf.py. ROWS.jsonl has rows {"input_ids",
"labels"}, as qlora-run --evaluation-rows writes them. DIGESTS.json has the
SHA-256 of the float32 values of each quantized weight, or of each tensor of a
GGUF file. Prints one JSON object:

    reader     "transformers 5.24.0"
    loss       mean over labelled tokens, computed in float32; null: not
               measured
    unmeasured why there is no loss
    tensors    number of tensors that have the values of the files
    different  names of tensors that have other values
    missing    instead of all: why nothing was checked
    error      instead of all: why the reader cannot load the folder
"""

import os
import sys

# Modules in this folder have names of packages, such as safetensors.
HERE = os.path.dirname(os.path.realpath(__file__))
sys.path = [path for path in sys.path if os.path.realpath(path) != HERE]

import argparse  # noqa: E402
import glob  # noqa: E402
import importlib.util  # noqa: E402
import json  # noqa: E402


def module_here(name):
    """Imports a module of this folder."""
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(HERE, f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


read_quantized = module_here("read_quantized")


def missing(names):
    return [name for name in names if importlib.util.find_spec(name) is None]


def tensors_of(folder):
    """Yields (name, tensor) of all safetensors files in a folder."""
    from safetensors import safe_open
    for path in sorted(glob.glob(os.path.join(glob.escape(folder),
                                              "*.safetensors"))):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():
                yield name, file.get_tensor(name)


def compare(expected, actual):
    """Counts the tensors of `expected` that `actual` has with equal values.
    Tensors that the reader renames or joins are not in `actual`."""
    import torch
    equal, different = 0, []
    for name, tensor in expected:
        other = actual.get(name)
        if other is None:
            continue
        if torch.equal(tensor.float(), other.detach().float().cpu()):
            equal += 1
        else:
            different.append(name)
    return equal, different


def loss_of(model, rows):
    """Returns the mean loss over labelled tokens, row by row."""
    import torch
    total, count = 0.0, 0
    for row in rows:
        ids = torch.tensor([row["input_ids"]])
        labels = torch.tensor(row["labels"][1:])
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        labelled = labels != -100
        if not labelled.any():
            continue
        scores = torch.log_softmax(logits[labelled].float(), dim=-1)
        picked = scores.gather(1, labels[labelled].unsqueeze(1))
        total -= picked.double().sum().item()
        count += int(labelled.sum())
    return total / count


def rows_of(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def load_model(folder, **more):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, torch_dtype=torch.float32, attn_implementation="eager",
        local_files_only=True, **more).eval()


def is_unknown(folder):
    """Returns whether this transformers is too old for the model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return json.load(file).get("model_type") not in CONFIG_MAPPING_NAMES


def read_merged(options):
    import transformers
    folder = options.folder
    reader = f"transformers {transformers.__version__}"
    if is_unknown(folder):
        return {"missing": f"{reader} does not know this model_type"}
    if read_quantized.is_unknown(folder):
        return {"missing": f"{reader} does not know this quant_method"}
    model = load_model(folder)
    # bitsandbytes formats its metadata again.
    stored = ((name, tensor) for name, tensor in tensors_of(folder)
              if ".quant_state." not in name)
    equal, different = compare(stored, model.state_dict())
    if options.digests:
        read_quantized.compute_in_float32(model)
        with open(options.digests, encoding="utf-8") as file:
            more, others = read_quantized.compare_decoded(
                model, folder, json.load(file), load_model)
        equal, different = equal + more, different + others
    return {"reader": reader + read_quantized.reader_name(folder),
            "tensors": equal, "different": different,
            "loss": loss_of(model, rows_of(options.rows))}


def read_peft(options):
    import peft
    reader = f"peft {peft.__version__}"
    if is_unknown(options.base):
        import transformers
        return {"missing": f"transformers {transformers.__version__} does not "
                           "know this model_type"}
    model = peft.PeftModel.from_pretrained(load_model(options.base),
                                           options.folder).eval()
    expected = list(tensors_of(options.folder))
    # PEFT 0.17.1 does not list trained biases of adapted linears.
    state = {name: value for name, value in model.state_dict().items()
             if name.endswith(".bias")}
    state.update(peft.get_peft_model_state_dict(model))
    equal, different = compare(expected, state)
    different += sorted({name for name, _ in expected} - set(state))
    return {"reader": reader, "tensors": equal, "different": different,
            "loss": loss_of(model, rows_of(options.rows))}


def read_gguf(options):
    return module_here("read_gguf").read(options.folder,
                                         rows_of(options.rows),
                                         options.digests, options.base)


FORMS = {"merged": (["torch", "transformers", "safetensors"], read_merged),
         "peft": (["torch", "transformers", "safetensors", "peft"], read_peft),
         "gguf": (["numpy", "gguf"], read_gguf),
         "gguf-lora": (["numpy", "gguf"], read_gguf)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("form", choices=tuple(FORMS))
    parser.add_argument("folder", help="folder or file")
    parser.add_argument("rows")
    parser.add_argument("--base")
    parser.add_argument("--digests")
    options = parser.parse_args()
    needed, read = FORMS[options.form]
    if options.form == "merged":
        needed = needed + read_quantized.packages_for(options.folder)
    if missing(needed):
        result = {"missing": f"not installed: {', '.join(missing(needed))}"}
    else:
        try:
            result = read(options)
        except Exception as error:  # any failure of the reader is a result
            result = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
