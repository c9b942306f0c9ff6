# SPDX-License-Identifier: MIT
"""Tests the target that qlora chooses, and what it refuses before it compiles.

GPUs are those of the software CUDA platform (tests/cuda), or there are none.
Compilers that only record their calls show that nothing was compiled.
"""

import json
import os
import shutil
import unittest

from test_qlora import DATA, MODEL, SMALL, QloraTest

HERE = os.path.dirname(os.path.abspath(__file__))
HOST_NVCC = os.path.normpath(os.path.join(HERE, "../../cuda/host-nvcc"))
NO_NVCC = "--cuda-compiler=/no/such/nvcc"


class TargetTest(QloraTest):
    def setUp(self):
        super().setUp()
        tools = os.path.dirname(os.path.realpath(shutil.which("qlora")))
        self.platform = os.path.join(tools, "..", "cuda-platform")
        self.own_cache()

    def show_gpus(self, devices="sm_90:4096", **variables):
        """Makes GPUs visible to the programs that run from now on."""
        self.environment.update(LD_LIBRARY_PATH=self.platform,
                                QLORA_TEST_CUDA_DEVICES=devices, **variables)

    def add_nvcc(self):
        """Puts an nvcc first on PATH, which may have a real one, too."""
        folder = os.path.join(self.folder, "nvcc-folder")
        os.makedirs(folder, exist_ok=True)
        os.symlink(HOST_NVCC, os.path.join(folder, "nvcc"))
        self.environment["PATH"] = folder + ":" + os.environ["PATH"]

    def record_compilers(self):
        """Adds a qlora whose compilers fail and record their arguments."""
        folder = os.path.join(self.folder, "bin")
        os.mkdir(folder)
        shutil.copy(shutil.which("qlora"), folder)
        for tool in ("qlora-run", "qlora-data"):
            os.symlink(os.path.realpath(shutil.which(tool)),
                       os.path.join(folder, tool))
        for tool in ("qlora-import", "qloracc"):
            path = os.path.join(folder, tool)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\necho \"$0 $*\" >> {self.folder}/calls\n"
                           "exit 1\n")
            os.chmod(path, 0o755)
        return os.path.join(folder, "qlora")

    def has_compiled(self):
        return os.path.exists(os.path.join(self.folder, "calls"))


class ChoiceTest(TargetTest):
    def chosen(self, *words, command="train"):
        """Runs a command. Returns the --target and --cuda-arch that qloracc
        gets, and the output."""
        shown = self.run_qlora(command, MODEL, DATA, *SMALL, *words,
                               "--dry-run")
        compile_words = shown.stdout.splitlines()[1].split()
        return [word for word in compile_words if word.startswith(
            ("--target", "--cuda-arch"))], shown.stderr

    def test_without_a_gpu_the_cpu(self):
        self.add_nvcc()
        self.assertEqual(self.chosen(), (["--target=cpu"], ""))
        self.show_gpus("none")
        self.assertEqual(self.chosen(), (["--target=cpu"], ""))

    def test_a_gpu_that_works(self):
        self.add_nvcc()
        self.show_gpus()
        cuda = ["--target=cuda", "--cuda-arch=90"]
        self.assertEqual(self.chosen(), (cuda, ""))
        self.assertEqual(self.chosen("--target=auto"), (cuda, ""))
        self.assertEqual(self.chosen("--target=cpu"), (["--target=cpu"], ""))
        self.assertEqual(self.chosen("--device=cpu"), (["--target=cpu"], ""))
        self.assertEqual(self.chosen("--sweep", "lora_r=2,4")[0],
                         ["--target=cpu"])
        self.show_gpus("sm_100:64,sm_80:64,sm_100:64")
        self.assertEqual(self.chosen()[0],
                         ["--target=cuda", "--cuda-arch=80,100"])
        # --cuda-arch compiles for other architectures than this machine's.
        self.assertEqual(self.chosen("--cuda-arch", "89", "compute_80")[0],
                         ["--target=cuda", "--cuda-arch=89,compute_80"])

    def test_a_gpu_that_cannot_be_used_is_named(self):
        for gpus, words, reason in (
                ({"devices": "sm_75:64"}, [],
                 "Software sm_75 is sm_75, and sm_80 or later is needed"),
                ({"QLORA_TEST_CUDA_VERSION": "11080"}, [],
                 "NVIDIA's driver is for CUDA 11.8, but 12.0 is needed"),
                ({"QLORA_TEST_CUDA_FAIL": "cuInit:1:999"}, [], "cuInit: "),
                ({}, [NO_NVCC], "1 x Software sm_90: --target auto compiles "
                 "for the CPU: --cuda-compiler: '/no/such/nvcc'")):
            with self.subTest(reason=reason):
                before = dict(self.environment)
                self.show_gpus(**gpus)
                target, said = self.chosen(*words)
                self.environment = before
                self.assertEqual(target, ["--target=cpu"])
                self.assertIn("qlora: warning: idle GPU: ", said)
                self.assertIn(reason, said)
                lines = [line for line in said.splitlines()
                         if not line.startswith("cuda-platform: ")]
                self.assertEqual(len(lines), 1)

    def test_a_card_that_is_planned_for_decides(self):
        words = ["--simulate=h200", NO_NVCC]
        self.assertEqual(self.chosen(*words)[0],
                         ["--target=cuda", "--cuda-arch=none"])
        self.assertEqual(self.chosen("--target=cpu", *words)[0],
                         ["--target=cpu"])

    def test_memory_chooses_in_the_same_way(self):
        words = ["memory", MODEL, "--max-length=64", "--base=bf16",
                 "--per-device-train-batch-size=1"]
        self.assertIn("plans are for --target cpu",
                      self.run_qlora(*words).stderr)
        self.add_nvcc()
        self.show_gpus()
        shown = self.run_qlora(*words)
        self.assertIn("plans are for --target cuda", shown.stderr)
        self.assertIn("rtx4090", shown.stdout)
        self.assertIn("T4", shown.stdout)


