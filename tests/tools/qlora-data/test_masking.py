# SPDX-License-Identifier: MIT
"""Chat templates: which tokens of a conversation are labelled, compared with
transformers if it is installed."""

import importlib.util
import os
import unittest

from fixtures import CHATML, CHATML_MARKED, FORGETFUL, LLAMA3, MISTRAL, \
    QWEN_TOOLS, ToolTest, adds, byte_fallback, byte_level, chat

TALK = chat(("system", "Be kind."), ("user", "hello 日本"),
            ("assistant", " é world\n\n"), ("user", "and?"),
            ("assistant", "the 😀"))
PAIRS = TALK[1:]
TOOLS = [{"type": "function", "function": {
    "name": "add", "description": "a < b & é", "parameters": {}}}]
TOOL_TALK = [
    *chat(("user", "1+1?")),
    {"role": "assistant", "content": None, "tool_calls": [
        {"type": "function",
         "function": {"name": "add", "arguments": {"a": "é", "b": 1}}}]},
    *chat(("tool", "2"), ("tool", "3"), ("assistant", "two"))]


class TurnsTest(ToolTest):
    def learn(self, template, messages, flags=(), **row):
        self.make_model(template)
        rows = self.convert({"messages": messages, **row}, flags=flags)
        return self.learned(rows)[0]

    def test_chatml_by_prefixes(self):
        self.assertEqual(self.learn(CHATML, TALK),
                         " é world\n\n<|im_end|>the 😀<|im_end|>")

    def test_marks_and_prefixes_agree(self):
        by_template = []
        for template in (CHATML, CHATML_MARKED):
            self.make_model(template)
            rows = self.convert({"messages": TALK})
            by_template.append((rows.ids, rows.labels))
        self.assertEqual(*by_template)

    def test_llama3(self):
        self.assertEqual(self.learn(LLAMA3, PAIRS),
                         "é world<|eot_id|>the 😀<|eot_id|>")
        self.assertEqual(self.learn(LLAMA3, TALK),
                         "é world<|eot_id|>the 😀<|eot_id|>")

    def test_mistral_has_no_generation_prompt(self):
        self.assertEqual(self.learn(MISTRAL, PAIRS),
                         "  é world\n\n</s> the 😀</s>")

    def test_qwen_with_tools(self):
        self.assertEqual(self.learn(QWEN_TOOLS, TOOL_TALK, tools=TOOLS), (
            '<tool_call>\n{"name": "add", "arguments": {"a": "é", "b": 1}}\n'
            "</tool_call><|im_end|>two<|im_end|>"))

    def test_assistant_first(self):
        self.assertEqual(self.learn(CHATML, chat(("assistant", "hello"))),
                         "hello<|im_end|>")

    def test_all_turns(self):
        learned = self.learn(CHATML, PAIRS[:2],
                             ["--assistant-only-loss", "false"])
        # All tokens but the first are labelled.
        self.assertEqual(learned, "user\nhello 日本<|im_end|>\n<|im_start|>"
                         "assistant\n é world\n\n<|im_end|>\n")

    def test_byte_fallback_tokenizer(self):
        self.make_model(CHATML, byte_fallback())
        rows = self.convert({"messages": chat(("user", "é"),
                                              ("assistant", "日"))})
        end = self.tokenizer.token_to_id("<|im_end|>")
        # The three bytes of the character and the end-of-turn token are
        # labelled.
        self.assertEqual(self.summary["labelled_tokens"], 4)
        self.assertEqual([i for i in rows.labels[0] if i != -100][-1], end)

    def test_trimming_post_processor_keeps_spaces_learned(self):
        self.make_model(CHATML, adds(byte_level(), "<s> $A"))
        rows = self.convert({"messages": chat(("user", "a"),
                                              ("assistant", "b \n\n"))})
        self.assertEqual(self.learned(rows), ["b \n\n<|im_end|>"])
        # The tokenizer adds no special tokens to conversations.
        self.assertTrue(self.decode(rows.ids[0]).startswith("<|im_start|>"))

    def test_a_forgetful_template_gives_several_rows(self):
        self.make_model(FORGETFUL)
        rows = self.convert({"messages": TALK}, {"messages": TALK[:3]})
        self.assertEqual(self.learned(rows), [
            "<think></think> é world\n\n<|im_end|>",
            "<think></think>the 😀<|im_end|>",
            "<think></think> é world\n\n<|im_end|>"])
        # In each row, the answer follows the text that the model would see.
        self.assertEqual(rows.ids[0], rows.ids[2])
        self.assertIn("assistant\n é world\n\n<|im_end|>",
                      self.decode(rows.ids[1]))
        self.assertIn(f"note: {self.data}:1: 1 conversations are split into "
                      "several rows", self.warnings)
        self.assertEqual(rows.metadata["split_rows"], "1")

    def test_only_what_is_asked_for_of_a_forgetful_template(self):
        self.make_model(FORGETFUL)
        row = {"prompt": TALK[:4], "completion": TALK[4:]}
        rows = self.convert(row)
        self.assertEqual(len(rows.ids), 1)
        rows = self.convert(row, flags=["--completion-only-loss", "false"])
        self.assertEqual(len(rows.ids), 2)
        # A question at the end has no answer to train on.
        rows = self.convert({"messages": TALK[:4]})
        self.assertEqual(self.learned(rows),
                         ["<think></think> é world\n\n<|im_end|>"])

    def test_reasoning_that_the_template_leaves_out(self):
        self.make_model("{% for m in messages %}<|im_start|>{{ m.role + '\n' "
                        "+ m.content.split('</think>')[-1] }}<|im_end|>"
                        "{% endfor %}")
        tagged = chat(("user", "a"), ("assistant", "<think>b</think>c"))
        named = [TALK[1], {**TALK[2], "reasoning_content": "b"}]
        for talk in (tagged, named):
            error = self.refusal({"messages": TALK}, {"messages": talk})
            self.assertIn(f"{self.data}:2: the chat template (", error)
            self.assertIn("drops the reasoning of message 2 (assistant)",
                          error)
            self.assertIn("--allow-template-drops true", error)
        rows = self.convert({"messages": TALK}, {"messages": tagged},
                            {"messages": named},
                            flags=["--allow-template-drops", "true"])
        self.assertIn(f"warning: {self.data}:2: the chat template drops "
                      "the reasoning of 2 conversations", self.warnings)
        self.assertEqual(rows.metadata["unreasoned_rows"], "2")
        # Reasoning that the template drops from a prompt is only counted,
        # because the template also drops it in inference.
        rows = self.convert({"prompt": tagged, "completion": TALK[1:3]})
        self.assertEqual(rows.metadata["unreasoned_rows"], "1")
        self.make_model(CHATML)
        self.convert({"messages": tagged})
        self.assertEqual(self.warnings, "")

    def test_turns_that_cannot_be_found_are_refused(self):
        self.make_model("{{ messages | length }}" + CHATML)
        error = self.refusal({"messages": TALK})
        self.assertIn(f"{self.data}:1: ", error)
        self.assertIn("changes message 4 once an answer", error)
        self.assertIn("{% generation %}", error)

    def test_mark_in_macro_is_refused(self):
        self.make_model(
            "{% macro say(m) %}<s>{% generation %}{{ m.content }}"
            "{% endgeneration %}{% endmacro %}"
            "{% for m in messages %}{{ say(m) }}{% endfor %}")
        self.assertIn("generation mark inside a macro",
                      self.refusal({"messages": TALK}))


