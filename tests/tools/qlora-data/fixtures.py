# SPDX-License-Identifier: MIT
"""Creates model folders, and runs the tool on rows."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
from array import array

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                    "..", "tools", "qlora-data", "qlora-data")

MISSING = [name for name in ("tokenizers", "jinja2")
           if importlib.util.find_spec(name) is None]

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>", "</s>",
           "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|eot_id|>", "[INST]", "[/INST]"]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")

CHATML_MARKED = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- message.content + '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

LLAMA3 = (
    "{{- bos_token }}{%- for message in messages %}"
    "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' }}"
    "{{- message.content | trim }}{{- '<|eot_id|>' }}{%- endfor %}"
    "{%- if add_generation_prompt %}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}")

MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}"
    "{% if message.role == 'user' %}"
    "{{ '[INST] ' + message.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + message.content + eos_token }}{% endif %}"
    "{% endfor %}")

QWEN_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant' }}
        {%- if message.content %}
            {{- '\\n' + message.content }}
        {%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# Drops the reasoning of all turns except the last, as some published templates
# do.
FORGETFUL = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.role == 'assistant' and loop.last %}{{ '<think></think>' }}"
    "{% endif %}{{ message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def byte_level(more=()):
    """Returns a byte-level BPE tokenizer with few merges, which splits
    non-ASCII characters into bytes. `more`: further special tokens."""
    from tokenizers import (Tokenizer, decoders, models, pre_tokenizers,
                            trainers)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        ["hello world the user and the assistant say 日本 é\n\n"] * 4,
        trainers.BpeTrainer(
            vocab_size=320, special_tokens=[*SPECIAL, *more],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def byte_fallback():
    """Returns a BPE tokenizer like SentencePiece's, with a mark for the leading
    space and with byte fallback."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers
    pieces = ["<unk>"] + SPECIAL + ["▁"] + list("abcdefghijklmnopqrstuvwxyz")
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(
        {piece: index for index, piece in enumerate(pieces)}, [],
        unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    return tokenizer


def adds(tokenizer, single):
    """Returns `tokenizer` with a post-processor that formats a text as
    `single` and trims offsets as byte-level models do."""
    from tokenizers import processors
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single=single, special_tokens=[
            (text, tokenizer.token_to_id(text)) for text in SPECIAL])])
    return tokenizer


class Rows:
    """A token file, read independently of the code that wrote it."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.raw = file.read()
        size = int.from_bytes(self.raw[:8], "little")
        self.header = json.loads(self.raw[8:8 + size])
        self.metadata = self.header.pop("__metadata__")
        self.data = self.raw[8 + size:]
        offsets = self.tensor("row_offsets", "q")
        ids, labels = self.tensor("input_ids", "i"), self.tensor("labels", "i")
        bounds = list(zip(offsets, offsets[1:]))
        self.desirable = (list(self.tensor("desirable", "i"))
                          if "desirable" in self.header else None)
        self.ids = [list(ids[begin:end]) for begin, end in bounds]
        self.labels = [list(labels[begin:end]) for begin, end in bounds]

    def tensor(self, name, code):
        begin, end = self.header[name]["data_offsets"]
        values = array(code)
        values.frombytes(self.data[begin:end])
        return values


@unittest.skipIf(MISSING, f"Python packages not installed: {MISSING}")
class ToolTest(unittest.TestCase):
    """Each test has a folder with a model and a data file in it."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.addCleanup(self._folder.cleanup)
        self.folder = self._folder.name
        self.model = self.path("model")
        os.mkdir(self.model)
        self.data = self.path("data.jsonl")
        self.output = self.path("rows.safetensors")

    def path(self, *names):
        return os.path.join(self.folder, *names)

    def make_model(self, template=None, tokenizer=None, **config):
        self.tokenizer = tokenizer or byte_level()
        self.tokenizer.save(os.path.join(self.model, "tokenizer.json"))
        values = {"tokenizer_class": "PreTrainedTokenizerFast",
                  "bos_token": "<s>", "eos_token": "</s>", **config}
        if template is not None:
            values["chat_template"] = template
        self.write_model("tokenizer_config.json", json.dumps(values))

    def write_model(self, name, text):
        with open(os.path.join(self.model, name), "w", encoding="utf-8") as f:
            f.write(text)

    def write_data(self, *rows):
        with open(self.data, "w", encoding="utf-8") as file:
            for row in rows:
                text = row if isinstance(row, str) else json.dumps(row)
                file.write(text + "\n")

    def run_tool(self, *flags, **options):
        return subprocess.run(
            [sys.executable, TOOL, "--tokenizer", self.model, "--input",
             self.data, "--output", self.output, *flags],
            capture_output=True, text=True, check=False, **options)

    def convert(self, *rows, flags=()):
        """Converts `rows`. Returns the token file; sets self.summary and
        self.warnings."""
        self.write_data(*rows)
        done = self.run_tool(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.summary = json.loads(done.stdout)
        self.warnings = done.stderr
        return Rows(self.output)

    def refusal(self, *rows, flags=()):
        """Converts `rows`, which must fail with one line and leave no file.
        Returns the error message."""
        if rows:
            self.write_data(*rows)
        before = set(os.listdir(self.folder))
        done = self.run_tool(*flags)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("qlora-data: error: "))
        self.assertEqual(set(os.listdir(self.folder)), before)
        return done.stderr.strip()

    def decode(self, ids):
        return self.tokenizer.decode([i for i in ids if i != -100],
                                     skip_special_tokens=False)

    def learned(self, rows):
        """Returns the labelled text of each row."""
        return [self.decode(labels) for labels in rows.labels]


def chat(*turns):
    """Returns turns, such as ("user", "hi"), as messages."""
    return [{"role": role, "content": content} for role, content in turns]
