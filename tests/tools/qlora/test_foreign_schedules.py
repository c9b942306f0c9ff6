# SPDX-License-Identifier: MIT
"""Schedules of other tools' files: least rates, and evaluations and
checkpoints by epoch."""

import unittest

import test_foreign_configs


class SchedulesTest(test_foreign_configs.ForeignTest):
    HEAD = (test_foreign_configs.AXOLOTL +
            "datasets: [{path: chat.jsonl}]\nnum_epochs: 2\n")

    def test_least_rate_of_axolotl(self):
        least = "cosine_min_lr_ratio: 0.1\n"
        for scheduler in ("", "lr_scheduler: cosine\n"):
            self.assert_options(self.HEAD + scheduler + least, {
                "lr-scheduler-type": "cosine_with_min_lr",
                "lr-scheduler-kwargs": '{"min_lr_rate":"0.1"}'})
        self.assert_options(self.HEAD + "lr_scheduler: rex\n" + least, {
            "lr-scheduler-type": "rex",
            "lr-scheduler-kwargs": '{"min_lr_rate":"0.1"}'})
        found, notes = self.options(
            self.HEAD + "lr_scheduler: linear\n" + least)
        self.assertEqual(found["lr-scheduler-type"], "linear")
        self.assertIn("has no effect with lr_scheduler linear", notes)
        self.assert_options(self.HEAD + "lr_scheduler: cosine\n"
                            "cosine_min_lr_ratio: 0\n",
                            {"lr-scheduler-type": "cosine"})

    def test_times_of_an_epoch(self):
        self.assert_options(self.HEAD + "evals_per_epoch: 4\n"
                            "saves_per_epoch: 1\n", {
                                "eval-strategy": "steps",
                                "eval-steps": "0.125",
                                "save-strategy": "steps",
                                "save-steps": "0.5"})
        one = self.HEAD.replace("num_epochs: 2", "num_epochs: 1")
        self.assert_options(one + "evals_per_epoch: 1\nsaves_per_epoch: 1\n", {
            "eval-strategy": "epoch", "save-strategy": "epoch"})
        self.assertIn("'evals_per_epoch': takes a number above 0",
                      self.refusal(self.HEAD + "evals_per_epoch: 4x\n"))
        self.assert_options(self.HEAD + "evals_per_epoch: 0\n",
                            {"eval-strategy": "no"})
        self.assert_options(self.HEAD + "saves_per_epoch: 1\n",
                            {"save-steps": "0.25"}, "--num-train-epochs=4")

    def test_parameters_of_transformers(self):
        head = test_foreign_configs.TRL
        self.assert_options(
            head + "lr_scheduler_type: cosine_with_min_lr\n"
            "lr_scheduler_kwargs: {min_lr: 1e-6}\nwarmup_steps: 0.05\n"
            "save_steps: 0.2\n", {
                "lr-scheduler-kwargs": '{"min_lr":"1e-6"}',
                "warmup-steps": "0.05", "save-steps": "0.2"})
        self.assert_options(
            head + "lr_scheduler_type: warmup_stable_decay\n"
            "lr_scheduler_kwargs: '{\"num_decay_steps\": 20}'\n",
            {"lr-scheduler-kwargs": '{"num_decay_steps":"20"}'})


if __name__ == "__main__":
    unittest.main()
