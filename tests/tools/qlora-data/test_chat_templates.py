# SPDX-License-Identifier: MIT
"""The chat templates of the most used models: the texts of transformers
(Inputs/chat-texts.json), and which of their tokens are labelled."""

import json
import os
import re
import sys
import unittest
from datetime import datetime
from unittest import mock

from fixtures import CHATML, MISSING, TOOL, ToolTest, chat

FOLDER = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(FOLDER, "..", "..", "..")
sys.path.insert(0, os.path.dirname(os.path.realpath(TOOL)))

# End-of-turn tokens of the templates. The templates in NO_END have none.
ENDS = tuple("</s> <|im_end|> <|eot_id|> <|eot|> <end_of_turn> <|end|> "
             "<|endoftext|> <|end_of_turn|> <|END_OF_TURN_TOKEN|> <|return|> "
             "<|call|> <|end_of_text|> <｜end▁of▁sentence｜> <|eom|> "
             "[|endofturn|]".split())
NO_END = ("glm-4", "baichuan-2", "nemotron-mini")
# (template, conversation): gives several rows, because the template renders
# earlier turns differently.
SEVERAL = {
    ("mistral-v3", "system"), ("mistral-v3", "tools"),
    ("mistral-nemo", "system"), ("mistral-nemo", "tools"),
    *((name, talk) for name in ("qwen3", "nemotron-3", "gpt-oss")
      for talk in ("talk", "system", "tools", "thoughts", "tagged"))}


@unittest.skipIf(MISSING, f"Python packages not installed: {MISSING}")
class ChatTemplatesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(FOLDER, "Inputs", "chat-texts.json"),
                  encoding="utf-8") as file:
            cls.made = json.load(file)
        day = datetime.fromisoformat(cls.made["day"])
        clock = mock.patch("qlora_data.template.datetime")
        clock.start().now.return_value = day
        cls.addClassCleanup(clock.stop)
        cls.templates = {}

    def template(self, path):
        from qlora_data.template import Template
        if path not in self.templates:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                self.templates[path] = Template(file.read(), path)
        return self.templates[path]

    def cases(self):
        """Yields each case with its name, template and row."""
        from qlora_data.shapes import normalise
        for case in self.made["cases"]:
            talk = self.made["conversations"][case["conversation"]]
            row = normalise({"messages": talk["messages"],
                             "tools": talk["options"].get("tools")})
            name = os.path.basename(case["template"]).removesuffix(".jinja")
            with self.subTest(name, talk=case["conversation"]):
                yield case, name, self.template(case["template"]), row

    def test_texts_of_transformers(self):
        from qlora_data.errors import DataError
        self.assertGreater(len(self.made["cases"]), 150)
        for case, _, template, row in self.cases():
            asks = case["conversation"] == "prompt"
            if "raises" in case:
                with self.assertRaises(DataError) as refusal:
                    template.render(row, row.messages, self.made["special"])
                self.assertIn(case["raises"], str(refusal.exception))
                continue
            text, marks = template.render(row, row.messages,
                                          self.made["special"], asks)
            self.assertEqual(text, case["text"])
            self.assertEqual([list(mark) for mark in marks],
                             case.get("marks", []))

    def test_what_is_learned(self):
        """Checks that each answer is labelled once, with its end-of-turn token,
        and no other text."""
        from qlora_data.masking import Conversation, LossRule, learned_texts
        for case, name, template, row in self.cases():
            if "raises" in case:
                continue
            talk = Conversation(row, template, self.made["special"], ENDS)
            texts = learned_texts(talk, LossRule())
            if not template.has_marks:
                self.assertEqual(len(texts) > 1, (
                    name, case["conversation"]) in SEVERAL)
            turns = [text[begin:end] for text, spans in texts
                     for begin, end in spans]
            answers = [message for message in row.messages
                       if message["role"] == "assistant"]
            self.assertEqual(len(turns), len(answers))
            for turn, answer in zip(turns, answers):
                said = answer["content"].split("</think>")[-1].strip()
                self.assertEqual(turn.count(said), 1 if said else
                                 turn.count(said))
                if answer.get("tool_calls") and "tools" in template.source:
                    self.assertIn("add", turn)
                if name not in NO_END:
                    self.assertTrue(turn.rstrip().endswith(ENDS), turn)
                for other in row.messages:
                    if other["role"] != "assistant":
                        self.assertNotIn(other["content"] + "<", turn)
                self.assertNotRegex(turn, "(?i)assistant(?!<.channel)|hello")

    def test_the_options_of_qlora_name_them_all(self):
        from qlora_data.model_files import SHIPPED
        path = os.path.join(ROOT, "runtime", "Options",
                            "RunOptions.def")
        with open(path, encoding="utf-8") as file:
            row = re.search(r'\{"chat_template",.*?\},\n', file.read(), re.S)
        words = "".join(re.findall(r'"([^"]*)"', row[0].split(
            '"chat_template_path",')[1])).split()
        self.assertEqual(sorted(words), SHIPPED)


class NamesTest(ToolTest):
    def test_a_name_in_place_of_a_file(self):
        talk = {"messages": chat(("user", "hello"), ("assistant", "the user"))}
        for own in (None, CHATML):
            self.make_model(own)
            rows = self.convert(talk, flags=["--chat-template", "llama3"])
            self.assertEqual(self.learned(rows), ["the user<|eot_id|>"])
            self.assertTrue(self.decode(rows.ids[0]).startswith(
                "<s><|start_header_id|>user<|end_header_id|>\n\n"
                "hello<|eot_id|>"))
        error = self.refusal(flags=["--chat-template", "no-such"])
        self.assertIn("'no-such' is neither a file nor a known template; "
                      "use a Jinja file, one of alpaca, ", error)

    def test_other_places_of_templates(self):
        talk = {"messages": chat(("user", "a"), ("assistant", "b"))}
        tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
        self.make_model()
        self.write_model("chat_template.json",
                         json.dumps({"chat_template": "json " + CHATML}))
        rows = self.convert(talk)
        self.assertTrue(self.decode(rows.ids[0]).startswith("json <|im_start"))
        self.write_model("chat_template.jinja", CHATML)
        os.mkdir(os.path.join(self.model, "additional_chat_templates"))
        self.write_model("additional_chat_templates/tool_use.jinja",
                         "tools {{ tools[0].function.name }} " + CHATML)
        rows = self.convert(talk, talk | tools)
        self.assertTrue(self.decode(rows.ids[0]).startswith("<|im_start"))
        self.assertTrue(self.decode(rows.ids[1]).startswith("tools f <|im_st"))


if __name__ == "__main__":
    unittest.main()