class TemplateChoiceTest(ToolTest):
    ROW = {"messages": chat(("user", "a"), ("assistant", "b"))}

    @staticmethod
    def named(word):
        return word + ("{% for m in messages %}{% generation %}"
                       "{{ m.content }}{% endgeneration %}{% endfor %}")

    def rendered(self, row, flags=()):
        # Templates of these tests omit most of a conversation.
        return self.decode(self.convert(row, flags=[
            "--allow-template-drops", "true", *flags]).ids[0])

    def test_precedence(self):
        self.make_model(self.named("config "))
        self.assertEqual(self.rendered(self.ROW), "config ab")
        self.write_model("chat_template.jinja", self.named("jinja "))
        self.assertEqual(self.rendered(self.ROW), "jinja ab")
        given = self.path("given.jinja")
        with open(given, "w", encoding="utf-8") as file:
            file.write(self.named("given "))
        self.assertEqual(self.rendered(self.ROW, ["--chat-template", given]),
                         "given ab")

    def test_tool_use(self):
        self.make_model([
            {"name": "default", "template": self.named("plain ")},
            {"name": "tool_use", "template": self.named("tools ")}])
        self.assertEqual(self.rendered(self.ROW), "plain ab")
        self.assertEqual(self.rendered({**self.ROW, "tools": TOOLS}),
                         "tools ab")
        self.assertEqual(self.rendered({**self.ROW, "tools": []}), "plain ab")

    def test_context(self):
        self.make_model(
            "{{ bos_token }}{{ eos_token }}{{ documents is none }}"
            "{{ add_generation_prompt }}{{ strftime_now('%%') }}"
            "{{ {'a': '<é>'} | tojson }}{{ mood }}{% set n = namespace(i=0) %}"
            "{% for m in messages %}{% if loop.index > 1 %}{% break %}"
            "{% endif %}{% set n.i = n.i + 1 %}{% endfor %}{{ n.i }}"
            "{% generation %}x{% endgeneration %}",
            bos_token={"content": "<s>", "lstrip": False})
        self.assertEqual(
            self.rendered({**self.ROW, "chat_template_kwargs": {"mood": "!"}}),
            '<s></s>TrueFalse%{"a": "<é>"}!1x')


