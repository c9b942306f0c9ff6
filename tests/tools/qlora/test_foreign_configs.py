# SPDX-License-Identifier: MIT
"""Configuration files of axolotl, LLaMA-Factory and TRL: their keys have the
same effect in qlora, or are refused by name."""

import json
import os
import re
import unittest

from test_qlora import DATA, DEMO, INPUTS, MODEL, QloraTest

AXOLOTL = f"base_model: {MODEL}\nadapter: lora\n"
LLAMA = f"model_name_or_path: {MODEL}\nstage: sft\n"
TRL = f"model_name_or_path: {MODEL}\nuse_peft: true\ntrain_file: {DATA}\n"
# Rows for the data files of these tests.
ROWS = {"chat": {"messages": [{"role": "user", "content": "a?"},
                              {"role": "assistant", "content": "b"}]},
        "alpaca": {"instruction": "Name a city.", "input": "",
                   "output": "Lisbon"},
        "text": {"text": "a text"},
        "pairs": {"instruction": "a", "input": "", "chosen": "b",
                  "rejected": "c"}}


class ForeignTest(QloraTest):
    def setUp(self):
        super().setUp()
        for name, row in ROWS.items():
            self.write(json.dumps(row) + "\n", name + ".jsonl")

    def write(self, text, name="train.yaml"):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def options(self, text, *words):
        """Returns the options that qlora passes to its tools, and its notes."""
        self.own_cache()
        done = self.run_qlora("train", self.write(text), "--dry-run", *words)
        found = {}
        for word in re.findall(r"'--[^']*'|--\S+", done.stdout):
            name, _, value = word.strip("'")[2:].partition("=")
            found.setdefault(name, value)
        return found, done.stderr

    def assert_options(self, text, expected, *words):
        found, _ = self.options(text, *words)
        for name, value in expected.items():
            self.assertEqual(found.get(name), value, f"{name} of:\n{text}")

    def refusal(self, text, *words):
        done = self.run_qlora("train", self.write(text), *words, code=1)
        self.assertLessEqual(len(done.stderr.splitlines()), 2, done.stderr)
        self.assertEqual(done.stdout, "")
        return done.stderr


