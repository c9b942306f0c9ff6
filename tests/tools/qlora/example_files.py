# SPDX-License-Identifier: MIT
"""Writes the examples of tests/Inputs/foreign_examples.json as files again,
with tiny local models of the same families and rows of the same shapes."""

import json
import os
import shutil
import string

from local_hub import COMMIT
from test_qlora import HERE

INPUTS = os.path.join(HERE, "../../Inputs")
TABLE = os.path.join(INPUTS, "foreign_examples.json")
# The golden case with a tiny model of each architecture, and of each format of
# stored weights.
GOLDENS = {
    "GPT2LMHeadModel": "gpt2", "Gemma2ForCausalLM": "gemma2-nf4",
    "Gemma3ForCausalLM": "gemma3-nf4",
    "Gemma3ForConditionalGeneration": "gemma3-wrapped-nf4",
    "GptOssForCausalLM": "gptoss", "LlamaForCausalLM": "llama-nf4",
    "MistralForCausalLM": "mistral-window", "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3-nf4", "Qwen2ForCausalLM": "qwen2-nf4",
    "Qwen2MoeForCausalLM": "qwen2moe-nf4", "Qwen3ForCausalLM": "qwen3-ranks",
    "Qwen3MoeForCausalLM": "qwen3moe-nf4", "SeedOssForCausalLM": "seedoss",
    "StableLmForCausalLM": "stablelm", "Starcoder2ForCausalLM": "starcoder2",
    "bnb-nf4": "prequantized-bnb", "gptq": "llama-gptq", "awq": "llama-awq"}
# Special tokens of the models that examples name, by the end of their names.
SPECIAL = {"Meta-Llama-3-8B-Instruct": {"bos_token": "<s>",
                                        "eos_token": "<|eot_id|>"},
           "Meta-Llama-3.1-8B": {"eos_token": "<|end_of_text|>"},
           "Mistral-7B-Instruct-v0.2": {"bos_token": "<s>",
                                        "eos_token": "</s>"},
           "Yi-34B-Chat": {"bos_token": "<|startoftext|>",
                           "eos_token": "<|endoftext|>",
                           "unk_token": "<unk>"},
           "xgen-7b-8k-base": {"eos_token": "<|endoftext|>"}}
# A tokenizer of characters, whose ids fit into the smallest tiny model.
TOKENS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>",
          "<|start_header_id|>", "<|end_header_id|>", "<|endoftext|>",
          "<|end|>", "<start_of_turn>", "<end_of_turn>", "<think>",
          "</think>", "<|user|>", "<|assistant|>", "<|startoftext|>",
          "<|end_of_text|>",
          # The opening sentences of Alpaca.
          "Below is an instruction that describes a task",
          ", paired with an input that provides further context",
          "Write a response that appropriately completes the request."]
LETTERS = "ĠĊ.,:?#<>|/" + string.ascii_letters + string.digits
CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message.role + "
          "'\n' }}{% if message.role == 'assistant' %}{% generation %}"
          "{{ message.content + '<|im_end|>' }}{% endgeneration %}{% else %}"
          "{{ message.content + '<|im_end|>' }}{% endif %}{{ '\n' }}"
          "{% endfor %}{% if add_generation_prompt %}"
          "{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA_2 = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}

QUESTION = {"role": "user", "content": "a?"}
ANSWERS = [{"role": "assistant", "content": word} for word in ("b", "c")]
TALK = [QUESTION, ANSWERS[0]]
ALPACA = {"instruction": "Name a city.", "input": "", "output": "Lisbon"}
PAIR = {"prompt": "a?", "chosen": TALK, "rejected": [QUESTION, ANSWERS[1]]}
# Rows by axolotl's `type`; PREFERENCES if the file has `rl`.
ROWS = {"alpaca": ALPACA, "completion": {"text": "a text"},
        "pretrain": {"text": "a text"},
        "jeopardy": {"question": "a", "category": "b", "answer": "c"}}
PREFERENCES = {"chat_template.argilla": PAIR, "chatml.ultra": PAIR,
               "llama3.ultra": {"prompt": "a?", "completion": "b",
                                "label": True}}


