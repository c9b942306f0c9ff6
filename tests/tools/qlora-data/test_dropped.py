# SPDX-License-Identifier: MIT
"""Parts of a conversation that a chat template omits are refused by name, or
dropped from training if the option allows it."""

import json
import unittest

from fixtures import CHATML, LLAMA3, QWEN_TOOLS, ToolTest, chat

TOOLS = [{"type": "function", "function": {"name": "weather",
                                           "parameters": {}}}]


def call(name="weather", arguments=None):
    return {"type": "function", "function": {
        "name": name, "arguments": {"city": "Paris"} if arguments is None
        else arguments}}


def talk(*calls, content=""):
    return [{"role": "user", "content": "hello"},
            {"role": "assistant", "content": content, "tool_calls": [*calls]},
            {"role": "tool", "content": "the world"},
            {"role": "assistant", "content": "say"}]


ROW = {"messages": talk(call())}

# Renders only the name of the first call, without arguments.
FIRST_NAME = CHATML.replace(
    "+ '<|im_end|>", "+ (message.tool_calls[0].function.name if "
    "message.tool_calls else '') + '<|im_end|>")
# Renders calls only if the content is null, like DeepSeek R1's template.
ONLY_WITHOUT_CONTENT = CHATML.replace(
    "message['content'] ", "(message['content'] if message['content'] is string"
    " else message.tool_calls[0] | tojson) ")
# Omits tool results and system messages.
TWO_ROLES = CHATML.replace(
    "{% for message in messages %}", "{% for message in messages if "
    "message.role in ('user', 'assistant') %}")


class DroppedTest(ToolTest):
    def test_what_is_left_out(self):
        for template, row, part in (
                (LLAMA3, ROW, "the tool call 'weather' of message 2"),
                (CHATML, {"messages": chat(("user", "a"), ("assistant", "b")),
                          "tools": TOOLS}, "the tools"),
                (FIRST_NAME, ROW, "the arguments of the tool call 'weather' of "
                 "message 2"),
                (FIRST_NAME, {"messages": talk(call(arguments={}), call("f"))},
                 "the arguments of the tool call 'weather'"),
                (ONLY_WITHOUT_CONTENT, ROW, "the tool call 'weather'"),
                (QWEN_TOOLS.replace("{%- if message.content %}",
                                    "{%- if message.content and not "
                                    "message.tool_calls %}"),
                 {"messages": talk(call(), content="the user")},
                 "the content of message 2 (assistant)"),
                (TWO_ROLES, {"messages": chat(
                    ("system", "say"), ("user", "a"), ("assistant", "b"))},
                 "the content of message 1 (system)"),
                (TWO_ROLES, {"messages": chat(
                    ("user", "a"), ("tool", "the world"), ("assistant", "b"))},
                 "the content of message 2 (tool)"),
                # The text of the omitted message is in another message, too.
                (TWO_ROLES, {"messages": chat(
                    ("user", "a"), ("tool", "18"), ("assistant", "It is 18."))},
                 "the content of message 2 (tool)"),
                (TWO_ROLES, {"messages": chat(
                    ("system", "hello"), ("user", "hello"),
                    ("assistant", "b"))}, "the content of message 1 (system)"),
                # function_call is an older form of tool_calls.
                (CHATML, {"messages": [
                    {"role": "user", "content": "a"},
                    {"role": "assistant", "content": "", "function_call": {
                        "name": "f", "arguments": "{}"}}]},
                 "the tool call 'f' of message 2"),
                (LLAMA3, {"conversations": [
                    {"from": "human", "value": "a"},
                    {"from": "gpt", "value": "", "tool_calls": [call()]}]},
                 "the tool call 'weather' of message 2"),
                (LLAMA3, {"conversations": [
                    {"from": "human", "value": "a"},
                    {"from": "gpt", "value": "b", "reasoning": "why"}]},
                 "the reasoning of message 2")):
            with self.subTest(part=part, template=template):
                self.make_model(template)
                error = self.refusal(row)
                self.assertIn(f"{self.data}:1: the chat template (", error)
                self.assertIn(f"drops {part}", error)
                self.assertIn("--allow-template-drops true", error)

    def test_calls_in_the_text_of_sharegpt(self):
        self.make_model(LLAMA3)
        self.assertIn("drops the tool", self.refusal({
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call",
                 "value": json.dumps({"name": "weather", "arguments": {}})},
                {"from": "gpt", "value": "b"}]}))

    def test_what_is_written_is_learned(self):
        self.make_model(QWEN_TOOLS)
        made = self.convert({**ROW, "tools": TOOLS},
                            {"messages": talk(call(), content="the user")})
        self.assertEqual(len(made.ids), 2)
        self.assertNotIn("dropping_rows", made.metadata)

    def test_a_template_that_trims_or_splits_still_writes(self):
        self.make_model(LLAMA3)
        self.convert({"messages": chat(("user", " a \n"), ("assistant", "b "))})
        self.make_model(CHATML.replace(
            "message['content'] ", "message['content'].split('</think>')[-1] "))
        self.convert({"messages": chat(
            ("user", "a"), ("assistant", "<think></think>b"))})

    def test_the_option(self):
        self.make_model(LLAMA3)
        made = self.convert(ROW, {"messages": chat(("user", "a"),
                                                   ("assistant", "b"))},
                            flags=["--allow-template-drops", "true"])
        self.assertEqual(len(made.ids), 2)
        self.assertEqual(made.metadata["dropping_rows"], "1")
        self.assertIn(f"{self.data}:1: the chat template drops tools",
                      self.warnings)


if __name__ == "__main__":
    unittest.main()