class DefaultsTest(ForeignTest):
    """Tests the defaults of keys that a file leaves out."""

    def test_llama_factory(self):
        text = LLAMA + f"train_file: {DATA}\n"
        self.assert_options(text, {
            "lora-alpha": "16.0", "max-length": "[2048]",
            "excess-length-strategy": "raise"})
        self.assert_options(text + "lora_rank: 4\n", {"lora-alpha": "8.0"})
        self.assert_options(text + "lora_rank: 4\nlora_alpha: null\n",
                            {"lora-alpha": "8.0"})
        self.assert_options(text, {"lora-alpha": "64.0"}, "--lora-r=32")
        self.assert_options(text + "lora_alpha: 5\ncutoff_len: 64\n",
                            {"lora-alpha": "5.0", "max-length": "[64]"})
        self.assert_options(text, {"lora-alpha": "3.0"}, "--lora-alpha=3")

    def test_axolotl(self):
        text = AXOLOTL + "datasets: [{path: chat.jsonl}]\n"
        self.assert_options(text, {
            "lr-scheduler-type": "cosine", "warmup-rule": "axolotl",
            "num-train-epochs": "1.0", "max-length": "[512]",
            "per-device-train-batch-size": "1",
            "excess-length-strategy": "drop", "finetuning-type": "lora"})
        self.assert_options(text + "warmup_steps: 10\n", {
            "warmup-rule": "transformers", "warmup-steps": "10"})
        self.assert_options(text + "warmup_steps: 1\n", {"warmup-steps": "2"})
        self.assert_options(text + "warmup_ratio: 0.1\n", {
            "warmup-rule": "axolotl", "warmup-ratio": "0.1"})
        self.assert_options(text + "batch_size: 8\nmicro_batch_size: 2\n",
                            {"gradient-accumulation-steps": "4"})
        _, notes = self.options(text + "num_epochs: 2\n")
        self.assertIn("train.yaml: is read as a file for axolotl ('adapter' "
                      "in line 2), with its defaults: sequence_len 512, "
                      "micro_batch_size 1, lr_scheduler cosine, ", notes)
        self.assertNotIn("num_epochs 1", notes)
        found, _ = self.options(text, "--auto-find-batch-size")
        self.assertNotIn("per-device-train-batch-size", found)

    def test_trl(self):
        self.assert_options(TRL, {
            "learning-rate": "2e-05", "lora-r": "16", "lora-alpha": "32.0",
            "lora-dropout": "0.05", "assistant-only-loss": "false",
            "lora-target-modules": '["q_proj","v_proj"]'})
        for objective in ("dpo", "kto", "orpo"):
            # Preference training turns dropout off, so TRL's default dropout is
            # not passed on.
            for text, words in ((f"{TRL}rl: {objective}\n", ()),
                                (TRL, (f"--rl={objective}",))):
                self.assert_options(text, {"learning-rate": "1e-06"}, *words)
                found, _ = self.options(text, *words)
                self.assertIn(found.get("lora-dropout"), (None, "0.0"))
        found, notes = self.options(TRL + "rl: dpo\nlora_dropout: 0.1\n")
        self.assertEqual(found["lora-dropout"], "0.0")
        self.assertIn("'lora_dropout' is turned off, as in preference training "
                      "with TRL", notes)
        self.assert_options(TRL + "rl: dpo\ndisable_dropout: false\n",
                            {"lora-dropout": "0.05"})
        self.assertIn("train.yaml:4: 'max_length': is null, with which TRL "
                      "cuts no row",
                      self.refusal(TRL + "max_length: null\n"))

    def test_null_of_transformers(self):
        # transformers clips gradients only if max_grad_norm is a number.
        for head in (TRL, LLAMA + f"train_file: {DATA}\n"):
            self.assert_options(head + "max_grad_norm: null\n",
                                {"max-grad-norm": "0.0"})
        found, _ = self.options(AXOLOTL + "datasets: [{path: chat.jsonl}]\n"
                                "max_grad_norm:\n")
        self.assertNotIn("max-grad-norm", found)

    def test_without_an_adapter_all_is_trained(self):
        data = "datasets: [{path: chat.jsonl}]\n"
        self.assert_options(f"base_model: {MODEL}\n{data}",
                            {"finetuning-type": "full"})
        self.assert_options(TRL.replace("true", "false"),
                            {"finetuning-type": "full"})
        error = self.refusal(f"base_model: {MODEL}\n{data}lora_r: 8\n")
        self.assertIn("train.yaml:3: 'lora_r' needs an adapter, but without "
                      "'adapter' axolotl trains all weights", error)

    def test_adapters_that_are_not_there(self):
        data = "datasets: [{path: chat.jsonl}]\n"
        text = AXOLOTL.replace("lora", "qlora") + data
        self.assertIn("'adapter: qlora' needs 'load_in_4bit: true'",
                      self.refusal(text))
        self.assert_options(text + "load_in_4bit: true\n",
                            {"load-in-4bit": "true"})
        # PEFT has no default modules for this model.
        golden = "../../../Inputs/goldens/qwen3moe-nf4/model/config.json"
        with open(os.path.join(INPUTS, golden), encoding="utf-8") as file:
            self.write(file.read(), "moe/config.json")
        self.assertIn("PEFT has no modules for the model_type 'qwen3_moe'",
                      self.refusal(TRL.replace(MODEL, "moe")))

    def test_the_defaults_of_qlora_without_such_a_key(self):
        found, notes = self.options(
            f"model_name_or_path: {MODEL}\ntrain_file: {DATA}\nbf16: true\n")
        for name in ("learning-rate", "lora-r", "finetuning-type"):
            self.assertNotIn(name, found)
        self.assertNotIn("is read as", notes)

    def test_keys_of_two_tools_are_refused(self):
        error = self.refusal(LLAMA + "datasets: [{path: chat.jsonl}]\n")
        self.assertIn("train.yaml:3: 'datasets' is a key of axolotl, but "
                      "'stage' in line 2 is a key of LLaMA-Factory", error)


