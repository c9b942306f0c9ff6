# SPDX-License-Identifier: MIT
"""Tokenizers of each kind that models have: the tokens, the masks and the
special tokens of AutoTokenizer (Inputs/tokenizers.json)."""

import base64
import json
import os
import shutil
import sys
import zlib

from fixtures import CHATML_MARKED, MISTRAL, TOOL, ToolTest, chat

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(os.path.realpath(TOOL)))


class ModelsTest(ToolTest):
    """Has the model folders of Inputs/tokenizers.json."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(FOLDER, "Inputs", "tokenizers.json"),
                  encoding="utf-8") as file:
            cls.made = json.load(file)

    def file(self, name):
        return zlib.decompress(base64.b64decode(self.made["files"][name]))

    def put(self, case):
        """Replaces the previous case's folder with this case's."""
        shutil.rmtree(self.model)
        os.mkdir(self.model)
        for name, model in case["files"].items():
            with open(os.path.join(self.model, name), "wb") as file:
                file.write(self.file(model))
        for name, value in case["json"].items():
            self.write_model(name, json.dumps(value))

    def loaded(self):
        from qlora_data.model_files import ModelFiles
        from qlora_data.tokenizer import TextTokenizer
        return TextTokenizer(ModelFiles(self.model))


class TokenizersTest(ModelsTest):
    def test_as_transformers(self):
        self.assertGreater(len(self.made["cases"]), 40)
        for case in self.made["cases"]:
            self.put(case)
            tokenizer = self.loaded()
            with self.subTest(case["name"]):
                special = {name: tokenizer.special_tokens.get(name)
                           for name in case["special"]}
                self.assertEqual(special, case["special"])
                for text, expected in zip(self.made["texts"], case["texts"]):
                    self.assertEqual(tokenizer.encode([text])[0].ids, expected,
                                     text)
                encoding = tokenizer.encode(["hello"])[0]
                before, after = tokenizer.affixes(encoding)
                self.assertEqual(before + encoding.ids + after, case["plain"])

    def test_masks_of_transformers(self):
        from qlora_data.masking import Conversation, LossRule, labels_of, \
            learned_texts
        from qlora_data.shapes import normalise
        from qlora_data.template import Template
        talk = Conversation(normalise({"messages": self.made["talk"]}),
                            Template(CHATML_MARKED, "t"), {}, ())
        [(text, spans)] = learned_texts(talk, LossRule())
        for case in self.made["cases"]:
            self.put(case)
            encoding = self.loaded().encode([text])[0]
            labels = labels_of(encoding.ids, encoding.offsets, spans)
            with self.subTest(case["name"]):
                self.assertEqual(encoding.ids, case["chat"])
                self.assertEqual([int(label != -100) for label in labels],
                                 case["mask"])

    def case(self, name):
        return next(case for case in self.made["cases"]
                    if case["name"] == name)

    def test_the_tool_reads_sentencepiece(self):
        self.put(self.case("Llama 2 bos, eos"))
        self.write_model("chat_template.jinja", MISTRAL)
        rows = self.convert(
            {"text": "hello world"}, {"prompt": "日 ", "completion": "é"},
            {"messages": chat(("user", "hello"), ("assistant", "the fox"))})
        tokenizer = self.loaded()
        texts = [[tokenizer.token(number) for number in labels
                  if number != -100] for labels in rows.labels]
        self.assertEqual([rows.ids[0][0], rows.ids[0][-1]], [1, 2])
        self.assertEqual(texts[0], ["▁hello", "▁world", "</s>"])
        # The space before the answer is part of its token.
        self.assertEqual(texts[1], ["▁é", "</s>"])
        self.assertEqual(texts[2], ["▁the", "▁fox", "</s>"])

    def test_broken_files(self):
        self.write_data({"text": "a"})
        whole, messages = self.file("llama"), []
        for data in (b"", b"\xff" * 30, whole[:5000], b"\x0a\xff\xff\xff\x7f",
                     b"\x0a\x04\x0a\x02\xff\xfe", b"YQ== 0\nYg== 1\n",
                     b"\x0a\x09\x0a\x02ab\x15\x00\x00\x00\x00\x12\x02\x18\x03"):
            with open(os.path.join(self.model, "tokenizer.model"),
                      "wb") as file:
                file.write(data)
            messages.append(self.refusal())
        self.assertIn("is a vocabulary of tiktoken", messages[-2])
        self.assertIn("words, of characters", messages[-1])

    def test_other_forms_are_refused_by_name(self):
        self.write_data({"text": "a"})
        self.write_model("tokenizer_config.json",
                         '{"tokenizer_class": "RobertaTokenizer"}')
        for name, message in (
                ("merges.txt", "has merges.txt but no tokenizer.json; convert"),
                ("vocab.txt", "has vocab.txt but no tokenizer.json; convert"),
                ("qwen.tiktoken",
                 "has qwen.tiktoken, a vocabulary of tiktoken, which")):
            self.write_model(name, "")
            self.assertIn(message, self.refusal())
            os.unlink(os.path.join(self.model, name))
