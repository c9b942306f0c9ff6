# SPDX-License-Identifier: MIT
"""Conversations of Qwen3: compares the training template with transformers'
results for the templates of the model and of TRL (Inputs/qwen3-texts.json)."""

import json
import os
import sys

from fixtures import CHATML, CHATML_MARKED, TOOL, ToolTest, chat

FOLDER = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.realpath(TOOL))
sys.path.insert(0, PACKAGE)

CHOSEN = "uses the chat template qwen3-training"

TALK = chat(("user", "hello"), ("assistant", "<think>\nwell\n</think>\n\nhi"),
            ("user", "and?"), ("assistant", "bye"))
SINGLE = TALK[:2]
NO_THOUGHTS = "<think>\n\n</think>\n\n"


def training_source():
    with open(os.path.join(PACKAGE, "qlora_data", "chat_templates",
                           "qwen3-training.jinja"), encoding="utf-8") as file:
        return file.read()


def own_template(opens_thinking=False):
    """Returns a template that renders like Qwen3's own: the training template,
    changed to drop earlier thinking. It is checked with the texts of
    transformers."""
    source = training_source()
    for ours, own in (
            ("{%- set talk = namespace(has_question=false) %}",
             "{%- set talk = namespace(has_question=false, last=messages|length"
             " - 1) %}{%- for m in messages %}{%- if m.role == 'user' and not "
             "(m.content.startswith('<tool_response>') and m.content.endswith("
             "'</tool_response>')) %}{%- set talk.last = loop.index0 %}"
             "{%- endif %}{%- endfor %}"),
            ("{%- if talk.has_question %}",
             "{%- if loop.index0 > talk.last and (loop.last or thoughts) %}"),
            ("{%- generation %}", ""), ("{%- endgeneration %}", "")):
        assert source.count(ours) == 1, ours
        source = source.replace(ours, own)
    return source.replace("opens_thinking %}", f"{opens_thinking} %}}")


class TextsTest(ToolTest):
    """Compares rendered texts, without a tokenizer."""

    @classmethod
    def setUpClass(cls):
        with open(os.path.join(FOLDER, "Inputs", "qwen3-texts.json"),
                  encoding="utf-8") as file:
            cls.cases = json.load(file)["cases"]

    def render(self, source, case):
        from qlora_data.shapes import ChatRow
        from qlora_data.template import Template
        options = dict(case["options"])
        tools = options.pop("tools", None)
        asks = options.pop("add_generation_prompt", False)
        row = ChatRow("messages", case["messages"], tools, 0, options)
        return Template(source, "t").render(row, row.messages, {}, asks)

    def test_the_stand_in_writes_what_qwen3_writes(self):
        for case in self.cases:
            with self.subTest(case["name"]):
                self.assertEqual(self.render(own_template(), case)[0],
                                 case["own"])

    def test_same_text_wherever_qwen3_does_not_forget(self):
        lasting = [case for case in self.cases if case["own_lasts"]]
        self.assertGreater(len(lasting), 10)
        for case in lasting:
            with self.subTest(case["name"]):
                self.assertEqual(self.render(training_source(), case)[0],
                                 case["own"])

    def test_otherwise_the_text_of_trl(self):
        others = [case for case in self.cases if not case["own_lasts"]]
        self.assertGreater(len(others), 5)
        for case in others:
            with self.subTest(case["name"]):
                self.assertEqual(self.render(training_source(), case)[0],
                                 case["training"])

    def test_earlier_turns_stay(self):
        for case in self.cases:
            text = self.render(training_source(), case)[0]
            for end, message in enumerate(case["messages"], 1):
                if message["role"] == "assistant":
                    part = {**case, "messages": case["messages"][:end]}
                    with self.subTest(case["name"], end=end):
                        self.assertTrue(text.startswith(
                            self.render(training_source(), part)[0]))

    def test_marks_are_what_the_model_writes(self):
        for case in self.cases:
            text, marks = self.render(training_source(), case)
            turns = sum(message["role"] == "assistant"
                        for message in case["messages"])
            with self.subTest(case["name"]):
                self.assertEqual(len(marks), turns)
                for begin, end in marks:
                    before = text[:begin].removesuffix(NO_THOUGHTS)
                    self.assertTrue(before.endswith("<|im_start|>assistant\n"))
                    self.assertTrue(text[begin:end].endswith("<|im_end|>"))