class DataTest(ForeignTest):
    def test_rows_of_llama_factory_are_turns(self):
        self.write(json.dumps(ROWS["text"]) + "\n", "a.jsonl")
        self.write(json.dumps({
            "cities": {"file_name": "../alpaca.jsonl"},
            "talks": {"file_name": "../chat.jsonl", "formatting": "sharegpt",
                      "columns": {"messages": "messages"},
                      "tags": {"role_tag": "role", "content_tag": "content",
                               "user_tag": "user",
                               "assistant_tag": "assistant"}},
            "other": {"file_name": "../a.jsonl", "columns": {
                "prompt": "question", "response": "answer"}},
            "pairs": {"file_name": "../pairs.jsonl", "ranking": True,
                      "columns": {"prompt": "instruction", "query": "input",
                                  "chosen": "chosen",
                                  "rejected": "rejected"}},
            "liked": {"file_name": "../chat.jsonl", "formatting": "sharegpt",
                      "columns": {"messages": "messages",
                                  "kto_tag": "label"}},
            "short": {"file_name": "../chat.jsonl", "num_samples": 9},
            "c4": {"file_name": "c4.json", "columns": {"prompt": "text"}},
        }), "data/dataset_info.json")
        for name, formats, columns in (
                ("cities", '["turns"]', '{"history":"","system":""}'),
                ("talks", '["chat"]', '{"system":"","tools":""}'),
                ("cities, talks", '["chat","turns"]',
                 '{"history":"","system":"","tools":""}'),
                ("other", '["turns"]',
                 '{"history":"","input":"","instruction":"question",'
                 '"output":"answer","system":""}')):
            self.assert_options(LLAMA + f"dataset: {name}\ntemplate: qwen3\n", {
                "row-format": formats, "dataset-columns": columns,
                "chat-template": "llamafactory-qwen3"})
        self.assert_options(LLAMA.replace("sft", "dpo") + "dataset: pairs\n", {
            "row-format": '["turns"]', "rl": "dpo"})
        self.assert_options(
            LLAMA.replace("sft", "kto") + "dataset: liked\n",
            {"row-format": '["chat"]', "rl": "kto"})
        self.assertIn(
            "train.yaml:4: 'dataset_dir': is not the path of a folder",
            self.refusal(LLAMA + "dataset: cities\ndataset_dir: {a: b}\n"))
        for name, words in (
                ("short", "has 'num_samples', with which"),
                ("c4", "has no 'response' in its 'columns'"),
                ("pairs", "has pairs ('ranking')"),
                ("nothing", "has no data set 'nothing'"),
                ("cities, other", "different columns for 'input'")):
            error = self.refusal(LLAMA + f"dataset: {name}\n")
            self.assertIn("train.yaml:3: 'dataset': ", error)
            self.assertIn(words, error)

    def test_templates_of_llama_factory(self):
        text = LLAMA + f"train_file: {DATA}\n"
        for name, ours in (("qwen3_nothink", "chatml"), ("gemma3", "gemma"),
                           ("llama3", "llama3")):
            self.assert_options(text + f"template: {name}\n", {
                "chat-template": "llamafactory-" + ours,
                "row-format": '["chat","completion","text","turns"]'})
        self.assertIn("train.yaml:4: 'template': 'vicuna' is an "
                      "unsupported template of LLaMA-Factory",
                      self.refusal(text + "template: vicuna\n"))
        self.assertIn("write qwen3_nothink", self.refusal(
            text.replace("sft", "kto") + "template: qwen3\n"))
        self.assertIn("write neat_packing: true",
                      self.refusal(text + "packing: true\n"))
        self.assert_options(text + "neat_packing: true\n", {"packing": "true"})

    def test_types_of_axolotl(self):
        def file(*sets):
            return AXOLOTL + "datasets:\n" + "".join(
                f"  - {{path: {path}, {more}}}\n" for path, more in sets)
        for path, kind, formats in (
                ("alpaca.jsonl", "alpaca", '["alpaca"]'),
                ("chat.jsonl", "chat_template", '["chat"]'),
                ("chat.jsonl", "sharegpt", '["chat"]'),
                ("alpaca.jsonl", "alpaca:chat", '["alpaca-chat"]'),
                ("alpaca.jsonl", "jeopardy", '["jeopardy"]'),
                ("text.jsonl", "completion", '["text"]')):
            self.assert_options(file((path, f"type: {kind}")),
                                {"row-format": formats})
        self.assert_options(file(("text.jsonl", "type: completion")),
                            {"excess-length-strategy": "split"})
        self.assert_options(
            file(("text.jsonl", "type: completion, field: body")),
            {"dataset-columns": '{"text":"body"}'})
        equal = ("type: chat_template, field_messages: messages, "
                 "roles_to_train: [assistant], train_on_eos: turn, "
                 "message_property_mappings: {role: role, content: content}")
        self.assert_options(file(("chat.jsonl", equal)),
                            {"row-format": '["chat"]'})
        self.assert_options(
            file(("chat.jsonl", "type: chat_template, field_messages: talk")),
            {"dataset-columns": '{"conversations":"talk"}'})
        both = file(("a.jsonl", "type: alpaca"),
                    ("b.jsonl", "type: chat_template"))
        self.assertIn("of type alpaca, which ignores 'system' columns",
                      self.refusal(both))
        for more, words in (
                ("type: {format: '[INST] {instruction} [/INST]'}", "'format'"),
                ("type: alpaca_chat.load_qa", "'type: alpaca_chat.load_qa'"),
                ("type: input_output", "'type: input_output'"),
                ("type: gpteacher", "'type: gpteacher'"),
                ("type: alpaca_w_system.load_open_orca",
                 "'type: alpaca_w_system.load_open_orca'"),
                ("type: chat_template, train_on_eos: all",
                 "'train_on_eos: all'"),
                ("type: chat_template, roles_to_train: [user]",
                 "'roles_to_train: [\"user\"]'"),
                ("shards: 4", "'shards' of a data set")):
            error = self.refusal(file(("chat.jsonl", more)))
            self.assertIn("train.yaml:3: 'datasets': ", error)
            self.assertIn(words, error)

    def test_the_loss_of_inputs(self):
        data = "datasets: [{path: chat.jsonl, type: chat_template}]\n"
        self.assert_options(AXOLOTL + data + "train_on_inputs: true\n", {
            "completion-only-loss": "false", "assistant-only-loss": "false"})
        self.assert_options(AXOLOTL + data + "train_on_inputs: false\n", {
            "completion-only-loss": "true", "assistant-only-loss": "true"})
        self.assert_options(
            LLAMA + f"train_file: {DATA}\ntrain_on_prompt: true\n", {
                "completion-only-loss": "false",
                "assistant-only-loss": "false"})


