# SPDX-License-Identifier: MIT
"""qlora check says which programs load an adapter or a model."""

import json
import os
import shutil
import subprocess
import unittest

import numpy
from safetensors.numpy import save_file

from test_qlora import DATA, MODEL, SMALL, QloraTest

GOLDENS = os.path.normpath(os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../../Inputs/goldens"))
TARGETS = ("peft", "vllm", "llama.cpp", "ollama")


def golden(name):
    return os.path.join(GOLDENS, name, "model")


class CheckTest(QloraTest):
    def check(self, *words):
        """Returns {target: (result, text)}."""
        done = subprocess.run(["qlora", "check", *words], text=True,
                              capture_output=True, cwd=self.folder,
                              env=self.environment)
        self.errors = done.stderr
        found, target = {}, ""
        for line in done.stdout.splitlines():
            if not line.startswith(" "):
                target, result = line.split(maxsplit=1)
                found[target] = (result, "")
            else:
                found[target] = (found[target][0],
                                 found[target][1] + line.strip() + "\n")
        misfits = [name for name, (result, _) in found.items()
                   if result == "does not fit"]
        self.assertEqual(done.returncode, bool(misfits), done.stderr)
        if misfits:
            self.assertIn("does not fit: " + ", ".join(misfits) + "; see",
                          self.errors)
        return found

    def gptoss(self):
        """Returns a gpt-oss with the activation of the published models."""
        folder = os.path.join(self.folder, "gptoss")
        shutil.copytree(golden("gptoss"), folder, dirs_exist_ok=True)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config | {"swiglu_limit": 7.0}, file)
        return folder

    def expect(self, words, **texts):
        """Checks a target's result and a part of its text, for each of `texts`:
        (result, part). Names have _ for the dot. Other targets must fit, except
        for ollama's note about adapters."""
        found = self.check(*words)
        for target in TARGETS:
            result, text = found[target]
            wanted = texts.get(target.replace(".", "_"))
            with self.subTest(words=words[1:], target=target):
                if wanted:
                    self.assertEqual(result, wanted[0], text)
                    self.assertIn(wanted[1], text)
                elif target == "ollama":
                    self.assertIn("ollama loads the merged model", text)
                    self.assertEqual(result, "fits, with a note")
                else:
                    self.assertEqual((result, text), ("fits", ""))


NO, NOTE = "does not fit", "fits, with a note"


class TrainingTest(CheckTest):
    def test_kinds_of_adapters(self):
        for flags, texts in (
                ([], {}),
                (["--use-dora"], {"vllm": (NO, "vLLM has no DoRA"),
                                  "llama_cpp": (NO, "have no DoRA")}),
                (["--use-rslora"], {"llama_cpp": (NOTE, "ignores rsLoRA")}),
                (["--modules-to-save", "lm_head", "norm"],
                 {"vllm": (NO, "modules_to_save (lm_head, norm)"),
                  "llama_cpp": (NO, "modules_to_save (lm_head, norm)")}),
                (["--trainable-token-indices=3,4"],
                 {"vllm": (NO, "trainable_token_indices"),
                  "llama_cpp": (NO, "trainable_token_indices"),
                  "peft": (NOTE, "PEFT 0.15")}),
                (["--bias=lora_only"], {"vllm": (NO, "biases"),
                                        "llama_cpp": (NO, "biases")}),
                (["--lora-bias"], {"vllm": (NO, "biases"),
                                   "llama_cpp": (NO, "biases")}),
                (['--lora-rank-pattern={"q_proj": 4}'],
                 {"vllm": (NOTE, "ignore patterns of rank")}),
                (['--lora-alpha-pattern={"q_proj": 4}'],
                 {"vllm": (NOTE, "ignore patterns of rank"),
                  "llama_cpp": (NOTE, "patterns of alpha")}),
                (["--lora-target-modules", "q_proj", "embed_tokens"],
                 {"vllm": (NOTE, "adapters of the embedding")}),
                (["--lora-target-modules", "q_proj", "lm_head"],
                 {"vllm": (NOTE, "or the LM head")}),
                (["--lora-target-modules", r".*\.(q_proj|embed_tokens)"],
                 {"vllm": (NOTE, "adapters of the embedding")}),
                (["--lora-target-modules", "q_proj", "lm_head",
                  "--exclude-modules=lm_head"], {})):
            self.expect([golden("llama-lora"), *flags], **texts)

    def test_ranks(self):
        for rank, texts in (
                (16, {}), (17, {"vllm": (NOTE, "--max-lora-rank 32")}),
                (257, {"vllm": (NOTE, "--max-lora-rank 320")}),
                (512, {"vllm": (NOTE, "--max-lora-rank 512")}),
                (513, {"vllm": (NO, "rank 513 is above vLLM's maximum of 512")})
                ):
            self.expect([golden("llama-lora"), f"--lora-r={rank}"], **texts)
        # PiSSA's final adapter has twice the rank.
        self.expect([golden("llama-lora"), "--lora-r=16",
                     "--init-lora-weights=pissa"],
                    vllm=(NOTE, "rank 32 is above"))
        found = self.check(golden("llama-lora"),
                           '--lora-rank-pattern={"q_proj": 40}')
        self.assertIn("--max-lora-rank 64", found["vllm"][1])

    def test_tied_heads(self):
        for module, text in (("lm_head", "GGUF files have none to adapt"),
                             ("embed_tokens", "apply the embedding's adapter")):
            self.expect([golden("llama-embed-tied"), "--lora-target-modules",
                         "q_proj", module],
                        vllm=(NOTE, "the embedding or the LM head"),
                        llama_cpp=(NO, text))

    def test_families(self):
        self.expect([golden("gpt2")],
                    vllm=(NO, "no LoRA for GPT2LMHeadModel"),
                    llama_cpp=(NOTE, "transposes adapters of GPT2LMHeadModel"))
        window = "ignores this model's attention window of"
        self.expect([golden("mistral-window")], llama_cpp=(NOTE, window),
                    ollama=(NOTE, window))
        self.expect([golden("gemma2-nf4")])
        self.expect([self.gptoss()],
                    llama_cpp=(NOTE, "'truncate: false'"),
                    ollama=(NOTE, "'truncate: false'"))

    def test_experts(self):
        for model, texts in (
                (golden("mixtral"), {"vllm": (NO, "but no target_parameters")}),
                (self.gptoss(), {})):
            self.expect(
                [model, "--lora-target-modules", "q_proj",
                 "--target-parameters", "mlp.experts.down_proj"],
                peft=(NOTE, "PEFT 0.17"),
                llama_cpp=(NOTE, "no target_parameters"), **texts)

    def test_full_fine_tuning(self):
        found = self.check(golden("llama-full"), "--finetuning-type=full",
                           "--load-in-4bit=false")
        self.assertEqual([result for result, _ in found.values()],
                         [NO, "fits", "fits", "fits"])
        self.assertIn("load the output folder with transformers",
                      found["peft"][1])

    def test_a_configuration(self):
        path = os.path.join(self.folder, "train.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"model_name_or_path: {golden('llama-lora')}\n"
                       "lora_r: 64\nuse_dora: true\n")
        found = self.check("train.yaml", "--for", "vllm")
        self.assertEqual(list(found), ["vllm"])
        self.assertIn("vLLM has no DoRA\n", found["vllm"][1])
        self.assertIn("note: rank 64", found["vllm"][1])
        found = self.check("train.yaml", "--for=vllm,peft", "--use-dora=false")
        self.assertEqual(found["peft"], ("fits", ""))
        self.assertEqual(found["vllm"][0], NOTE)

    def test_mistakes(self):
        for words, message in (
                ((), "no model is named. Fix: qlora check RUN_DIR"),
                (("./none",), "none"),
                ((MODEL, "--for=vlm"), "'vlm' is not a target; did you mean "
                                       "'vllm'?"),
                ((MODEL, "--for=tensorrt"), "'tensorrt' is not a target; there "
                 "are: peft, vllm, llama.cpp, ollama"),
                ((MODEL, "--lora-rr=1"), "did you mean '--lora-r'?")):
            with self.subTest(words=words):
                done = self.run_qlora("check", *words, code=1)
                self.assertIn(message, done.stderr)
                self.assertEqual((done.stdout, done.stderr.count("\n")),
                                 ("", 1))


