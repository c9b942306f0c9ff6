# SPDX-License-Identifier: MIT
"""`qlora-data gguf`: the keys of tokenizers, and Modelfiles."""

import json
import os
import subprocess
import sys

from fixtures import (CHATML, CHATML_MARKED, LLAMA3, SPECIAL, TOOL, ToolTest,
                      adds, byte_fallback, byte_level)
from go_templates import execute
from test_tokenizers import ModelsTest

sys.path.insert(0, os.path.dirname(os.path.realpath(TOOL)))
TEMPLATES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..",
                         "Inputs", "chat_templates")

# Their rules depend on the number of the turn, or they put a system message
# elsewhere.
WITHOUT_GO = {"mistral-nemo.jinja", "mistral-v3.jinja"}


class GgufTest(ToolTest):
    def gguf(self, size=400, *options):
        """Returns the command's keys as {name: value}, and its result."""
        result = subprocess.run(
            [sys.executable, TOOL, "gguf", "--model", self.model,
             "--vocab-size", str(size), *options],
            capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        result = json.loads(result.stdout)
        return {name: value for name, _, value in result["keys"]}, result

    def refused(self, size=400):
        result = subprocess.run(
            [sys.executable, TOOL, "gguf", "--model", self.model,
             "--vocab-size", str(size)], capture_output=True, text=True)
        self.assertEqual(result.returncode, 1, result.stdout)
        return result.stderr

    def change_tokenizer(self, change):
        path = os.path.join(self.model, "tokenizer.json")
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        change(value)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)


class ByteLevelTest(GgufTest):
    def test_keys(self):
        self.make_model(CHATML)
        self.write_model("generation_config.json", json.dumps(
            {"eos_token_id": [self.tokenizer.token_to_id("<|eot_id|>")]}))
        size = self.tokenizer.get_vocab_size()
        keys, result = self.gguf(size + 2)
        id_of = self.tokenizer.token_to_id
        self.assertEqual(keys["tokenizer.ggml.model"], "gpt2")
        self.assertEqual(keys["tokenizer.ggml.pre"], "gpt-2")
        tokens = keys["tokenizer.ggml.tokens"]
        self.assertEqual(tokens[:size], [
            self.tokenizer.id_to_token(number) for number in range(size)])
        self.assertEqual(tokens[size:], [f"[PAD{size}]", f"[PAD{size + 1}]"])
        types = keys["tokenizer.ggml.token_type"]
        self.assertEqual(types[size:], [5, 5])
        self.assertEqual({types[id_of(text)] for text in SPECIAL}, {3})
        self.assertEqual(types[id_of("a")], 1)
        merges = json.loads(self.tokenizer.to_str())["model"]["merges"]
        self.assertEqual(keys["tokenizer.ggml.merges"],
                         [" ".join(pair) for pair in merges])
        self.assertEqual(keys["tokenizer.ggml.bos_token_id"], id_of("<s>"))
        self.assertEqual(keys["tokenizer.ggml.eos_token_id"], id_of("</s>"))
        # generation_config.json's, and the one of the chat template.
        self.assertEqual(keys["tokenizer.ggml.eot_token_id"],
                         id_of("<|eot_id|>"))
        self.assertEqual(keys["tokenizer.ggml.eom_token_id"],
                         id_of("<|im_end|>"))
        self.assertFalse(keys["tokenizer.ggml.add_bos_token"])
        self.assertEqual(keys["tokenizer.chat_template"], CHATML)
        self.assertEqual(result["warnings"], [])

    def test_ends_of_a_text(self):
        self.make_model(tokenizer=adds(byte_level(), "<s> $A </s>"))
        keys, _ = self.gguf()
        self.assertTrue(keys["tokenizer.ggml.add_bos_token"])
        self.assertTrue(keys["tokenizer.ggml.add_eos_token"])
        self.make_model(tokenizer=adds(byte_level(), "[INST] $A"))
        self.assertIn("adds [INST] to a text", self.refused())

    def test_four_ends(self):
        self.make_model(CHATML)
        ids = [self.tokenizer.token_to_id(text) for text in
               ("<|im_start|>", "[INST]", "[/INST]", "<|endoftext|>")]
        self.write_model("generation_config.json",
                         json.dumps({"eos_token_id": ids}))
        keys, result = self.gguf()
        self.assertEqual(keys["tokenizer.ggml.eom_token_id"], ids[1])
        # llama.cpp knows <|endoftext|> and <|im_end|> by their texts.
        self.assertEqual(len(result["warnings"]), 1)
        self.assertIn("'[/INST]' does not end", result["warnings"][0])

    def test_marks_of_generation(self):
        self.make_model(CHATML_MARKED)
        keys, _ = self.gguf()
        self.assertNotIn("generation %}", keys["tokenizer.chat_template"])
        self.assertIn("{%- if true %}", keys["tokenizer.chat_template"])

    def test_vocabulary_of_the_model(self):
        self.make_model()
        self.assertIn("but the model has 100 tokens", self.refused(100))

    def test_pre_tokenizers(self):
        from qlora_data.gguf_pretokenizers import _NAMES, _LLAMA3
        self.make_model()
        byte_levels = {"type": "ByteLevel", "add_prefix_space": False,
                       "trim_offsets": False, "use_regex": False}
        for rules, name in {**_NAMES, _LLAMA3: "dbrx"}.items():
            steps = []
            for rule in rules:
                if rule == "digits":
                    steps.append({"type": "Digits",
                                  "individual_digits": True})
                elif rule != "gpt2":
                    steps.append({"type": "Split", "invert": False,
                                  "pattern": {"Regex": rule},
                                  "behavior": "Isolated"})
            steps.append({**byte_levels, "use_regex": rules[-1] == "gpt2"})
            with self.subTest(name):
                self.change_tokenizer(lambda value: value.update(
                    pre_tokenizer={"type": "Sequence",
                                   "pretokenizers": steps}))
                keys, _ = self.gguf()
                self.assertEqual(keys["tokenizer.ggml.pre"], name)
        self.change_tokenizer(
            lambda value: value["model"].update(ignore_merges=True))
        keys, _ = self.gguf()
        self.assertEqual(keys["tokenizer.ggml.pre"], "llama-bpe")

    def test_unknown_pre_tokenizer(self):
        self.make_model()
        steps = [{"type": "Split", "pattern": {"Regex": r"x+|y"},
                  "behavior": "Isolated", "invert": False},
                 {"type": "ByteLevel", "add_prefix_space": False,
                  "trim_offsets": True, "use_regex": False}]
        self.change_tokenizer(lambda value: value.update(pre_tokenizer={
            "type": "Sequence", "pretokenizers": steps}))
        self.assertIn("no pre-tokenizer with these rules: x+|y",
                      self.refused())

    def test_normalizers(self):
        self.make_model()
        self.change_tokenizer(
            lambda value: value.update(normalizer={"type": "NFC"}))
        _, result = self.gguf()
        self.assertIn("NFC", result["warnings"][0])
        self.change_tokenizer(
            lambda value: value.update(normalizer={"type": "Lowercase"}))
        self.assertIn("has no normalizer Lowercase", self.refused())