def load():
    with open(TABLE, encoding="utf-8") as file:
        return json.load(file)


def write(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))


def row_of(data, rl):
    """Returns a row of the shape that a data set of axolotl has."""
    kind = data.get("type") or "chat_template"
    field = data.get("field_messages") or "messages"
    if rl and kind == "chat_template.default":
        return {field: [QUESTION], "chosen": ANSWERS[0],
                "rejected": ANSWERS[1]}
    if rl:
        return PREFERENCES.get(kind, PAIR)
    row = ROWS.get(kind.split(":")[0])
    if kind == "completion" and data.get("field"):
        return {data["field"]: "a text"}
    names = data.get("message_property_mappings") or {
        "role": data.get("message_field_role", "role"),
        "content": data.get("message_field_content", "content")}
    return row or {field: [
        {names["role"]: {"user": "human", "assistant": "gpt"}[turn["role"]]
         if names["role"] == "from" else turn["role"],
         names["content"]: turn["content"]} for turn in TALK]}


def numbered(value, number):
    """Returns a row with the number in all its texts."""
    if isinstance(value, dict):
        return {key: item if key in ("role", "from") else
                numbered(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [numbered(item, number) for item in value]
    return f"{value} {number}" if isinstance(value, str) and value else value


class Folder:
    """A folder for files of examples, their models and their data. `count`: the
    rows of a data set."""

    def __init__(self, folder, tools, count=1):
        self.folder, self.tools, self.count = folder, tools, count
        self.cache = os.path.join(folder, "hub")
        self.models, self.made = {}, {}

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def model(self, example):
        """Returns the folder of a tiny model of the example's family."""
        name = example["keys"].get("base_model") \
            or example["keys"]["model_name_or_path"]
        tokens = next((tokens for end, tokens in SPECIAL.items()
                       if end in name), LLAMA_2)
        stored = example.get("stored", "")
        key = (example["family"], stored, tokens["eos_token"])
        if key not in self.models:
            self.models[key] = self.make_model(*key, tokens)
        return self.models[key]

    def make_model(self, family, stored, _, tokens):
        name = f"models/{len(self.models)}"
        folder = self.path(name)
        golden = GOLDENS.get(stored) or GOLDENS.get(family)
        if family in GOLDENS:
            shutil.copytree(os.path.join(INPUTS, "goldens", golden, "model"),
                            folder)
        else:
            write(folder + "/config.json", {"architectures": [family]})
        if stored and stored not in GOLDENS:
            with open(folder + "/config.json", encoding="utf-8") as file:
                config = json.load(file)
            write(folder + "/config.json", {
                **config, "quantization_config": {"quant_method": stored}})
        byte_level = {"type": "ByteLevel", "add_prefix_space": False,
                      "trim_offsets": True, "use_regex": True}
        write(folder + "/tokenizer.json", {
            "version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [
                {"id": number, "content": token, "single_word": False,
                 "lstrip": False, "rstrip": False, "normalized": False,
                 "special": True} for number, token in enumerate(TOKENS)],
            "normalizer": None, "pre_tokenizer": byte_level,
            "post_processor": None, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False,
                      "byte_fallback": False, "merges": [],
                      "vocab": {token: number for number, token in enumerate(
                          [*TOKENS, *LETTERS])}}})
        write(folder + "/tokenizer_config.json", {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": CHATML, **tokens})
        return name

    def lines(self, row):
        return "".join(json.dumps(numbered(row, number)) + "\n"
                       for number in range(self.count))

    def hub_rows(self, data, row):
        """Puts a data set of the hub into its cache."""
        folder = os.path.join(self.cache,
                              "datasets--" + data["path"].replace("/", "--"))
        write(folder + "/refs/main", COMMIT)
        if data.get("name"):  # a subset
            write(os.path.join(folder, "snapshots", COMMIT, "README.md"),
                  "---\nconfigs:\n- config_name: " + data["name"] +
                  "\n  data_files: train.jsonl\n---\n")
        for file in data.get("data_files") or ["train.jsonl"]:
            write(os.path.join(folder, "snapshots", COMMIT, file),
                  self.lines(row))

    def dataset(self, data, rl):
        """Returns a data set of axolotl with rows here. One that selects a part
        of its rows stays a data set of the hub, with rows in the cache. A data
        set that is named twice remains one."""
        key = json.dumps([data, rl])
        if key not in self.made:
            self.made[key] = self.make_dataset(data, rl)
        return self.made[key]

    def make_dataset(self, data, rl):
        row = row_of(data, rl)
        if any(data.get(key) for key in ("split", "data_files", "name")):
            self.hub_rows(data, row)
            return data
        name = f"rows/{len(self.made)}.jsonl"
        write(self.path(name), self.lines(row))
        return {**data, "path": name}

    def sets(self, tool, keys):
        """Writes dataset_info.json, and the rows of the data sets that the file
        names."""
        known = self.tools[tool]["sets"]
        entries = {}
        for name in keys["dataset"].replace(" ", "").split(","):
            entry = {key: value for key, value in known.get(name, {}).items()
                     if not key.endswith("_hub_url")}
            columns = entry.get("columns", {})
            row = {"instruction": "a", "input": "b", "output": "c",
                   "text": "a text", "conversations": [
                       {"from": "human", "value": "a"},
                       {"from": "gpt", "value": "b"}]}
            if entry.get("ranking"):
                row |= {"chosen": {"from": "gpt", "value": "b"},
                        "rejected": {"from": "gpt", "value": "c"},
                        "conversations": row["conversations"][:1]}
            if "kto_tag" in columns:
                row = {"messages": TALK, columns["kto_tag"]: True}
            entries[name] = {**entry, "file_name": name + ".jsonl"}
            write(self.path("data", name + ".jsonl"), self.lines(row))
        write(self.path("data/dataset_info.json"), entries)
        remote = keys.get("dataset_dir", "").removeprefix("REMOTE:")
        if remote != keys.get("dataset_dir", ""):
            folder = os.path.join(
                self.cache, "datasets--" + remote.replace("/", "--"))
            write(folder + "/refs/main", COMMIT)
            shutil.copytree(self.path("data"),
                            os.path.join(folder, "snapshots", COMMIT),
                            dirs_exist_ok=True)

    def write(self, example, name="train.yaml"):
        """Writes the example's file and returns its path."""
        keys, tool = dict(example["keys"]), example["tool"]
        os.makedirs(self.path("rows"), exist_ok=True)
        for key in ("base_model", "model_name_or_path"):
            if key in keys:
                keys[key] = self.model(example)
        for key in ("base_model_config", "tokenizer_config"):
            if keys.get(key) == example["keys"].get("base_model", ""):
                keys[key] = keys["base_model"]
        if keys.get("use_llama_pro"):
            keys["freeze_trainable_layers"] = 2  # the tiny models' layers
        for key in ("datasets", "test_datasets", "pretraining_dataset"):
            if keys.get(key):
                keys[key] = [self.dataset(data, keys.get("rl"))
                             for data in keys[key]]
        if "dataset" in keys:
            self.sets(tool, keys)
        for path, content in self.tools[tool]["files"].items():
            write(self.path(path), content)
        # YAML has JSON's notation. One key a line, for messages with lines.
        text = "".join(f"{key}: {json.dumps(value)}\n"
                       for key, value in keys.items())
        write(self.path(name), text)
        return self.path(name)


def ranks(example):
    """Returns the ranks that the sizes of the file's axes need, at least 2 if
    it shards weights."""
    keys = example["keys"]
    shards = any(keys.get(key) for key in ("fsdp", "fsdp_config", "deepspeed"))
    count = 1
    for key in ("tensor_parallel_size", "context_parallel_size",
                "dp_shard_size", "dp_replicate_size", "expert_parallel_size",
                "tensor_model_parallel_size", "pipeline_model_parallel_size",
                "expert_model_parallel_size"):
        count *= keys.get(key) or 1
    return max(count, 2) if shards else count
