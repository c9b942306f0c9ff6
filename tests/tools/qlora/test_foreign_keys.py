# SPDX-License-Identifier: MIT
"""Keys of axolotl, LLaMA-Factory and TRL: all are known, and the tools' own
defaults are accepted. tests/Inputs/foreign_keys.py lists the keys."""

import json
import os
import re
import subprocess
import unittest

import test_foreign_configs
from test_foreign_configs import AXOLOTL, LLAMA, TRL
from test_qlora import DATA, HERE, MODEL

DATASETS = "datasets: [{path: chat.jsonl}]\n"


def tools():
    path = os.path.join(HERE, "../../Inputs/foreign_keys.json")
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class AllKeysTest(test_foreign_configs.ForeignTest):
    def problems(self, text):
        self.own_cache()
        done = subprocess.run(
            ["qlora", "train", self.write(text), "--dry-run"], text=True,
            capture_output=True, cwd=self.folder, env=self.environment)
        # Notes begin with "qlora: FILE".
        return done, [line for line in done.stderr.splitlines()
                      if re.match(r"(qlora: error: )?/.*train\.yaml:\d+: '",
                                  line)]

    def test_every_key_is_known(self):
        for tool, found in tools().items():
            self.assertGreater(len(found["keys"]), 150, tool)
            text = "".join(f"{key}: zzz\n" for key in found["keys"])
            done, problems = self.problems(text + "no_such_key: zzz\n")
            unknown = [line for line in problems
                       if "is not an option" in line]
            self.assertEqual(len(unknown), 1, done.stderr)
            self.assertIn("'no_such_key'", unknown[0])

    def test_defaults_are_accepted(self):
        # LLaMA-Factory trains only if the file has do_train: true.
        needed = {"do_train": "true", "output_dir": "out"}
        for tool, found in tools().items():
            text = f"model_name_or_path: {MODEL}\ntrain_file: {DATA}\n"
            for key, value in found["keys"].items():
                if value is not None:
                    value = needed.get(key, json.dumps(value))
                    text += f"{key}: {value}\n"
            done, problems = self.problems(text)
            self.assertEqual(problems, [], tool)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"is read as a file for {tool} ", done.stderr)

    def test_null_is_unset(self):
        for tool, found in tools().items():
            text = f"model_name_or_path: {MODEL}\ntrain_file: {DATA}\n"
            text += "".join(f"{key}:\n" for key in found["keys"]
                            if key not in ("model_name_or_path", "train_file",
                                           "max_length"))
            done, problems = self.problems(text)
            self.assertEqual(problems, [], tool)
            self.assertEqual(done.returncode, 0, done.stderr)