def sentencepiece_ids(keys, text):
    """Tokenizes as llama.cpp does: the pair of neighbours whose union has the
    highest score is merged first, the left one of two equal ones."""
    tokens = keys["tokenizer.ggml.tokens"]
    ids = {token: number for number, token in enumerate(tokens)}
    scores = keys["tokenizer.ggml.scores"]
    parts = list((" " if keys["tokenizer.ggml.add_space_prefix"] else "")
                 .join(("", text)).replace(" ", "▁"))
    while True:
        best = max(((scores[ids[a + b]], -at) for at, (a, b)
                    in enumerate(zip(parts, parts[1:])) if a + b in ids),
                   default=None)
        if best is None:
            break
        at = -best[1]
        parts[at:at + 2] = [parts[at] + parts[at + 1]]
    return [number for part in parts for number in (
        [ids[part]] if part in ids else
        [ids[f"<0x{byte:02X}>"] for byte in part.encode()])]


class SentencePieceTest(GgufTest, ModelsTest):
    def test_order_of_merges(self):
        """Each tokenizer of the kind gives the same tokens by scores."""
        tried = 0
        for case in self.made["cases"]:
            self.put(case)
            tokenizer = self.loaded()
            model = tokenizer.description()["model"]
            if model["type"] != "BPE" or not model.get("byte_fallback") \
                    or "<unk>" in case["name"]:
                continue
            result = subprocess.run(
                [sys.executable, TOOL, "gguf", "--model", self.model,
                 "--vocab-size", str(tokenizer.size())],
                capture_output=True, text=True)
            if result.returncode:
                continue
            keys = {name: value for name, _, value
                    in json.loads(result.stdout)["keys"]}
            for text in ("hello world", "the quick brown fox", "日本 é 😀",
                         "a  b   c", "assistant: 12 567", "x"):
                with self.subTest(case["name"], text=text):
                    self.assertEqual(sentencepiece_ids(keys, text),
                                     tokenizer.encode([text])[0].ids)
                    tried += 1
        self.assertGreater(tried, 5)

    def test_types(self):
        self.make_model(tokenizer=byte_fallback())
        keys, _ = self.gguf()
        types = keys["tokenizer.ggml.token_type"]
        tokens = keys["tokenizer.ggml.tokens"]
        self.assertEqual(keys["tokenizer.ggml.model"], "llama")
        self.assertTrue(keys["tokenizer.ggml.add_space_prefix"])
        for text, kind in (("<unk>", 2), ("<s>", 3), ("a", 1), ("<0x41>", 6),
                           ("[PAD399]", 5)):
            self.assertEqual(types[tokens.index(text)], kind, text)

    def test_refusals(self):
        self.make_model(tokenizer=byte_fallback())

        def merge(value):
            value["model"]["vocab"].update({"ab": 390, "abc": 391, "bc": 392})
            value["model"]["merges"] = [["a", "b"], ["ab", "c"]]

        self.change_tokenizer(merge)
        self.assertIn("the merges of 'abc'", self.refused())
        self.make_model(tokenizer=byte_fallback())
        self.change_tokenizer(
            lambda value: value["model"]["vocab"].pop("<0x41>"))
        self.assertIn("has no token <0x41>", self.refused())
        self.make_model(tokenizer=byte_fallback())
        self.change_tokenizer(
            lambda value: value.update(normalizer={"type": "NFKC"}))
        self.assertIn("no normalizer NFKC", self.refused())


