#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes foreign_examples.json: the training examples of axolotl and
LLaMA-Factory, as keys and values, one example a line.

    foreign_examples.py axolotl=CLONE LLaMA-Factory=CLONE

CLONE is a Git folder of the tool, with or without a work tree; its HEAD is
read. An example that the table had keeps its expected result. A new one has
none until test_foreign_examples.py --write has added it.

"family" is the architecture in config.json of the model that an example names.
"stored" is the format of its weights, if that is not one of floating point.
"""

import fnmatch
import json
import os
import subprocess
import sys

import yaml

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                     "foreign_examples.json")
# The key of the model, the key of each training file, and the data sets that a
# file describes.
TOOLS = {
    "axolotl": ("base_model", "base_model", None),
    "LLaMA-Factory": ("model_name_or_path", "do_train",
                      "data/dataset_info.json")}
# Architectures of the models, by the end of their names. The first pattern
# that matches counts.
FAMILIES = {
    "Gemma3ForConditionalGeneration": "gemma-3-4b* gemma-3-12b* gemma-3-27b*",
    "Gemma3ForCausalLM": "gemma-3-*",
    "Gemma3nForConditionalGeneration": "gemma-3n-*",
    "Gemma2ForCausalLM": "gemma-2-*",
    "GemmaForCausalLM": "gemma-7b",
    "Gemma4ForConditionalGeneration": "gemma-4-* Gemma-4-*",
    "MllamaForConditionalGeneration": "Llama-3.2-11B-Vision*",
    "Llama4ForConditionalGeneration": "Llama-4-*",
    "LlamaForCausalLM":
        "Llama-2-* Llama-3* Meta-Llama-3* llama-3-* CodeLlama-* TinyLlama* "
        "open_llama* llama-7b SmolLM2-* orpheus-3b* cogito-v1-preview-llama-* "
        "Yi-34B* xgen-7b* Sparse-Llama-3* llama3-8b-pro",
    "BitNetForCausalLM": "Falcon-E-*",
    "FalconH1ForCausalLM": "Falcon-H1-*",
    "FalconForCausalLM": "falcon-7b",
    "MixtralForCausalLM": "Mixtral-*",
    "Mistral3ForConditionalGeneration":
        "Magistral-Small-2509 Mistral-Small-3.1-* Ministral-3-3B-* "
        "Mistral-Medium-* Mistral-Small-4-*",
    "MistralForCausalLM":
        "Mistral-7B-* Devstral-Small-2507 Magistral-Small-* Ministral-8B-*",
    "PixtralForConditionalGeneration": "pixtral-*",
    "VoxtralForConditionalGeneration": "Voxtral-*",
    "Qwen2VLForConditionalGeneration": "Qwen2-VL-*",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2.5-VL-*",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3-VL-30B-*",
    "Qwen3VLForConditionalGeneration": "Qwen3-VL-*",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3.5-*-A*",
    "Qwen3_5ForConditionalGeneration": "Qwen3.5-*",
    "Qwen3NextForCausalLM": "Qwen3-Next-*",
    "Qwen3MoeForCausalLM": "Qwen3-30B-A3B* Qwen3-235B-A22B*",
    "Qwen3ForSequenceClassification": "Skywork-Reward-V2-Qwen3-*",
    "Qwen3ForCausalLM": "Qwen3-* Plano-Orchestrator-4B",
    "Qwen2MoeForCausalLM": "Qwen1.5-MoE-*",
    "QWenLMHeadModel": "Qwen-7B",
    "Qwen2ForCausalLM":
        "Qwen2-* Qwen2.5-* DeepCoder-14B* cogito-v1-preview-qwen-*",
    "PhiForCausalLM": "phi-1_5 phi-2",
    "Phi3ForCausalLM": "Phi-3*",
    "GptOssForCausalLM": "gpt-oss-*",
    "Starcoder2ForCausalLM": "starcoder2-*",
    "StableLmForCausalLM": "stablelm-2-*",
    "SeedOssForCausalLM": "Seed-OSS-*",
    "GPT2LMHeadModel": "Cerebras-GPT-*",
    "ApertusForCausalLM": "Apertus-*",
    "ArceeForCausalLM": "AFM-*",
    "AfmoeForCausalLM": "Trinity-*",
    "BTLMLMHeadModel": "btlm-*",
    "Cohere2ForCausalLM": "c4ai-command-r7b-*",
    "DbrxForCausalLM": "dbrx-*",
    "DeepseekV2ForCausalLM": "DeepSeek-V2*",
    "DeepseekV3ForCausalLM": "DeepSeek-V3*",
    "DeepseekV4ForCausalLM": "DeepSeek-V4*",
    "GPTJForCausalLM": "gpt-j-6b",
    "GPTNeoXForCausalLM": "pythia-* RedPajama-INCITE-*",
    "Glm4ForCausalLM": "GLM-4-32B-*",
    "Glm4MoeForCausalLM": "GLM-4.5-*",
    "Glm4vForConditionalGeneration": "GLM-4.6V-*",
    "Glm4MoeLiteForCausalLM": "GLM-4.7-*",
    "GlmMoeDsaForCausalLM": "GLM-5*",
    "GraniteMoeHybridForCausalLM": "granite-4.0-*",
    "HunYuanDenseV1ForCausalLM": "Hunyuan-*",
    "Idefics3ForConditionalGeneration": "SmolVLM2-*",
    "InternVLForConditionalGeneration": "InternVL*",
    "JambaForCausalLM": "Jamba-* AI21-Jamba-*",
    "KimiLinearForCausalLM": "Kimi-Linear-*",
    "Lfm2MoeForCausalLM": "LFM2-8B-A1B",
    "Lfm2VlForConditionalGeneration": "LFM2-VL-*",
    "Lfm2ForCausalLM": "LFM2-*",
    "LlavaForConditionalGeneration": "llava-*",
    "MPTForCausalLM": "mpt-7b replit-code-*",
    "MambaForCausalLM": "mamba-*",
    "MiMoForCausalLM": "MiMo-*",
    "MiniMaxM2ForCausalLM": "MiniMax-M2",
    "MossVLForConditionalGeneration": "MOSS-VL-*",
    "NemotronForCausalLM": "Nemotron-Mini-*",
    "NemotronHForCausalLM": "NVIDIA-Nemotron-3-*",
    "Olmo3ForCausalLM": "Olmo-3-*",
    "PaddleOCRVLForConditionalGeneration": "PaddleOCR-VL-*"}
STORED = {"gptq": "*-GPTQ", "awq": "*-AWQ", "aqlm": "*-AQLM-*",
          "nvfp4": "*-NVFP4", "bnb-nf4": "*-[bB][nN][bB]-[nN][fF]4-*"}


def git(folder, *words):
    return subprocess.run(["git", "-C", folder, *words], text=True, check=True,
                          capture_output=True).stdout


def matching(table, model):
    """Returns the first key of the table with a pattern for the model."""
    name = model.rstrip("/").rsplit("/", 1)[-1]
    for key, patterns in table.items():
        if any(fnmatch.fnmatchcase(name, each) for each in patterns.split()):
            return key
    return None


def example(tool, path, keys, kept):
    model = keys[TOOLS[tool][0]]
    found = {"tool": tool, "path": path, "family": matching(FAMILIES, model)}
    if found["family"] is None:
        sys.exit(f"{path}: no pattern of FAMILIES has '{model}'")
    if matching(STORED, model):
        found["stored"] = matching(STORED, model)
    return {**found, "expected": kept.get((tool, path)), "keys": keys}


def named_sets(folder, info, examples):
    """Returns the entries of dataset_info.json that the examples name."""
    sets = json.loads(git(folder, "show", "HEAD:" + info))
    names = {name.strip() for each in examples
             for key in ("dataset", "eval_dataset")
             for name in (each["keys"].get(key) or "").split(",")}
    return {name: sets[name] for name in sorted(names & set(sets))}


def read(tool, folder, kept):
    """Returns the tool's version and its examples."""
    _, training, info = TOOLS[tool]
    paths = git(folder, "ls-tree", "-r", "--name-only", "HEAD").splitlines()
    examples, sections = [], {}
    for path in paths:
        if not path.startswith("examples/") or \
                not path.endswith((".yml", ".yaml")):
            continue
        keys = yaml.safe_load(git(folder, "show", "HEAD:" + path))
        if not keys.get(training):
            continue
        examples.append(example(tool, path, keys, kept))
        section = keys.get("deepspeed")
        if isinstance(section, str) and section in paths:
            sections[section] = json.loads(git(folder, "show",
                                               "HEAD:" + section))
    version = {"commit": git(folder, "rev-parse", "HEAD").strip(),
               "files": sections}
    if info:
        version["sets"] = named_sets(folder, info, examples)
    return version, examples


def load():
    with open(TABLE, encoding="utf-8") as file:
        return json.load(file)


def save(tools, examples):
    def lines(items):
        return ",\n".join(items)

    def line(value):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    with open(TABLE, "w", encoding="utf-8") as file:
        file.write('{"tools":{\n' + lines(
            f"{line(name)}:{line(value)}" for name, value in tools.items()))
        file.write('},\n"examples":[\n' + lines(map(line, examples)) + "]}\n")


def main(arguments):
    kept, tools, examples = {}, {}, []
    if os.path.exists(TABLE):
        kept = {(each["tool"], each["path"]): each["expected"]
                for each in load()["examples"]}
    for argument in arguments:
        tool, _, folder = argument.partition("=")
        tools[tool], found = read(tool, folder, kept)
        examples += found
    save(tools, examples)


if __name__ == "__main__":
    main(sys.argv[1:])