class ValuesTest(test_foreign_configs.ForeignTest):
    def test_plugins(self):
        head = AXOLOTL + DATASETS + "plugins:\n"
        _, notes = self.options(
            head + "  - axolotl.integrations.liger.LigerPlugin\n"
            "  - axolotl.integrations.cut_cross_entropy."
            "CutCrossEntropyPlugin\n")
        self.assertIn("'plugins' chooses kernels and logs", notes)
        error = self.refusal(
            head + "  - axolotl.integrations.liger.LigerPlugin\n"
            "  - axolotl.integrations.kd.KDPlugin\n  - mine.Plugin\n")
        self.assertIn("unsupported way: axolotl.integrations.kd.KDPlugin, "
                      "mine.Plugin; remove them", error)

    def test_special_tokens_of_the_model(self):
        head = AXOLOTL + DATASETS + "special_tokens:\n"
        with open(os.path.join(MODEL, "tokenizer_config.json"),
                  encoding="utf-8") as file:
            end = json.load(file)["eos_token"]
        end = end["content"] if isinstance(end, dict) else end
        self.options(head + f"  eos_token: {json.dumps(end)}\n"
                     f"  additional_special_tokens: [{json.dumps(end)}]\n"
                     "  pad_token: <pad>\n")
        self.assertIn("'special_tokens': would add tokens (eos_token)",
                      self.refusal(head + "  eos_token: <x>\n"))
        with open(os.path.join(MODEL, "tokenizer.json"),
                  encoding="utf-8") as file:
            other = next(token["content"] for token in
                         json.load(file)["added_tokens"]
                         if token["content"] != end)
        found, _ = self.options(head + f"  eos_token: {json.dumps(other)}\n")
        self.assertEqual(found["eos-token"], other)
        self.assertIn("(additional_special_tokens)", self.refusal(
            head + f"  additional_special_tokens: [{json.dumps(end)}, <x>]\n"))

    def test_targets_and_sections(self):
        head = AXOLOTL + DATASETS
        self.assert_options(
            head + "lora_target_linear: true\n"
            "lora_target_modules: [q_proj, v_proj]\n",
            {"lora-target-modules": "all-linear"})
        self.assertIn("both set lora_target_modules", self.refusal(
            head + "lora_target_linear: true\n"
            "lora_target_modules: [lm_head]\n"))
        four = head.replace("lora", "qlora") + "load_in_4bit: true\n"
        self.assert_options(four, {"bnb-4bit-use-double-quant": "true"})
        self.assert_options(
            four + "bnb_config_kwargs: {bnb_4bit_use_double_quant: false}\n",
            {"bnb-4bit-use-double-quant": "false"})
        self.assertIn("has 'llm_int8_skip_modules'", self.refusal(
            four + "bnb_config_kwargs: {llm_int8_skip_modules: [a]}\n"))
        self.assert_options(head + "peft_use_rslora: true\nlora_r: 4\n",
                            {"use-rslora": "true"})

    def test_rows_left_out(self):
        head = AXOLOTL + "datasets:\n- {path: chat.jsonl, type: chat_template"
        self.assert_options(
            head + ", drop_system_message: true, roles: {user: [user], "
            "assistant: [assistant], system: [system]}}\nmin_sample_len: 9\n"
            "dataset_exact_deduplication: true\n",
            {"drop-system-messages": "true", "min-length": "9",
             "drop-duplicates": "true"})
        twice = head + "}\n- {path: %s, type: chat_template}\n" \
            "dataset_exact_deduplication: true\n"
        self.assert_options(twice % "chat.jsonl", {"drop-duplicates": "true"})
        self.assertIn("compares the rows of several data sets",
                      self.refusal(twice % "text.jsonl"))
        self.assertIn("with and without drop_system_message", self.refusal(
            head + "}\n- {path: a.jsonl, drop_system_message: true}\n"))

    def test_the_model(self):
        experts = os.path.join(
            HERE, "../../Inputs/goldens/mixtral/model")
        head = AXOLOTL.replace(MODEL, experts) + DATASETS
        found, notes = self.options(
            head + "lora_target_linear: true\n"
            "model_config: {output_router_logits: true}\n")
        self.assertEqual(found["output-router-logits"], "true")
        self.assertEqual(found["lora-target-modules"],
                         '["q_proj","k_proj","v_proj","o_proj"]')
        self.assertIn("those outside of the experts", notes)
        self.assertIn("has 'rope_theta', which would change", self.refusal(
            head + "model_config: {rope_theta: 5}\n"))
        self.assertIn("LlamaForCausalLM has no experts", self.refusal(
            AXOLOTL + DATASETS
            + "model_config: {output_router_logits: true}\n"))
        full = head.replace("adapter: lora\n", "")
        self.assertIn("train.yaml:1: 'base_model': MixtralForCausalLM has "
                      "experts, which cannot be trained in full",
                      self.refusal(full))
        # One message has the model and the keys.
        self.write('{"architectures": ["MambaForCausalLM"]}', "m/config.json")
        done = self.run_qlora("train", self.write(
            AXOLOTL.replace(MODEL, "m") + DATASETS + "fp16: true\n"), code=1)
        self.assertIn("has 2 problems", done.stderr)
        self.assertIn("'base_model': ", done.stderr)
        self.assertIn("'fp16': float16 is not supported", done.stderr)

    def test_optimizers_of_shards(self):
        text = (f"base_model: {MODEL}\n" + DATASETS
                + "optimizer: adamw_8bit\nfsdp: full_shard\n")
        self.assertIn("train.yaml:3: 'optimizer': adamw_bnb_8bit cannot update "
                      "shards of weights (fsdp=2)",
                      self.refusal(text, "--gpus=2"))
        self.options(text)
        self.options("adapter: lora\n" + text, "--gpus=2")

    def test_loftq(self):
        self.assert_options(
            AXOLOTL + DATASETS + "peft: {loftq_config: {loftq_bits: 4}}\n",
            {"init-lora-weights": "loftq", "load-in-4bit": "true",
             "bnb-4bit-use-double-quant": "false"})

    def test_words_for_numbers_and_names(self):
        self.assert_options(
            AXOLOTL + DATASETS + "sequence_len: 1_000\noptimizer: "
            "adamw_torch_8bit\nauto_resume_from_checkpoints: true\n",
            {"max-length": "[1000]", "optim": "adamw_bnb_8bit",
             "resume-from-checkpoint": "latest", "save-strategy": "epoch",
             "save-total-limit": "4"})
        self.assert_options(
            LLAMA + f"train_file: {DATA}\nadditional_target: norm,lm_head\n"
            "max_length: 7\ndisable_gradient_checkpointing: true\n",
            {"modules-to-save": '["norm","lm_head"]', "max-length": "[2048]",
             "gradient-checkpointing": "false"})

    def test_checkpointing(self):
        self.assert_options(
            AXOLOTL + DATASETS + "gradient_checkpointing: offload\n"
            "layer_offloading: true\n",
            {"gradient-checkpointing": "true",
             "offload": '["activations","base"]'}, "--target=cuda",
            "--device=null")
        found, notes = self.options(
            AXOLOTL + DATASETS + "activation_offloading: true\n")
        self.assertNotIn("offload", found)
        self.assertIn("offloading is left out: a CPU has one memory", notes)
        self.assert_options(TRL, {"gradient-checkpointing": "true"})
        self.assert_options(
            AXOLOTL + DATASETS + "gradient_checkpointing: false\n"
            "fsdp_config: {activation_checkpointing: true}\n",
            {"gradient-checkpointing": "true"})

    def test_sizes_of_axes(self):
        for text, words, mesh in (
                ("context_parallel_size: 2\n", ("--gpus=4",), "cp=2"),
                ("dp_shard_size: 2\ncontext_parallel_size: 2\n",
                 ("--gpus=8",), "fsdp=4,cp=2"),
                ("fsdp_config: {reshard_after_forward: true}\n"
                 "dp_replicate_size: 2\n", ("--gpus=4",), "fsdp=2"),
                ("tensor_parallel_size: 1\n", (), "none")):
            self.assert_options(AXOLOTL + DATASETS + text, {"parallel": mesh},
                                *words)
        self.assertIn("'half' is not a number of ranks", self.refusal(
            AXOLOTL + DATASETS + "tensor_parallel_size: half\n"))

    def test_chosen_parameters(self):
        full = AXOLOTL.replace("adapter: lora\n", "") + DATASETS
        names = 'unfrozen_parameters: ["^model.layers.1", "^lm_head"]\n'
        found, _ = self.options(full + names)
        self.assertEqual(found["unfrozen-parameters"],
                         '["^model.layers.1","^lm_head"]')
        found, notes = self.options(AXOLOTL + DATASETS + names)
        self.assertNotIn("unfrozen-parameters", found)
        self.assertIn("'unfrozen_parameters' names weights of the base", notes)
        self.assertIn("chooses weights of an adapter", self.refusal(
            AXOLOTL + DATASETS + 'unfrozen_parameters: [".+lora_A"]\n'))
        self.assertIn("chooses rows of a weight", self.refusal(
            full + 'unfrozen_parameters: ["lm_head.weight[:8]"]\n'))

    def test_freeze_tuning(self):
        head = LLAMA + f"train_file: {DATA}\nfinetuning_type: freeze\n"
        with open(os.path.join(MODEL, "config.json"),
                  encoding="utf-8") as file:
            layers = json.load(file)["num_hidden_layers"]
        for keys, chosen in (
                ("freeze_trainable_layers: 1\n", [layers - 1]),
                ("freeze_trainable_layers: -1\n", [0]),
                (f"freeze_trainable_layers: {layers}\nuse_llama_pro: true\n",
                 list(range(layers)))):
            found, _ = self.options(head + keys)
            self.assertEqual(found["finetuning-type"], "full")
            self.assertEqual(json.loads(found["unfrozen-parameters"]),
                             [f".+.{layer}." for layer in chosen])
        found, _ = self.options(
            head + "freeze_trainable_layers: -1\n"
            "freeze_trainable_modules: mlp,self_attn\n"
            "freeze_extra_modules: norm\n")
        self.assertEqual(json.loads(found["unfrozen-parameters"]),
                         [".+.0.mlp", ".+.0.self_attn", "(.+)?norm"])
        self.assertIn("that divides the model's", self.refusal(
            head + "freeze_trainable_layers: 99\nuse_llama_pro: true\n"))
        self.assertIn("'use_llama_pro': changes the training", self.refusal(
            LLAMA + f"train_file: {DATA}\nuse_llama_pro: true\n"))

    def test_pretraining(self):
        self.write('{"body": "a text"}\n', "text.jsonl")
        head = AXOLOTL + ("pretraining_dataset: [{path: text.jsonl, "
                          "text_column: body, type: pretrain}]\n")
        packed = head + "sample_packing: true\nmax_steps: 1\n"
        found, _ = self.options(packed)
        self.assertEqual(found["excess-length-strategy"], "windows")
        self.assertEqual(found["dataset-columns"], '{"text":"body"}')
        self.assertEqual(found["packing"], "true")
        found, _ = self.options(packed.replace("type: pretrain",
                                               "type: completion"))
        self.assertEqual(found["excess-length-strategy"], "split")
        self.assertIn("without sample_packing", self.refusal(head))
        self.assertIn("'pretrain_multipack_attn': lets packed texts",
                      self.refusal(packed + "pretrain_multipack_attn: false\n"))
        found, _ = self.options(LLAMA.replace("stage: sft", "stage: pt")
                                + f"train_file: {DATA}\n")
        self.assertEqual(found["packing-strategy"], "llamafactory-wrapped")

    def test_the_order_of_rows(self):
        head = AXOLOTL + DATASETS + "curriculum_sampling: true\n"
        found, _ = self.options(head)
        self.assertEqual(found["train-sampling-strategy"], "sequential")
        found, _ = self.options(LLAMA + f"train_file: {DATA}\n"
                                "disable_shuffling: true\n")
        self.assertEqual(found["train-sampling-strategy"], "sequential")

        found, _ = self.options(TRL + "rl: kto\n")
        self.assertEqual(found["train-sampling-strategy"], "sequential")

    def test_sums_of_axolotl(self):
        head = AXOLOTL + DATASETS
        for steps, expected in ((1, False), (4, True)):
            _, notes = self.options(
                head + f"gradient_accumulation_steps: {steps}\n")
            self.assertEqual("averages the means" in notes, expected)
        self.assertIn("would be the reference", self.refusal(
            head + "rl: dpo\nlora_model_dir: first\n"))

    def test_values_that_matter_elsewhere(self):
        kto = TRL + "train_sampling_strategy: sequential\n"
        found, _ = self.options(kto)
        self.assertEqual(found["train-sampling-strategy"], "sequential")
        self.assertIn("choose from: random, sequential",
                      self.refusal(kto.replace("sequential",
                                               "group_by_length")))
        self.options(TRL + "train_sampling_strategy: random\ndo_train: false\n")
        head = LLAMA + f"train_file: {DATA}\ndo_sample: true\n"
        self.options(head)
        self.assertIn("'do_sample': samples answers", self.refusal(
            head + "predict_with_generate: true\n"))
        self.assertIn("'eval_sequence_len': differs", self.refusal(
            AXOLOTL + DATASETS + "eval_sequence_len: 1024\n"))
        self.assertIn("remove split_batches", self.refusal(
            TRL + "accelerator_config: {split_batches: true}\n"))
        os.mkdir(os.path.join(self.folder, "tokens"))
        self.assertIn("has tokens of LLaMA-Factory", self.refusal(
            LLAMA + f"train_file: {DATA}\n"
            f"tokenized_path: {os.path.join(self.folder, 'tokens')}\n"))


if __name__ == "__main__":
    unittest.main()
