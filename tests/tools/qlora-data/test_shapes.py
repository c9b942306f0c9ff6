# SPDX-License-Identifier: MIT
"""Every shape of row: its text and the labelled tokens."""

import unittest

from fixtures import CHATML, QWEN_TOOLS, ToolTest, adds, byte_fallback, \
    byte_level, chat

INTRO = ("Below is an instruction that describes a task. Write a response "
         "that appropriately completes the request.\n\n")
INTRO_INPUT = (
    "Below is an instruction that describes a task, paired with an input that "
    "provides further context. Write a response that appropriately completes "
    "the request.\n\n")


class PlainTextTest(ToolTest):
    def test_text_is_learned_with_its_end(self):
        self.make_model()
        rows = self.convert({"text": "hello 日本"})
        self.assertEqual(self.decode(rows.ids[0]), "hello 日本</s>")
        # The first token has no label: no token precedes it.
        self.assertEqual(rows.labels[0], [-100] + rows.ids[0][1:])
        self.assertEqual(self.summary["labelled_tokens"],
                         len(rows.ids[0]) - 1)

    def test_bos_only_from_the_post_processor(self):
        self.make_model(tokenizer=adds(byte_level(), "<s> $A"))
        rows = self.convert({"text": "hello"},
                            {"prompt": "hello", "completion": " world"})
        self.assertEqual([self.decode(ids) for ids in rows.ids],
                         ["<s>hello</s>", "<s>hello world</s>"])
        self.assertEqual(self.learned(rows), ["hello</s>", " world</s>"])

    def test_one_end_token_only(self):
        self.make_model(tokenizer=adds(byte_level(), "<s> $A </s>"))
        rows = self.convert({"text": "hello"}, {"text": "hello</s>"})
        eos = self.tokenizer.token_to_id("</s>")
        self.assertEqual(rows.ids[0].count(eos), 1)
        self.make_model()
        rows = self.convert({"text": "hello</s>"})
        self.assertEqual(rows.ids[0].count(eos), 1)

    def test_eos_named_by_id_in_config(self):
        self.make_model()
        self.write_model("tokenizer_config.json", "{}")
        self.write_model("config.json", '{"eos_token_id": [4, 2]}')
        self.assertEqual(self.decode(self.convert({"text": "a b"}).ids[0]),
                         "a b</s>")

    def test_completion_boundary_and_switch(self):
        self.make_model()
        row = {"prompt": "日本\n", "completion": "é world"}
        rows = self.convert(row)
        self.assertEqual(self.learned(rows), ["é world</s>"])
        rows = self.convert(row, flags=["--completion-only-loss", "false"])
        self.assertEqual(rows.labels[0][1:], rows.ids[0][1:])

    def test_byte_fallback_completion(self):
        self.make_model(tokenizer=byte_fallback())
        rows = self.convert({"prompt": "a 日", "completion": "é😀"})
        # Labelled are 2 bytes of é, 4 bytes of the emoji, and the end token.
        self.assertEqual(self.summary["labelled_tokens"], 7)
        self.assertEqual(rows.labels[0][:-7], [-100] * (len(rows.ids[0]) - 7))

    def test_token_over_the_boundary_is_learned(self):
        # The prompt's last space and the completion are one token.
        self.make_model()
        rows = self.convert({"prompt": "hello ", "completion": "world"})
        self.assertEqual(self.learned(rows), [" world</s>"])


class AlpacaTest(ToolTest):
    def test_with_and_without_input(self):
        self.make_model()
        rows = self.convert(
            {"instruction": "Add.", "input": "1 2", "output": "3"},
            {"instruction": "Hi", "input": "", "output": "yes"})
        self.assertEqual(self.decode(rows.ids[0]), (
            INTRO_INPUT + "### Instruction:\nAdd.\n\n### Input:\n1 2\n\n"
            "### Response:\n3</s>"))
        self.assertEqual(self.decode(rows.ids[1]), (
            INTRO + "### Instruction:\nHi\n\n### Response:\nyes</s>"))
        self.assertEqual(self.learned(rows), ["3</s>", "yes</s>"])

    def test_system_and_history(self):
        self.make_model()
        rows = self.convert({"instruction": "c", "output": "d",
                             "system": "Be kind.", "history": [["a", "b"]]})
        self.assertEqual(self.decode(rows.ids[0]), (
            "Be kind.\n\n### Instruction:\na\n\n### Response:\nb</s>\n\n"
            "### Instruction:\nc\n\n### Response:\nd</s>"))
        self.assertEqual(self.learned(rows), ["b</s>d</s>"])