class ChoiceTest(ToolTest):
    """Tests which template is used, and what is labelled with it."""

    def learn(self, template, messages, flags=(), **row):
        self.make_model(template)
        rows = self.convert({"messages": messages, **row}, flags=flags)
        self.text = self.decode(rows.ids[0])
        self.metadata = rows.metadata
        return self.learned(rows)[0]

    def test_chosen_by_itself_for_several_turns(self):
        self.assertEqual(
            self.learn(own_template(), TALK),
            "<think>\nwell\n</think>\n\nhi<|im_end|>" + NO_THOUGHTS
            + "bye<|im_end|>")
        self.assertIn(CHOSEN, self.warnings)
        self.assertEqual(self.metadata["chosen_template"], "qwen3-training")

    def test_rows_that_worked_before_are_the_same(self):
        rows = [{"messages": SINGLE}, {"messages": TALK[2:]},
                {"messages": TALK[2:],
                 "chat_template_kwargs": {"enable_thinking": False}},
                {"prompt": TALK[:1], "completion": TALK[1:2]}]
        self.make_model(own_template())
        chosen = self.convert(*rows)
        self.assertIn(CHOSEN, self.warnings)
        from qlora_data.masking import Conversation, LossRule, learned_texts
        from qlora_data.shapes import normalise
        from qlora_data.template import Template
        own = Template(own_template(), "own")
        for row, ids, labels in zip(rows, chosen.ids, chosen.labels):
            talk = Conversation(normalise(row), own, {}, ("<|im_end|>",))
            [(text, spans)] = learned_texts(talk, LossRule())
            self.assertEqual(self.decode(ids), text)
            self.assertEqual(self.decode(labels), "".join(
                text[begin:end] for begin, end in spans))

    def test_tools_turn_by_turn(self):
        call = {"type": "function",
                "function": {"name": "add", "arguments": {"a": 1}}}
        tools = [{"type": "function", "function": {"name": "add"}}]
        messages = [*chat(("user", "1+1?")),
                    {"role": "assistant", "content": None,
                     "tool_calls": [call]},
                    *chat(("tool", "2"), ("assistant", "two"))]
        self.assertEqual(self.learn(own_template(), messages, tools=tools), (
            NO_THOUGHTS + '<tool_call>\n{"name": "add", "arguments": '
            '{"a": 1}}\n</tool_call><|im_end|>' + NO_THOUGHTS
            + "two<|im_end|>"))

    def test_prompt_that_opens_the_thinking(self):
        """Tests the Qwen3 2507 models that always think: their prompt ends with
        <think>."""
        learned = ("well\n</think>\n\nhi<|im_end|>"
                   "\n</think>\n\nbye<|im_end|>")
        own = own_template(opens_thinking=True)
        self.assertEqual(self.learn(own, TALK), learned)
        self.assertIn(CHOSEN, self.warnings)
        self.assertEqual(self.learn(own, TALK, flags=[
            "--chat-template", "qwen3-training"]), learned)

    def test_named(self):
        for template in (own_template(), CHATML, None):
            with self.subTest(template=(template or "")[:20]):
                self.learn(template, TALK,
                           ["--chat-template", "qwen3-training"])
                self.assertEqual(self.warnings, "")
                self.assertIn("<think>\nwell\n", self.text)

    def test_not_chosen_for_others(self):
        changed = own_template().replace("# Tools", "# The tools")
        for template in (CHATML, CHATML_MARKED, changed, training_source()):
            with self.subTest(template=template[:40]):
                self.learn(template, SINGLE)
                self.assertEqual(self.warnings, "")

    def test_not_chosen_where_all_turns_are_learned(self):
        all_turns = ["--assistant-only-loss", "false"]
        self.make_model(own_template())
        self.assertIn("drops the reasoning of message 2", self.refusal(
            {"messages": TALK}, flags=all_turns))
        self.learn(own_template(), TALK, [
            *all_turns, "--allow-template-drops", "true"])
        self.assertNotIn(CHOSEN, self.warnings)
        self.assertNotIn("well", self.text)