def conversation(roles):
    names = {"s": "system", "u": "user", "a": "assistant"}
    return [{"role": names[role], "content": f"Text {number} é\n\n{{x}}"}
            for number, role in enumerate(roles)]


class ModelfileTest(GgufTest):
    def test_templates(self):
        """The Go template writes what each published template writes."""
        from qlora_data.ollama import go_template
        from qlora_data.shapes import conversation as chat_row
        from qlora_data.template import Template
        names = sorted(os.listdir(TEMPLATES))
        self.assertGreater(len(names), 30)
        for name in names:
            path = os.path.join(TEMPLATES, name)
            with open(path, encoding="utf-8") as file:
                template = Template(file.read(), path)

            def render(messages):
                return template.render(
                    chat_row({"messages": messages}), messages,
                    {"bos_token": "<s>", "eos_token": "</s>"},
                    add_generation_prompt=True)[0]

            with self.subTest(name):
                found = go_template(render, ["<s>", "</s>"])
                self.assertEqual(found is None, name in WITHOUT_GO)
                for roles in ("u", "uau", "suau") if found else ():
                    messages = conversation(roles)
                    try:
                        expected = render(messages)
                    except Exception:  # no system message
                        self.assertIn("s", roles)
                        continue
                    self.assertEqual(execute(found, messages), expected)

    def test_file(self):
        self.make_model(LLAMA3, adds(byte_level(), "<s> $A"))
        self.write_model("generation_config.json", json.dumps(
            {"do_sample": True, "temperature": 0.6, "top_p": 0.95,
             "eos_token_id": self.tokenizer.token_to_id("<|eot_id|>")}))
        _, result = self.gguf(400, "--modelfile", "model.gguf")
        lines = result["modelfile"].splitlines()
        self.assertEqual(lines[0], "FROM ./model.gguf")
        # ollama adds BOS itself.
        self.assertTrue(lines[1].startswith('TEMPLATE """{{ range'))
        self.assertIn('PARAMETER stop "<|eot_id|>"', lines)
        self.assertIn("PARAMETER temperature 0.6", lines)
        self.assertIn("PARAMETER top_p 0.95", lines)
        self.assertEqual(result["warnings"], [])

    def test_without_sampling(self):
        self.make_model()
        _, result = self.gguf(400, "--modelfile", "model.gguf")
        self.assertEqual(result["modelfile"],
                         'FROM ./model.gguf\nPARAMETER stop "</s>"\n'
                         "PARAMETER temperature 0\n")

    def test_template_that_go_cannot_say(self):
        self.make_model("{% for m in messages %}{{ loop.index }}{{ m.content }}"
                        "{% endfor %}")
        _, result = self.gguf(400, "--modelfile", "model.gguf")
        self.assertNotIn("TEMPLATE", result["modelfile"])
        self.assertIn("write TEMPLATE yourself", result["warnings"][0])
