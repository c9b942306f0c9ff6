# SPDX-License-Identifier: MIT
"""--parallel auto and --device-map, from the command to a run: which tool gets
which options, and what is cached."""

import os
import unittest

from test_qlora import DATA, MODEL, SMALL, QloraTest

AUTO = ["--parallel=auto", "--gpus=2"]


class LayoutsTest(QloraTest):
    def commands(self, *words):
        """Returns the arguments of the compiler and of the runner."""
        done = self.run_qlora("train", MODEL, DATA, "--dry-run", *words)
        compile_words, run_words = done.stdout.splitlines()[-2:]
        return compile_words.split(), run_words.split()

    def test_two_ranks_train_what_is_chosen_and_it_is_kept(self):
        self.own_cache()
        first = self.run_qlora("train", MODEL, DATA, *SMALL, *AUTO,
                               "--output-dir=a")
        self.assertRegex(first.stderr, "data parallel .* chosen: ")
        second = self.run_qlora("train", MODEL, DATA, *SMALL, *AUTO,
                                "--output-dir=b")
        self.assertIn("qlora: the program is cached", second.stderr)
        self.assertEqual(self.adapter("a"), self.adapter("b"))

    def test_a_yaml_file_asks_for_it_too(self):
        path = os.path.join(self.folder, "train.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"model_name_or_path: {MODEL}\ntrain_file: {DATA}\n"
                       "max_length: 64\nlora_r: 2\nparallel: auto\n"
                       "memory_limit: 1GiB\n")
        done = self.run_qlora("plan", "train.yaml", "--gpus=4", "--verbose")
        self.assertIn("--parallel auto: 4 ranks, 1.0 GiB each", done.stderr)
        self.assertIn("a step of 4 ranks", done.stdout)

    def test_one_rank_is_alone(self):
        done = self.run_qlora("plan", MODEL, DATA, *SMALL, "--parallel=auto")
        self.assertIn("--parallel auto: one rank, no layout", done.stderr)

    def test_ranks_and_steps_are_part_of_the_question(self):
        compiler, runner = self.commands(*AUTO, "--global-batch-size=64")
        for flag in ("--parallel=auto", "--ranks=2",
                     "--gradient-accumulation-steps=4"):
            self.assertIn(flag, compiler)
        self.assertIn("--global-batch-size=64", runner)
        self.environment.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="4",
                                LOCAL_WORLD_SIZE="4")
        compiler, _ = self.commands("--parallel=auto")
        self.assertIn("--ranks=4", compiler)

    def test_a_device_map_is_of_the_ranks_that_there_are(self):
        compiler, runner = self.commands("--device-map=auto", "--gpus=2",
                                         "--global-batch-size=8")
        self.assertLessEqual({"--device-map=auto", "--ranks=2"}, set(compiler))
        # Both ranks have the same rows, because they are pipeline stages.
        self.assertIn("--global-batch-size=8", runner)
        done = self.run_qlora("plan", MODEL, DATA, *SMALL, "--device-map=auto",
                              "--gpus=2", "--verbose")
        self.assertIn("pipeline parallel, 2 stages", done.stdout)
        done = self.run_qlora("plan", MODEL, DATA, *SMALL, "--verbose",
                              "--device-map=auto")
        self.assertNotIn("pipeline", done.stdout)

    def test_one_gpu_is_one_whatever_a_configuration_says(self):
        with open(os.path.join(self.folder, "train.yaml"), "w",
                  encoding="utf-8") as file:
            file.write(f"model_name_or_path: {MODEL}\ntrain_file: {DATA}\n"
                       "max_length: 64\nlora_r: 2\nparallel: fsdp=2\n"
                       "device_map: auto\n")
        done = self.run_qlora("plan", "train.yaml", "--force-single-gpu",
                              "--verbose")
        self.assertNotIn("pieces", done.stdout)
        self.assertNotIn("stages", done.stdout)
        done = self.run_qlora("plan", "train.yaml", "--force-single-gpu",
                              "--gpus=2", code=1)
        self.assertIn("--force-single-gpu needs one rank, but --gpus is 2",
                      done.stderr)

    def test_ranks_that_share_a_gpu_need_a_limit_of_their_own(self):
        shared = ["--target=cuda", "--cuda-arch=90", "--gpus=2",
                  "--ranks-per-gpu=2"]
        _, runner = self.commands(*shared, "--memory-limit=1GiB")
        self.assertIn("--ranks-per-gpu=2", runner)
        for words in (["--memory-limit=auto"], ["--parallel=auto"],
                      ["--auto-find-batch-size"]):
            done = self.run_qlora("train", MODEL, DATA, "--dry-run", *shared,
                                  *words, code=1)
            self.assertIn("--ranks-per-gpu 2: --memory-limit auto is the "
                          "memory of a whole GPU. Fix: set", done.stderr)

    def test_machines_are_told_to_who_asks(self):
        machines = ["--target=cuda", "--cuda-arch=90", "--gpus-per-node=4",
                    "--network=400Gb"]
        told = set(machines[2:])
        compiler, runner = self.commands(*AUTO, *machines)
        self.assertLessEqual(told, set(compiler))
        self.assertFalse(told & set(runner))
        # The layout is chosen for the GPU that --simulate names.
        compiler, runner = self.commands(*AUTO, *machines,
                                         "--simulate=h200")
        self.assertIn("--device-profile=h200", compiler)
        self.assertLessEqual(told, set(compiler) & set(runner))
        compiler, _ = self.commands(*AUTO, *machines, "--simulate=h200",
                                    "--device-profile=a100")
        self.assertIn("--device-profile=a100", compiler)
        self.assertNotIn("--device-profile=h200", compiler)
        compiler, runner = self.commands("--parallel=none", *machines,
                                         "--simulate=h200")
        self.assertFalse(told & set(compiler))
        self.assertLessEqual(told, set(runner))


if __name__ == "__main__":
    unittest.main()
