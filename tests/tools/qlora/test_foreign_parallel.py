# SPDX-License-Identifier: MIT
"""Sections of DeepSpeed and FSDP in other tools' files, converted to
--parallel and --offload."""

import json
import unittest

import test_foreign_configs


class ParallelTest(test_foreign_configs.ForeignTest):
    HEAD = test_foreign_configs.WordsTest.HEAD

    def check(self, section, ours, offload=None, gpus=4):
        # A CPU has one memory, so there the offloading is left out.
        target = ["--target=cuda", "--device=null"] if offload else []
        found, _ = self.options(self.HEAD + section, f"--gpus={gpus}", *target)
        self.assertEqual(found.get("parallel", "none"), ours, section)
        self.assertEqual(found.get("offload"), offload)
        return found

    def test_stages_of_zero(self):
        for stage, ours in enumerate(("none", "zero1=4", "zero2=4", "fsdp=4")):
            zero = {"stage": stage, "overlap_comm": True,
                    "reduce_bucket_size": 5e8}
            config = {"gradient_clipping": "auto", "bf16": {"enabled": "auto"},
                      "fp16": {"enabled": "auto", "loss_scale": 0},
                      "train_micro_batch_size_per_gpu": "auto",
                      "zero_optimization": zero}
            self.write(json.dumps(config), "ds.json")
            self.check("deepspeed: ds.json\n", ours)
            self.check(f"deepspeed: {json.dumps(config)}\n", ours)
            if stage:
                self.check(f"deepspeed: zero{stage}\n", ours)
        self.check("deepspeed: zero3\n", "none", gpus=1)
        self.check("deepspeed:\n", "none")

    def test_what_else_deepspeed_says(self):
        def config(**more):
            return ("deepspeed: " + json.dumps({
                "gradient_clipping": "auto",
                "zero_optimization": {"stage": 2}, **more}) + "\n")
        offload = {"stage": 3, "offload_optimizer": {"device": "cpu"},
                   "offload_param": {"device": "cpu", "pin_memory": True}}
        self.check(config(zero_optimization=offload), "fsdp=4",
                   '["optimizer","base"]')
        found = self.check(config(gradient_clipping=0.5), "zero2=4")
        self.assertEqual(found["max-grad-norm"], "0.5")
        # DeepSpeed clips gradients only if gradient_clipping is set.
        found = self.check('deepspeed: {"zero_optimization": {"stage": 1}}\n',
                           "zero1=4")
        self.assertEqual(found["max-grad-norm"], "0.0")
        for enabled, ours in ((True, "bfloat16"), (False, "float32")):
            found = self.check(config(bf16={"enabled": enabled}), "zero2=4")
            self.assertEqual(found["compute-dtype"], ours)
        self.assertIn("is float32, but 'bf16' in line 3 is bfloat16",
                      self.refusal(self.HEAD + "bf16: true\n"
                                   + config(bf16={"enabled": False})))
        for section, words in (
                ("deepspeed: none.json",
                 "'none.json' is not a file; write zero1"),
                ("deepspeed: zero7", "'stage: 7' is not a ZeRO stage"),
                (config(optimizer={"type": "Adam"}), "'optimizer'"),
                (config(fp16={"enabled": True}), "write bf16: true"),
                (config(tensor_parallel={"autotp_size": 2}),
                 "'tensor_parallel'"),
                (config(zero_optimization={"stage": 3,
                                           "zero_quantized_weights": True}),
                 "'zero_optimization.zero_quantized_weights: true'"),
                (config(zero_optimization={"stage": 3, "offload_param": {
                    "device": "nvme"}}), "'nvme'")):
            error = self.refusal(self.HEAD + section + "\n", "--gpus=4")
            self.assertIn("train.yaml:3: 'deepspeed': ", error)
            self.assertIn(words, error)
        self.assertIn("is 0.5, but 'max_grad_norm' in line 3 is 1",
                      self.refusal(self.HEAD + "max_grad_norm: 1\n"
                                   + config(gradient_clipping=0.5)))

    def test_strategies_of_fsdp(self):
        for section, ours in (
                ("fsdp: full_shard auto_wrap\n", "fsdp=4"),
                ("fsdp: [full_shard, auto_wrap]\n", "fsdp=4"),
                ("fsdp: shard_grad_op\n", "zero2=4"),
                ("fsdp: hybrid_shard\n", "fsdp=4"),
                ("fsdp: hybrid_shard_zero2\n", "zero2=4"),
                ("fsdp: no_shard\n", "none"),
                ("fsdp: [auto_wrap]\nfsdp_config: {fsdp_sharding_strategy: "
                 "SHARD_GRAD_OP}\n", "zero2=4"),
                ("fsdp_config: {fsdp_sharding_strategy: 1}\n", "fsdp=4"),
                ("fsdp_version: 2\nfsdp_config: {reshard_after_forward: true, "
                 "auto_wrap_policy: TRANSFORMER_BASED_WRAP, offload_params: "
                 "false}\n", "fsdp=4"),
                ("fsdp_config: {reshard_after_forward: false}\n", "zero2=4"),
                ("fsdp: ''\nfsdp_config: {}\n", "none")):
            self.check(section, ours)
        self.check("fsdp: full_shard offload\n", "fsdp=4",
                   '["base","optimizer"]')
        found, _ = self.options(self.HEAD + "fsdp: hybrid_shard\n",
                                "--gpus=4", "--gpus-per-node=2")
        self.assertEqual(found["parallel"], "fsdp=2")
        found = self.check("fsdp_config: {activation_checkpointing: true}\n",
                           "fsdp=4")
        self.assertEqual(found["gradient-checkpointing"], "true")
        for section, words in (
                ("fsdp: half_shard", "'fsdp': 'half_shard' is not a sharding"),
                ("fsdp_config: {mixed_precision_policy: fp16}",
                 "'mixed_precision_policy: fp16'"),
                ("fsdp_config: {flatten: 3}", "'flatten: 3' of FSDP"),
                ("fsdp_config: none.json", "'fsdp_config': 'none.json' is not "
                 "a file; write the keys of FSDP instead"),
                ("fsdp_config: {fsdp_version: 3}",
                 "'3' is not a version of FSDP"),
                ("fsdp_version: 3", "'fsdp_version': '3' is not a version"),
                ("fsdp: full_shard\ndeepspeed: zero2",
                 "'deepspeed': means zero2, but 'fsdp' in line 3 means fsdp"),
                ("fsdp: full_shard\nparallel: zero1=4",
                 "'fsdp': is fsdp=4, but 'parallel' in line 4 is zero1=4")):
            self.assertIn(words, self.refusal(self.HEAD + section + "\n",
                                              "--gpus=4"))


if __name__ == "__main__":
    unittest.main()