@unittest.skipIf(importlib.util.find_spec("transformers") is None,
                 "transformers, the reference, is not installed")
class TransformersTest(ToolTest):
    """Compares ids with transformers, and for templates with marks also the
    mask."""

    def reference(self, messages, tools=None, mask=False):
        from transformers import AutoTokenizer
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        return tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=True, return_dict=True,
            return_assistant_tokens_mask=mask)

    def test_ids(self):
        for template, messages, tools in (
                (CHATML, TALK, None), (LLAMA3, TALK, None),
                (MISTRAL, PAIRS, None), (QWEN_TOOLS, TOOL_TALK, TOOLS)):
            for make in (byte_level, byte_fallback):
                with self.subTest(template=template, tokenizer=make.__name__):
                    self.make_model(template, make())
                    rows = self.convert({"messages": messages, "tools": tools})
                    expected = self.reference(messages, tools)["input_ids"]
                    self.assertEqual(rows.ids[0], expected)

    def test_marked_mask(self):
        for make in (byte_level, byte_fallback):
            with self.subTest(tokenizer=make.__name__):
                self.make_model(CHATML_MARKED, make())
                rows = self.convert({"messages": TALK})
                expected = self.reference(TALK, mask=True)
                self.assertEqual(rows.ids[0], expected["input_ids"])
                mask = [int(label != -100) for label in rows.labels[0]]
                self.assertEqual(mask, expected["assistant_masks"])

    def test_plain_text_special_tokens(self):
        from transformers import AutoTokenizer
        text = "hello 日本 </s> world"
        for single in ("$A", "<s> $A"):
            for config in ({}, {"add_bos_token": True},
                           {"add_bos_token": False}):
                with self.subTest(single=single, config=config):
                    self.make_model(tokenizer=adds(byte_level(), single),
                                    **config)
                    rows = self.convert({"text": text})
                    reference = AutoTokenizer.from_pretrained(self.model)
                    expected = reference(text + reference.eos_token)
                    self.assertEqual(rows.ids[0], expected["input_ids"])


if __name__ == "__main__":
    unittest.main()