class AdapterTest(CheckTest):
    def adapter(self, names=("q_proj.lora_A.weight", "q_proj.lora_B.weight"),
                prefix="base_model.model.model.layers.0.self_attn.", **config):
        """Returns a PEFT folder on the demo's model."""
        folder = os.path.join(self.folder, "peft")
        shutil.rmtree(folder, ignore_errors=True)
        os.mkdir(folder)
        with open(os.path.join(folder, "adapter_config.json"), "w",
                  encoding="utf-8") as file:
            json.dump({"peft_type": "LORA", "r": 8, "lora_alpha": 8,
                       "base_model_name_or_path": MODEL,
                       "target_modules": ["q_proj"], **config}, file)
        save_file({prefix + name: numpy.zeros((2, 2), numpy.float32)
                   for name in names},
                  os.path.join(folder, "adapter_model.safetensors"))
        return folder

    def test_a_peft_folder(self):
        self.expect([self.adapter()])
        self.expect([self.adapter(use_dora=True)], vllm=(NO, "no DoRA"),
                    llama_cpp=(NO, "no DoRA"))
        self.expect([self.adapter(r=100)],
                    vllm=(NOTE, "--max-lora-rank 128"))
        base = "does not belong to the original one"
        self.expect([self.adapter(init_lora_weights="pissa")],
                    vllm=(NO, base), llama_cpp=(NO, base),
                    peft=(NOTE, "changes the base while PEFT loads"))

    def test_names_of_tensors(self):
        for names in (["q_proj.lora_A.default.weight"], ["q_proj.lora_C"]):
            text = "self_attn." + names[0] + "' has no name of a PEFT adapter"
            self.expect([self.adapter(names)], peft=(NO, text),
                        vllm=(NO, text), llama_cpp=(NO, text))
        text = "the tensor 'layers.0.q_proj.lora_A.weight' has no name"
        self.expect([self.adapter(["q_proj.lora_A.weight"],
                                  prefix="layers.0.")],
                    peft=(NO, text), vllm=(NO, text), llama_cpp=(NO, text))

    def test_options_conflict(self):
        done = self.run_qlora("check", self.adapter(), "--lora-r=4", code=1)
        self.assertIn("--lora-r conflicts with", done.stderr)
        done = self.run_qlora("check", self.adapter(
            base_model_name_or_path=None), code=1)
        self.assertIn("names no base model. Fix: write it", done.stderr)

    def test_runs(self):
        words = ["train", MODEL, DATA, *SMALL, "--save-strategy=no"]
        self.run_qlora(*words, "--output-dir=run", "--lora-r=17",
                       "--init-lora-weights=pissa",
                       "--lora-target-modules=q_proj")
        self.expect(["run"], vllm=(NOTE, "rank 34 is above"))
        self.run_qlora(*words, "--output-dir=full", "--finetuning-type=full")
        found = self.check("full")
        self.assertEqual([result for result, _ in found.values()],
                         [NO, "fits", "fits", "fits"])


if __name__ == "__main__":
    unittest.main()