class WordsTest(ForeignTest):
    HEAD = f"model_name_or_path: {MODEL}\ntrain_file: {DATA}\n"

    def test_equal_keys_are_no_contradiction(self):
        for text in ("torch_dtype: bfloat16\nbf16: true\n",
                     "bnb_4bit_compute_dtype: bfloat16\nbf16: true\n",
                     "dtype: bfloat16\nbf16: true\n"):
            self.assert_options(self.HEAD + text,
                                {"compute-dtype": "bfloat16"})
        self.assert_options(
            self.HEAD + "load_in_4bit: true\nquantization_bit: 4\n",
            {"load-in-4bit": "true"})
        for text, words in (
                ("torch_dtype: float32\nbf16: true\n",
                 "train.yaml:4: 'bf16': is bfloat16, but 'torch_dtype' in "
                 "line 3 is float32, and both set compute_dtype"),
                ("load_in_4bit: false\nquantization_bit: 4\n",
                 "train.yaml:4: 'quantization_bit': is true, but "
                 "'load_in_4bit' in line 3 is false, and both set "
                 "load_in_4bit")):
            self.assertIn(words, self.refusal(self.HEAD + text))

    def test_lists_of_reports(self):
        for text, ours in (("[wandb]", '["tensorboard"]'),
                           ("[wandb, tensorboard]", '["tensorboard"]'),
                           ("[none]", '["none"]')):
            self.assert_options(self.HEAD + f"report_to: {text}\n",
                                {"report-to": ours})
        _, notes = self.options(self.HEAD + "report_to:\n- wandb\n")
        self.assertIn("'report_to: wandb'", notes)

    def test_the_batch_of_evaluation(self):
        text = self.HEAD + ("per_device_train_batch_size: 4\n"
                            "per_device_eval_batch_size: 8\n")
        found, notes = self.options(text)
        self.assertNotIn("per-device-eval-batch-size", found)
        self.assertIn("train.yaml:4: 'per_device_eval_batch_size' is not "
                      "needed", notes)
        _, notes = self.options(text.replace("8", "4"))
        self.assertNotIn("per_device_eval_batch_size", notes)
        for more in ("rl: kto\n", "rl: orpo\n"):
            self.assertIn("train.yaml:4: 'per_device_eval_batch_size': differs "
                          "from the training batch", self.refusal(text + more))

    def test_words_of_others(self):
        self.assert_options(self.HEAD + "ddp_timeout: 360000000\n",
                            {"ddp-timeout": "1000000"})
        self.assert_options(self.HEAD + "ddp_timeout: 60\n",
                            {"ddp-timeout": "60"})
        self.assertIn("train.yaml:3: 'chat_template': is a Jinja text: write "
                      "it into a file", self.refusal(
                          self.HEAD + 'chat_template: "{% for m in x %}"\n'))
        self.options(self.HEAD + "local_rank:\nsome_key:\n")
        self.assertIn("'some_key': is not an option",
                      self.refusal(self.HEAD + "some_key: 1\n"))
        self.assert_options(
            self.HEAD + "lora_target_linear: false\n"
            "lora_target_modules: [q_proj]\n",
            {"lora-target-modules": '["q_proj"]'})
        for text in ("torch_dtype: auto", "gradient_checkpointing: some",
                     "warmup_steps: 1.5"):
            self.assertIn(f"train.yaml:3: '{text.split(':')[0]}': ",
                          self.refusal(self.HEAD + text + "\n"))
        self.assertIn("'pure_bf16': keeps trainable parameters in bfloat16",
                      self.refusal(self.HEAD + "pure_bf16: true\n"))


