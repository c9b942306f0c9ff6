# SPDX-License-Identifier: MIT
"""Preference training in other tools' files: its objectives, losses and
refusals."""

import unittest

import test_foreign_configs
from test_qlora import DATA, MODEL

AXOLOTL = test_foreign_configs.AXOLOTL


class PreferencesTest(test_foreign_configs.ForeignTest):
    def test_kto_of_other_programs_is_translated(self):
        for text in ("stage: kto\npref_beta: 0.2\nkto_chosen_weight: 2\n",
                     "adapter: lora\nrl: kto\nrl_beta: 0.2\n"
                     "kto_desirable_weight: 2\n"):
            self.assert_options(
                f"base_model: {MODEL}\n{text}train_file: {DATA}\n"
                "per_device_train_batch_size: 2\n",
                {"rl": "kto", "beta": "0.2", "desirable-weight": "2.0"})

    def test_the_hinge_loss_of_other_programs_is_translated(self):
        for text in ("pref_loss: hinge", "loss_type: [hinge]",
                     "adapter: lora\ndpo_loss_type: [hinge]"):
            self.assert_options(
                f"base_model: {MODEL}\nrl: dpo\n{text}\ntrain_file: {DATA}\n",
                {"rl": "dpo", "loss-type": "hinge"})

    def test_the_ipo_loss_of_other_programs_is_translated(self):
        for text in ("stage: dpo\npref_loss: ipo", "rl: dpo\nloss_type: [ipo]",
                     "adapter: lora\nrl: dpo\ndpo_loss_type: [ipo]",
                     "adapter: lora\nrl: ipo"):
            self.assert_options(
                f"base_model: {MODEL}\n{text}\ntrain_file: {DATA}\n",
                {"rl": "dpo", "loss-type": "ipo"})
        # The rows and the dropout are those of DPO.
        self.assert_options(
            AXOLOTL + "rl: ipo\nrl_beta: 0.2\nlora_dropout: 0.1\n"
            f"datasets: [{{path: {DATA}, type: chat_template.default}}]\n",
            {"rl": "dpo", "loss-type": "ipo", "beta": "0.2",
             "lora-dropout": "0.0"})

    def test_lists_of_losses_are_taken(self):
        for text in ("rl: dpo\nloss_type: [sigmoid, sft]\n"
                     "loss_weights: [1.0, 0.5]",
                     "adapter: lora\nrl: dpo\ndpo_loss_type: [sigmoid, sft]\n"
                     "dpo_loss_weights: [1.0, 0.5]"):
            self.assert_options(
                f"base_model: {MODEL}\n{text}\ntrain_file: {DATA}\n",
                {"rl": "dpo", "loss-type": '["sigmoid","sft"]',
                 "loss-weights": "[1.0,0.5]"})

    def test_simpo_of_other_programs_is_translated(self):
        for text, alpha in (
                ("stage: dpo\npref_loss: simpo\nsimpo_gamma: 0.7", "0.0"),
                ("adapter: lora\nrl: simpo\nsimpo_gamma: 0.7\n"
                 "cpo_alpha: 0.2", "0.2")):
            self.assert_options(
                f"base_model: {MODEL}\n{text}\ntrain_file: {DATA}\n",
                {"rl": "cpo", "loss-type": "simpo", "simpo-gamma": "0.7",
                 "cpo-alpha": alpha})

    def test_what_would_change_the_training_is_refused(self):
        for text, message in (
                ("stage: ppo", "write sft, pt, kto or dpo"),
                ("stage: dpo\npref_loss: kto_pair",
                 "write sigmoid, hinge, ipo or simpo"),
                ("stage: dpo\npref_ftx: 0.1", "with equal weights of answers"),
                ("rl: dpo\nrpo_alpha: 0.1", "loss_weights: [1, ALPHA]"),
                ("stage: dpo\npref_loss: orpo", "has only answers in the loss"),
                ("rl: grpo", "choose from: none, dpo, cpo, orpo, kto"),
                ("rl: ipo\ndpo_loss_type: [hinge]", "loss_type"),
                ("rl: dpo\npacking: true",
                 "each answer needs its own sequence"),
                ("rl: kto\nper_device_train_batch_size: 1",
                 "1 is too small for"),
                ("rl: kto\nloss_type: sigmoid",
                 "use kto or apo_zero_unpaired"),
                ("rl: dpo\nloss_type: kto", "use sigmoid or hinge or ipo"),
                ("rl: dpo\nloss_type: [sigmoid, aot]", "'aot' is not"),
                ("rl: dpo\nkto_desirable_weight: 2", "is only for --rl kto"),
                ("rl: dpo\nfinetuning_type: full", "needs an unchanged base"),
                ("rl: dpo\nmodules_to_save: [lm_head]",
                 "needs an unchanged base"),
                ("rl: dpo\nref_model: other", "the base without its adapter")):
            with self.subTest(text=text):
                self.assertIn(message, self.refusal(text))


if __name__ == "__main__":
    unittest.main()
