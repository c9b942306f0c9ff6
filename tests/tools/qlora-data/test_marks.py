# SPDX-License-Identifier: MIT
"""Keys that say whether a turn, a range of it or a row is in the loss: refused
by name unless they match the default."""

import json
import unittest

from fixtures import CHATML, ToolTest

USER = {"role": "user", "content": "hello"}
ALL_TURNS = ["--assistant-only-loss", "false"]


def said(**marks):
    return {"role": "assistant", "content": "world", **marks}


class MarksTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model(CHATML)

    def refused(self, row, key, value, flags=()):
        with self.subTest(row=row, flags=flags):
            error = self.refusal({"text": "hello world"}, row, flags=flags)
            self.assertIn(f"{self.data}:2: ", error)
            self.assertIn(f"'{key}' is {json.dumps(value)}, but ", error)

    def test_turns_that_are_not_to_be_learned(self):
        for key, value in (
                ("learnable", False), ("no_train", True), ("no_loss", True),
                ("do_not_train", True), ("ignore_loss", True), ("skip", True),
                ("trainOnTurn", False), ("lossWeight", 0.0), ("trained", False),
                ("loss-weight", 0), ("exclude", True), ("include", False),
                ("supervised", False), ("is_target", False), ("label", False),
                ("weights", [0]), ("assistant_masks", [0, 1]), ("weight", 0.5),
                ("weight", "0"), ("train", "false"), ("TRAIN", False),
                # A mask of 1 puts a token into the loss in some trainers, and
                # takes it out in others.
                ("mask", 0), ("mask", 1)):
            self.refused({"messages": [USER, said(**{key: value})]}, key, value)
            self.refused({"conversations": [
                {"from": "human", "value": "a"},
                {"from": "gpt", "value": "b", key: value}]}, key, value)

    def test_marks_inside_a_message(self):
        self.refused({"messages": [USER, said(metadata={"train": False})]},
                     "metadata.train", False)
        parts = [{"type": "text", "text": "a", "weight": 0},
                 {"type": "text", "text": "b"}]
        self.refused({"messages": [USER, {"role": "assistant",
                                          "content": parts}]},
                     "content[0].weight", 0)

    def test_what_happens_anyway_passes(self):
        call = {"type": "function", "function": {
            "name": "f", "arguments": {"weight": 0, "train": False}}}
        rows = self.convert(
            {"messages": [{**USER, "no_train": True, "mask": True},
                          said(trainOnTurn=True, loss_weight=1.0, skip=False,
                               ignore_loss=False, train=None, label="greeting",
                               score=0, id=0, target="a")]},
            {"messages": [USER, said(tool_calls=[call])]},
            flags=["--allow-template-drops", "true"])
        self.assertEqual(self.learned(rows), ["world<|im_end|>"] * 2)

    def test_where_all_turns_are_learned(self):
        user = {**USER, "train": False}
        self.convert({"messages": [user, said()]})
        self.refused({"messages": [user, said()]}, "train", False, ALL_TURNS)
        self.convert({"messages": [{**USER, "train": True}, said()]},
                     flags=ALL_TURNS)
        row = {"prompt": [USER, said(weight=0)], "completion": [said()]}
        self.convert(row)
        self.refused(row, "weight", 0, ["--completion-only-loss", "false"])

    def test_rows_that_are_not_to_be_learned(self):
        plain = {"prompt": "a", "completion": "hello world"}
        talk = {"messages": [USER, said(), USER, said()]}
        for row in (plain, talk, {"text": "hello world"},
                    {"instruction": "a", "output": "b"}):
            for key, value in (
                    ("weight", 0), ("loss_weight", 0.5), ("sample_weight", 2.0),
                    ("train", False), ("skip", True), ("train", "false"),
                    ("train_on_turn", [False, True]), ("loss_mask", [0, 1]),
                    ("weights", [0, 0, 0, 1]), ("completion_mask", [0, 1]),
                    ("train_on_input", True), ("train_on_last_turn", True),
                    ("mask_history", True)):
                self.refused({**row, key: value}, key, value)
        self.assertIn("--dataset-columns weight=", self.refusal(
            {**plain, "weight": 3}))
        self.convert({**plain, "weight": 3}, flags=["--column", "weight="])

    def test_other_columns_of_rows_pass(self):
        rows = self.convert({
            "prompt": "a", "completion": "hello", "weight": 1, "loss": 2.31,
            "train": True, "weight_kg": 70, "train_station": False,
            "mask_history": False, "mask": "[MASK]", "training_data": "web",
            "weights": ["heavy"], "loss_mask": [1, 1], "sample_weight": None})
        self.assertEqual(self.learned(rows), ["hello</s>"])

    def test_answers_of_pairs(self):
        pair = {"prompt": [USER], "chosen": [said(weight=0)],
                "rejected": [{**said(), "content": "user"}]}
        self.assertIn("'weight' is 0", self.refusal(pair, flags=["--pairs"]))
        self.assertIn("'weight' is 0.1", self.refusal(
            {"prompt": "a", "chosen": "b", "rejected": "c", "weight": 0.1},
            flags=["--pairs"]))


if __name__ == "__main__":
    unittest.main()