class ConversationShapesTest(ToolTest):
    def test_sharegpt_equals_messages(self):
        self.make_model(QWEN_TOOLS)
        call = '{"name": "add", "arguments": {"a": 1}}'
        tools = [{"type": "function", "function": {"name": "add"}}]
        rows = self.convert(
            {"conversations": [{"from": "human", "value": "hello"},
                               {"from": "function_call", "value": call},
                               {"from": "observation", "value": "2"},
                               {"from": "gpt", "value": "two"}],
             "system": "Be kind.", "tools": tools},
            {"messages": [
                *chat(("system", "Be kind."), ("user", "hello")),
                {"role": "assistant", "content": None, "tool_calls": [
                    {"type": "function", "function": {
                        "name": "add", "arguments": {"a": 1}}}]},
                *chat(("tool", "2"), ("assistant", "two"))],
             "tools": '[{"type": "function", "function": {"name": "add"}}]'})
        self.assertEqual(rows.ids[0], rows.ids[1])
        self.assertEqual(rows.labels[0], rows.labels[1])

    def test_prompt_completion_messages(self):
        self.make_model(CHATML)
        row = {"prompt": chat(("user", "a"), ("assistant", "b"), ("user", "c")),
               "completion": chat(("assistant", "d"))}
        learned = {
            (): "d<|im_end|>",
            ("--completion-only-loss", "false"): "b<|im_end|>d<|im_end|>",
            ("--assistant-only-loss", "false"): "d<|im_end|>\n"}
        for flags, expected in learned.items():
            with self.subTest(flags=flags):
                rows = self.convert(row, flags=flags)
                self.assertEqual(self.learned(rows), [expected])

    def test_text_parts_are_joined(self):
        self.make_model(CHATML)
        rows = self.convert({"messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"},
                                         {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": "c"}]})
        self.assertIn("user\nab<|im_end|>", self.decode(rows.ids[0]))


class DetectionTest(ToolTest):
    def test_order_and_mixed_file(self):
        self.make_model(CHATML)
        talk = chat(("user", "u"), ("assistant", "m"))
        everything = {
            "conversations": [{"from": "human", "value": "h"},
                              {"from": "gpt", "value": "s"}],
            "instruction": "i", "output": "o", "text": "t t",
            "messages": talk, "prompt": "p", "completion": "c", "id": 7}
        rows, expected = [], []
        for keys, learned in ((["prompt", "completion"], "c</s>"),
                              (["messages"], "m<|im_end|>"),
                              (["text"], " t</s>"),
                              (["instruction", "output"], "o</s>"),
                              (["conversations"], "s<|im_end|>")):
            rows.append(dict(everything))
            expected.append(learned)
            for key in keys:
                everything[key] = None
        rows = self.convert(*rows)
        self.assertEqual(self.learned(rows), expected)

    def test_other_columns_do_no_harm(self):
        self.make_model(CHATML)
        unlearned = {"role": "assistant", "content": "b", "weight": 0}
        rows = self.convert(
            {"text": "a b", "label": True}, {"text": "a b", "label": 3},
            {"prompt": "a", "completion": "b", "label": "greeting",
             "score": 0.5, "images": [], "rejected": None},
            {"messages": [{"role": "user", "content": "a", "weight": 0},
                          {"role": "assistant", "content": "b", "weight": 1}]},
            {"prompt": [unlearned], "completion": chat(("assistant", "c"))})
        self.assertEqual(len(rows.ids), 5)
        self.assertEqual(self.learned(rows)[4], "c<|im_end|>")

    def test_refused_rows(self):
        self.make_model(CHATML)
        good = {"text": "hello world"}
        turn = {"role": "assistant", "content": "a"}
        image = {"role": "user", "content": [{"type": "image"}]}
        refused = [
            ({"prompt": "p", "chosen": "a", "rejected": "b"}, "preference"),
            ({"prompt": "p", "completion": "c", "rejected": "b"},
             "a preference row ('rejected'"),
            ({"messages": [turn], "chosen": [turn]}, "a preference row"),
            ({"prompt": "p", "completion": "c", "label": False},
             "a row of desirable or undesirable answers ('label') needs"),
            ({"messages": [turn], "label": True}, "train with --rl kto"),
            ({"instruction": "i", "output": "o", "kto_tag": True},
             "in which it is true, without 'kto_tag'"),
            ({"prompt": "p", "completions": ["c"], "labels": [True]},
             "a row of judged steps"),
            ({"messages": [turn], "images": ["a.png"]},
             "'images' is not supported: only text"),
            ({"messages": [{**turn, "tool_calls": '[{"name": "f"}]'}]},
             "messages[0]: 'tool_calls' expects a list, but got a string"),
            ({"messages": [{**turn, "tool_calls": [{"function": {
                "name": "f", "arguments": None}}]}]},
             "messages[0]: the tool call 'f' has no 'arguments'; write"),
            ({"messages": [{**turn, "tool_calls": [{"name": "f"}]}]},
             "the tool call 'f' has no 'arguments'"),
            ({"messages": [turn], "functions": [{"name": "f"}]},
             "'functions' are not read; write them as 'tools'"),
            ({"messages": [{**turn, "audio": {"id": "a"}}]},
             "'audio' is not supported: only text"),
            ({"conversations": [{"from": "human", "value": "a",
                                 "images": ["a.png"]}]},
             "'images' is not supported: only text"),
            ({"messages": [{**turn, "weight": 0}, turn]},
             "message 1: 'weight' is 0"),
            ({"conversations": [{"from": "gpt", "value": "a",
                                 "train": False}]},
             "message 1: 'train' is false, but exactly the assistant's "
             "turns are in the loss"),
            ({"messages": [{**turn, "loss": False}]}, "'loss' is false"),
            ({"messages": [{**turn, "loss_weight": 0.5}]},
             "'loss_weight' is 0.5"),
            ({"messages": [{**turn, "training": 0}]}, "'training' is 0"),
            ({"messages": [{**turn, "train_detail": [{"train": False}]}]},
             "'train_detail' is [{"),
            ({"messages": [{**turn, "masked": True}]}, "'masked' is true"),
            ({"messages": [{"role": "user", "content": "a", "train": True},
                           turn]}, "message 1: 'train' is true"),
            ({"conversations": [{"from": "human", "value": "a"},
                                {"from": "gpt", "value": "b", "loss": False}]},
             "message 2: 'loss' is false"),
            ({"system": "a", "prompt": "b", "completion": "c"},
             "'system' cannot be used if 'prompt' is a string"),
            ({"system": "a", "messages": [{"role": "system", "content": "b"},
                                          turn]},
             "'system' differs from the system message"),
            ({"prompt": "p"}, "shape of this row is not known"),
            ({}, "it has no keys"),
            ({"text": 1}, "'text' expects a string, but got a number"),
            ({"prompt": "p", "completion": [turn]}, "two strings or two lists"),
            ({"prompt": [{"role": "user", "content": "a"}], "completion": [
                {"role": "user", "content": "a"}, turn]},
             "'completion' begins with 'prompt', which would repeat it"),
            ({"messages": []}, "got an empty list"),
            ({"messages": ["hi"]}, "messages[0] expects an object"),
            ({"messages": [{"content": "a"}]}, "messages[0] has no 'role'"),
            ({"messages": [turn, {"role": "user"}]}, "messages[1] has neither"),
            ({"messages": [image]}, "a part that is not text"),
            ({"messages": [turn], "tools": "{"}, "but not JSON"),
            ({"instruction": "i", "output": "o", "history": ["x"]},
             "'history' expects"),
            ({"instruction": 1, "output": "o"}, "'instruction' expects"),
            ({"conversations": [{"from": "cat", "value": "miau"}]},
             "unknown speaker 'cat'"),
            ({"conversations": [{"from": "human"}]}, "conversations[0]"),
            ({"text": "\ud800"}, "half of a surrogate pair"),
        ]
        for row, message in refused:
            with self.subTest(row=row):
                error = self.refusal(good, row)
                self.assertIn(f"{self.data}:2: ", error)
                self.assertIn(message, error)


if __name__ == "__main__":
    unittest.main()