class CheckTest(TargetTest):
    def test_a_plan_needs_no_gpu_and_no_cuda_compiler(self):
        done = self.run_qlora("plan", MODEL, *SMALL, "--target=cuda", NO_NVCC)
        self.assertRegex(done.stdout, "^memory .* per GPU; --simulate GPU ")

    def test_what_a_run_would_refuse_is_not_compiled(self):
        program = self.record_compilers()
        os.mkdir(self.folder + "/taken")
        for name in ("taken/adapter_model.safetensors", "taken/mine"):
            with open(f"{self.folder}/{name}", "w", encoding="utf-8"):
                pass
        os.mkdir(self.folder + "/start")
        with open(self.folder + "/start/adapter_config.json", "w",
                  encoding="utf-8") as file:
            json.dump({"peft_type": "LORA", "r": 16, "lora_alpha": 8}, file)
        best = ["--load-best-model-at-end", "--eval-strategy=steps"]
        for words, message in (
                ([DATA, "--target=cuda"], "CUDA"),
                ([DATA, "--target=cuda", "--cuda-arch=90"], "CUDA"),
                ([DATA, "--output-dir=taken"],
                 "/taken' holds an adapter (adapter_model.safetensors, mine)"),
                (["missing.jsonl"], "there is no file"),
                ([DATA, "--chat-template=qwen3"],
                 "/qwen3', and no template of that name. Fix: write a Jinja "
                 "file, or one of: alpaca, "),
                ([], "no train_file is given. Fix: --train-file FILE"),
                ([DATA, "--validation-file=missing.jsonl"],
                 "--validation-file: there is no file"),
                ([DATA, *best], "needs evaluations: give --validation-file"),
                ([DATA, "--parallel=fsdp=2"],
                 "shards its base over 2 ranks, but 1 was started"),
                ([DATA, "--parallel=fsdp=2", "--gpus=3"],
                 "shards its base over 2 ranks, but 3 were started"),
                ([DATA, "--adapter-name-or-path=start"],
                 "r is 16, but --lora-r is 2. Fix: --lora-r 16"),
                ([DATA, "--sweep", "lora_r=2,4", *best],
                 "needs evaluations: give --validation-file")):
            with self.subTest(words=words):
                done = self.run_qlora("train", MODEL, *words, *SMALL,
                                      code=1, program=program)
                self.assertIn(message, done.stderr)
                self.assertNotIn("compiling", done.stderr)
                self.assertFalse(self.has_compiled())
        # Input without mistakes is compiled.
        done = self.run_qlora("train", MODEL, DATA, *SMALL, code=1,
                              program=program)
        self.assertIn("qlora: compiling", done.stderr)
        self.assertTrue(self.has_compiled())

    def test_more_ranks_than_gpus(self):
        program = self.record_compilers()
        self.add_nvcc()
        self.show_gpus("sm_90:64,sm_90:64")
        done = self.run_qlora("train", MODEL, DATA, *SMALL, "--gpus=3", code=1,
                              program=program)
        self.assertIn("no GPU 2 for this rank", done.stderr)
        self.assertFalse(self.has_compiled())
        self.run_qlora("train", MODEL, DATA, *SMALL, "--gpus=2", code=1,
                       program=program)
        self.assertTrue(self.has_compiled())

    def test_dry_run_refuses_what_the_run_would(self):
        for words, message in ((["missing.jsonl"], "there is no file"),
                               ([], "no train_file")):
            done = self.run_qlora("train", MODEL, *words, *SMALL, "--dry-run",
                                  code=1)
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stdout, "")
        # A dry run may be for another machine, or for an output folder that is
        # in use.
        os.mkdir(self.folder + "/taken")
        with open(self.folder + "/taken/mine", "w", encoding="utf-8"):
            pass
        self.run_qlora("train", MODEL, DATA, *SMALL, "--dry-run",
                       "--output-dir=taken")
        done = self.run_qlora("train", MODEL, DATA, *SMALL, "--dry-run",
                              "--target=cuda", "--cuda-arch=90")
        self.assertIn("--cuda-arch=90", done.stdout)

    def test_a_program_for_the_cpu_names_an_idle_gpu(self):
        words = ["train", MODEL, DATA, *SMALL, "--target=cpu"]
        done = self.run_qlora(*words, "--output-dir=a")
        self.assertRegex(done.stdout, r"(?m)^device   CPU, \d+ threads?$")
        self.assertNotIn("idle", done.stdout + done.stderr)
        self.show_gpus("sm_90:64,sm_90:64")
        done = self.run_qlora(*words, "--output-dir=b")
        said = done.stdout + done.stderr
        self.assertIn("the program is cached", said)
        self.assertRegex(said,
                         r"warning: idle GPU: 2 x Software sm_90: '.*' was "
                         r"compiled for the CPU\. Fix: qlora train "
                         r".*/model .*/train.jsonl --target cuda")
        self.assertEqual(self.adapter("a"), self.adapter("b"))


if __name__ == "__main__":
    unittest.main()