class FileTest(ForeignTest):
    def test_files_of_others_train(self):
        for name, notes in (
                ("axolotl", ["'flash_attention' chooses kernels",
                             "is read as a file for axolotl"]),
                ("llama-factory", ["is read as a file for LLaMA-Factory"]),
                ("trl", ["'report_to: wandb'", "is read as a file for TRL"])):
            with self.subTest(name=name):
                done = self.run_qlora(
                    "train", f"{INPUTS}/{name}.yaml", "--base-cache=none",
                    f"--output-dir={name}")
                self.adapter(name)
                for note in notes:
                    self.assertIn(note, done.stderr)
                self.assertNotIn("'fp16'", done.stderr)

    def test_rows_of_another_form_are_refused(self):
        path = self.write(
            AXOLOTL + "lora_r: 2\nlora_alpha: 2\nlora_target_linear: true\n"
            "sequence_len: 64\nmax_steps: 2\nlearning_rate: 1e-3\n"
            "datasets: [{path: chat.jsonl, type: alpaca}]\n")
        done = self.run_qlora("train", path, "--base-cache=none", code=1)
        self.assertIn("chat.jsonl:1: a row of 'messages', but --row-format "
                      "allows only alpaca", done.stderr)
        self.assertFalse(os.path.exists(
            self.folder + "/out/adapter_model.safetensors"))

    def test_values_are_translated(self):
        self.own_cache()
        for name, flags in (
                ("axolotl", ["--load-in-4bit=true", "--optim=adamw_torch",
                             "--lora-target-modules=all-linear",
                             "--completion-only-loss=true",
                             "--assistant-only-loss=true",
                             "--val-set-size=0.05",
                             "--train-file="
                             + os.path.join(DEMO, "data", "train.jsonl")
                             + " --train-file=",
                             "--save-strategy=epoch", "--lora-r=4",
                             "--compute-dtype=float32"]),
                ("llama-factory", ["--load-in-4bit=true",
                                   "--ddp-timeout=1000000",
                                   "--init-lora-weights=pissa_niter_16",
                                   "--neftune-noise-alpha=5",
                                   '\'--lora-target-modules=["q_proj",'
                                   '"v_proj"]\''])):
            done = self.run_qlora("train", f"{INPUTS}/{name}.yaml",
                                  "--dry-run")
            for flag in flags:
                self.assertIn(" " + flag, done.stdout)

    def test_losses_of_tokens_are_translated(self):
        for text, expected in (
                ("stage: sft\nuse_dft_loss: true", {"loss-type": "dft"}),
                ("stage: sft\nuse_dft_loss: false", {}),
                ("use_peft: true\nloss_type: dft", {"loss-type": "dft"}),
                ("use_peft: true\nloss_type: nll", {"loss-type": "nll"}),
                ("use_peft: true\nloss_type: chunked_nll",
                 {"loss-type": "nll"}),
                ("use_peft: true\nlabel_smoothing_factor: 0.1",
                 {"label-smoothing-factor": "0.1"})):
            with self.subTest(text=text):
                self.assert_options(
                    f"base_model: {MODEL}\n{text}\ntrain_file: {DATA}\n",
                    expected)

    def test_names_of_chat_templates_are_translated(self):
        for name, flag in (("phi_3", "phi3"), ("tokenizer_default", ""),
                           ("llama3", "llama3")):
            self.assert_options(
                AXOLOTL + f"chat_template: {name}\n"
                f"datasets: [{{path: {DATA}}}]\n", {"chat-template": flag})

    def test_answers_during_training(self):
        """Options of Seq2SeqTrainingArguments and of LLaMA-Factory."""
        text = LLAMA + (f"train_file: {DATA}\nval_size: 4\ncutoff_len: 64\n"
                        "predict_with_generate: true\n")
        self.assert_options(text, {
            "predict-with-generate": "true", "generation-batch": "8",
            "generation-max-new-tokens": "256", "generation-length": "256"})
        self.assert_options(text + "max_new_tokens: 32\n"
                            "generation_num_beams: 1\n",
                            {"generation-max-new-tokens": "32",
                             "generation-length": "96"})
        self.assert_options(text + "generation_max_length: 80\n"
                            "generation_batch: 2\n",
                            {"generation-max-new-tokens": None,
                             "generation-length": "80",
                             "generation-batch": "2"})
        self.assert_options(text.replace("true", "false"), {
            "generation-batch": None, "generation-length": None})

    def test_what_would_change_the_training_is_refused(self):
        for text, message in (
                ("generation_num_beams: 4", "several beams"),
                ("model: " + MODEL + "\npredict_with_generate: true\n"
                 "entries: train", "Fix: write --entries both"),
                (f"model: {MODEL}\npredict_with_generate: true\n"
                 f"train_file: {DATA}", "there are no rows to answer"),
                ("lora_task_type: SEQ_CLS",
                 "train.yaml:1: 'lora_task_type': is not supported: write "
                 "CAUSAL_LM"),
                ("peft_type: IA3", "is not supported: write LORA"),
                ("quantization_bit: 8", "write 4"),
                ("adapter: lora\nuse_galore: true",
                 "train.yaml:2: 'use_galore'"),
                ("trainable_token_indices: {embed_tokens: [5]}",
                 "a list of token ids"),
                ("pissa_init: true\npissa_iter: 4", "pissa_niter_N"),
                ("group_by_length: true", "'group_by_length'"),
                ("stage: sft\nuse_dft_loss: true\n"
                 "label_smoothing_factor: 0.1", "is only for --loss-type nll"),
                ("stage: sft\nuse_eaft_loss: true", "changes the loss"),
                ("datasets: []", "each with a path"),
                ("dataset: nothing", "dataset_info.json"),
                ("flash_atention: true", "did you mean 'flash_attention'?"),
                ("sequence_lenn: 3", "did you mean 'sequence_len'?")):
            with self.subTest(text=text):
                self.assertIn(message, self.refusal(text))


if __name__ == "__main__":
    unittest.main()
