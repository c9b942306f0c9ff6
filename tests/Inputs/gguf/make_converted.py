#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""make_converted.py LLAMA_CPP [CASE...]: what llama.cpp's converter makes of the
golden models, for the tests.

LLAMA_CPP is a checkout, such as vendor/llama.cpp in the source of
llama-cpp-python. Writes converted.json next to itself: for each case the
scalar keys, and for each tensor its shape and two sums of its f32 values, the
second one with weights, so that reordered values differ. Needs torch. The
golden models have no tokenizer, so none is converted.
"""

import json
import os
import re
import sys
import tempfile
import types
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "goldens"
CASES = ("llama-lora", "llama3-tied", "llama-yarn", "mistral-window", "mixtral",
         "qwen2-nf4", "qwen3-ranks", "qwen3moe-nf4", "gemma2-nf4",
         "gemma3-nf4", "phi3-nf4", "olmo2-nf4", "granite-nf4", "smollm3-nf4",
         "starcoder2", "stablelm", "gpt2", "gptoss", "gptoss-mxfp4")


def stub(name, **members):
    """Replaces a package that only other models or other steps need."""
    module = types.ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module


class NoConfig:
    @staticmethod
    def from_pretrained(*_args, **_options):
        raise ValueError("config.json is read instead")


class Quiet:
    def __init__(self, *_args, **_options):
        pass

    def update(self, *_args):
        pass


def prepare(checkout):
    import torch
    sys.path[:0] = [checkout, os.path.join(checkout, "gguf-py")]
    for name in ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
                 "float8_e8m0fnu"):
        if not hasattr(torch, name):
            setattr(torch, name, f"torch {torch.__version__} has no {name}")
    stub("transformers", AutoConfig=NoConfig)
    stub("tqdm", tqdm=Quiet)


def convert(case, out):
    import conversion
    import gguf
    from conversion import ModelBase, ModelType
    folder = GOLDENS / case / "model"
    config = ModelBase.load_hparams(folder, False)
    config.setdefault("n_ctx", config.get("n_positions"))
    model = conversion.get_model_class(
        conversion.get_model_architecture(config, ModelType.TEXT))

    def no_tokenizer(self):
        self.gguf_writer.add_tokenizer_model("none")

    def all_rows(self, data, name, bid):
        """Gemma 3 without the step that looks at the tokenizer's size."""
        yield from conversion.TextModel.modify_tensors(
            self, data + self.norm_shift(name), name, bid)

    model.set_vocab = no_tokenizer
    if hasattr(model, "norm_shift"):
        model.modify_tensors = all_rows
    model(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, model_name=case,
          hparams=config).write()


def sums(values):
    import numpy as np
    values = values.reshape(-1).astype(np.float64)
    weights = 1 + np.arange(values.size) % 1009
    return [float(values.sum()), float((values * weights).sum())]


def describe(path):
    import gguf
    reader = gguf.GGUFReader(path)
    keys = {field.name: field.contents() for field in reader.fields.values()
            if not re.match(r"GGUF\.|general\.(?!arch)|tokenizer\.",
                            field.name)}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        tensors[tensor.name] = [[int(size) for size in tensor.shape[::-1]],
                                *sums(values)]
    return {"keys": keys, "tensors": tensors}


def main(checkout, *cases):
    prepare(checkout)
    path = HERE / "converted.json"
    all_cases = json.loads(path.read_text()) if path.exists() else {}
    for case in cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "model.gguf"
            convert(case, out)
            all_cases[case] = describe(out)
    lines = []
    for case, content in sorted(all_cases.items()):
        tensors = ",\n   ".join(
            f"{json.dumps(name)}: {json.dumps(value)}"
            for name, value in content["tensors"].items())
        lines.append(f' {json.dumps(case)}: {{\n  "keys": '
                     f'{json.dumps(content["keys"])},\n  "tensors": {{\n   '
                     f'{tensors}}}}}')
    path.write_text("{\n" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
