# SPDX-License-Identifier: MIT
"""Tests the commands of qlora on the demo model. Uses the tools on PATH."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import unittest

from safetensors.numpy import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
INPUTS = os.path.join(HERE, "Inputs")
DEMO = os.path.normpath(os.path.join(HERE, "../../../examples/demo"))
MODEL = os.path.join(DEMO, "model")
DATA = os.path.join(DEMO, "data/train.jsonl")
SMALL = ["--max-length=64", "--per-device-train-batch-size=4", "--lora-r=2",
         "--compute-dtype=float32", "--max-steps=2", "--base-cache=none"]


class QloraTest(unittest.TestCase):
    """The tests of a class share a cache of programs, so that few are
    compiled."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.mkdtemp()

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.shared)

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.environment = {**os.environ, "XDG_CACHE_HOME": self.shared,
                            "CUDA_VISIBLE_DEVICES": ""}
        self.addCleanup(shutil.rmtree, self.folder)

    def run_qlora(self, *words, code=0, program="qlora"):
        done = subprocess.run([program, *words], capture_output=True,
                              text=True, cwd=self.folder,
                              env=self.environment)
        self.assertEqual(done.returncode, code, done.stderr)
        return done

    def own_cache(self):
        self.environment["XDG_CACHE_HOME"] = self.folder + "/cache"
        return self.folder + "/cache/qlora/programs"

    def adapter(self, name):
        path = os.path.join(self.folder, name, "adapter_model.safetensors")
        with open(path, "rb") as file:
            return file.read()


class TrainTest(QloraTest):
    def test_a_second_run_compiles_nothing_and_gives_the_same(self):
        programs = self.own_cache()
        first = self.run_qlora("train", MODEL, DATA, *SMALL,
                               "--output-dir=a")
        self.assertIn("qlora: compiling", first.stderr)
        second = self.run_qlora("train", MODEL, DATA, *SMALL,
                                "--output-dir=b", "--learning-rate=5e-5")
        self.assertIn("qlora: the program is cached", second.stderr)
        self.assertNotIn("compiling", second.stderr)
        self.assertEqual(self.adapter("a"), self.adapter("b"))
        # qlora compiles again instead of using a truncated program.
        program, = (os.path.join(programs, name)
                    for name in os.listdir(programs) if name.endswith(".so"))
        with open(program, "r+b") as file:
            whole = file.read()
            file.truncate(len(whole) // 2)
        third = self.run_qlora("train", MODEL, DATA, *SMALL,
                               "--output-dir=c")
        self.assertIn("is damaged and is compiled again", third.stderr)
        self.assertEqual(self.adapter("a"), self.adapter("c"))

    def key(self, *words, model=MODEL):
        done = self.run_qlora("train", model, DATA, "--dry-run", *words)
        return done.stdout.splitlines()[-1].split()[1]

    def test_what_decides_the_program_decides_the_key(self):
        key = self.key(*SMALL)
        self.assertEqual(key, self.key(*SMALL, "--learning-rate=1"))
        copy = shutil.copytree(MODEL, self.folder + "/copy")
        self.assertEqual(key, self.key(*SMALL, model=copy))
        self.assertNotEqual(key, self.key(*SMALL, "--lora-r=3"))
        self.assertNotEqual(key, self.key(*SMALL, "--march=x86-64-v2"))
        config = os.path.join(copy, "config.json")
        with open(config, encoding="utf-8") as file:
            text = file.read()
        for old, other in (('"rms_norm_eps": 1e-05', '"rms_norm_eps": 1e-06'),
                           ('"pad_token_id": 0', '"pad_token_id": 3')):
            with open(config, "w", encoding="utf-8") as file:
                file.write(text.replace(old, other))
            self.assertNotEqual(key, self.key(*SMALL, model=copy))

    def test_dry_run_can_be_pasted(self):
        self.own_cache()
        words = ["train", MODEL, DATA, *SMALL, "--output-dir=with space's",
                 "--lora-target-modules", "q_proj", "v_proj"]
        shown = self.run_qlora(*words, "--dry-run")
        self.assertEqual(len(shown.stdout.splitlines()), 3)
        self.assertFalse(os.path.exists(self.folder + "/with space's"))
        subprocess.run(["sh", "-e", "-c", shown.stdout], check=True,
                       env=self.environment, cwd=self.folder,
                       capture_output=True)
        pasted = self.adapter("with space's")
        self.run_qlora(*words, "--overwrite-output-dir")
        self.assertEqual(pasted, self.adapter("with space's"))

    def test_the_first_pattern_counts(self):
        """The first pattern that matches counts, as in PEFT, and
        adapter_config.json keeps the order of patterns."""
        lines = ("lora_rank_pattern:\n  q_proj: 3\n"
                 "  layers.0.self_attn.q_proj: 5\n")
        with open(self.folder + "/q.yaml", "w", encoding="utf-8") as file:
            file.write(lines)
        paths = json.dumps({"layers.0.self_attn.q_proj": 5, "q_proj": 3})
        for pattern, rank in ([["--config", "q.yaml"], 3],
                              [["--lora-rank-pattern", paths], 5]):
            self.run_qlora("train", MODEL, DATA, *SMALL, *pattern,
                           "--lora-target-modules", "q_proj", "v_proj",
                           "--output-dir=a", "--overwrite-output-dir")
            tensors = load_file(self.folder + "/a/adapter_model.safetensors")
            name = ("base_model.model.model.layers.{}.self_attn.q_proj."
                    "lora_A.weight")
            ranks = [len(tensors[name.format(layer)]) for layer in range(3)]
            self.assertEqual(ranks, [rank, 3, 3])
            with open(self.folder + "/a/adapter_config.json",
                      encoding="utf-8") as file:
                first = next(iter(json.load(file)["rank_pattern"]))
            self.assertEqual(first == "q_proj", rank == 3)

    def test_two_at_once(self):
        self.own_cache()
        runs = [subprocess.Popen(
            ["qlora", "train", MODEL, DATA, *SMALL, f"--output-dir={name}"],
            cwd=self.folder, env=self.environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for name in "ab"]
        for run in runs:
            _, errors = run.communicate()
            self.assertEqual(run.returncode, 0, errors)
        self.assertEqual(self.adapter("a"), self.adapter("b"))

    def test_a_program_is_taken_where_there_is_no_compiler(self):
        self.run_qlora("train", MODEL, DATA, *SMALL, "--output-dir=warm")
        bare = self.folder + "/bin"
        os.mkdir(bare)
        for tool in ("qlora", "qlora-run"):
            shutil.copy(shutil.which(tool), bare)
        for tool in ("qlora-data", "python3"):
            os.symlink(os.path.realpath(shutil.which(tool))
                       if tool != "python3" else shutil.which(tool),
                       os.path.join(bare, tool))
        self.environment["PATH"] = bare
        program = bare + "/qlora"
        cached = self.run_qlora("train", MODEL, DATA, *SMALL,
                                "--output-dir=a", program=program)
        self.assertIn("the program is cached", cached.stderr)
        found = cached.stderr.split("cached: ")[1].splitlines()[0]
        self.run_qlora("train", found, DATA, "--max-steps=2",
                       "--base-cache=none", "--output-dir=b", program=program)
        self.assertEqual(self.adapter("a"), self.adapter("b"))
        missing = self.run_qlora("train", MODEL, DATA, *SMALL, "--lora-r=5",
                                 program=program, code=1)
        self.assertIn("the compiler is not installed here", missing.stderr)

    def test_ctrl_c_is_the_runs_own(self):
        run = subprocess.Popen(
            ["qlora", "train", MODEL, DATA, *SMALL, "--max-steps=100000",
             "--output-dir=a", "--logging-steps=1"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        for line in run.stdout:
            if line.startswith("step"):
                break
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=60)
        self.assertIn(run.returncode, (130, -signal.SIGINT))

    def test_mistakes(self):
        for words, message in (
                (["train"], "no model is named"),
                (["train", MODEL, DATA, "more"], "'more'"),
                (["train", "./Qwen3-0.6B", DATA], "Qwen3-0.6B"),
                (["train", MODEL, DATA, "--lorar=8"], "--lora-r"),
                (["hepl"], "did you mean 'help'?"),
                (["help", "nothing"], "topics:"),
                (["completion", "tcsh"], "bash"),
                (["report"], "expects one folder of a run"),
                (["info", "x"], "takes no argument")):
            with self.subTest(words=words):
                done = self.run_qlora(*words, code=1)
                self.assertIn(message, done.stderr)
                self.assertLessEqual(len(done.stderr.splitlines()), 2)


class OtherCommandsTest(QloraTest):
    def test_plan_trains_nothing(self):
        done = self.run_qlora("plan", MODEL, DATA, *SMALL, "--verbose")
        for row in ("frozen base", "adapters", "gradients", "optimizer",
                    "activations", "total"):
            self.assertIn(row, done.stdout)
        self.assertEqual(os.listdir(self.folder), [])

    def plan(self, *words):
        """Returns the summary: a text for each name."""
        lines = self.run_qlora("plan", MODEL, DATA, *SMALL,
                               *words).stdout.splitlines()
        self.assertEqual(len(lines), 8)
        return {line[:12].strip(): line[13:] for line in lines}

    def test_plan_is_eight_lines(self):
        rows = self.plan()
        self.assertEqual(list(rows), ["fits", "base", "trained", "activations",
                                      "recomputed", "other", "step", "speed"])
        self.assertRegex(rows["fits"], r"^\S+ MiB of the \S+ GiB of this "
                         "machine, as far as it is free$")
        self.assertIn(" optimizer", rows["trained"])
        self.assertEqual(rows["recomputed"], "nothing")
        self.assertEqual(rows["step"],
                         "1 micro-batch of up to 256 tokens on 1 rank")
        self.assertIn("not predicted; --simulate", rows["speed"])

    def test_plan_for_a_gpu(self):
        rows = self.plan("--simulate=rtx3090", "--gradient-checkpointing",
                         "--gradient-accumulation-steps=3")
        self.assertRegex(rows["fits"],
                         "^.* of the 22.4 GiB of NVIDIA GeForce RTX 3090$")
        self.assertIn(" at the peak of the activations", rows["recomputed"])
        self.assertEqual(rows["step"],
                         "3 micro-batches of up to 256 tokens on 1 rank")
        self.assertRegex(rows["speed"],
                         r"^\S+ to \S+ tokens/s predicted, not measured$")

    def test_plan_counts_a_shared_base_once(self):
        base, one, *several = (
            float(self.plan(*words)[row].split()[0]) for row, words in (
                ("base", []), ("fits", []), ("fits", ["--gpus=2"]),
                ("fits", ["--gpus=2", "--parallel=zero1=2"])))
        for two in several:
            self.assertAlmostEqual(two, 2 * one - base, delta=0.4)

    def test_plan_that_does_not_fit(self):
        tight = self.folder + "/tight.json"
        shown = self.run_qlora("plan", MODEL, *SMALL, "--simulate=l4",
                               "--log-format=json").stdout
        profile = json.loads(shown)["assumed"]
        profile["gpu"]["memory_gb"] = 0.001
        with open(tight, "w", encoding="utf-8") as file:
            json.dump(profile, file)
        text = self.run_qlora("plan", MODEL, *SMALL,
                              "--simulate=" + tight).stdout
        self.assertRegex(text, r"^does not fit \S+ MiB of the 977 KiB of .*"
                         r"\. Fix: --memory-limit")

    def memory(self, *words):
        shown = self.run_qlora("memory", MODEL, "--max-length=64",
                               "--target=cuda", *words)
        return [line.split() for line in shown.stdout.split("\n\n")[0]
                .splitlines()]

    def test_memory(self):
        shown = self.run_qlora("memory", MODEL, "--max-length=64",
                               "--target=cuda", "--base=nf4",
                               "--per-device-train-batch-size=1").stdout
        for gpus in ("24 GB  rtx3090, a10, l4, rtx4090", "32 GB  rtx5090",
                     "40 GB  a100-40", "48 GB  l40s", "96 GB  rtxpro6000"):
            self.assertIn(gpus, shown)
        header, *rows = self.memory("--lora-r", "2", "8")
        self.assertEqual(header[:5],
                         ["base", "length", "batch", "rank", "memory"])
        shapes = {tuple(row[:4]) for row in rows}
        self.assertEqual(shapes, {(base, "64", batch, rank) for base in
                                  ("nf4", "bf16") for batch in "14"
                                  for rank in "28"})
        self.assertEqual({tuple(row[-4:]) for row in rows},
                         {("24", "GB", "24", "GB")})
        # Rows are in the order of their settings, not of their bytes.
        settings = [tuple(row[:4]) for row in rows]
        self.assertEqual(settings, [(base, "64", batch, rank) for base in
                                    ("nf4", "bf16") for batch in "14"
                                    for rank in "28"])
        # `qlora memory` plans the program whose plan `qlora plan` prints.
        plan = self.run_qlora("plan", MODEL, DATA, "--max-length=64",
                              "--per-device-train-batch-size=4", "--lora-r=2",
                              "--load-in-4bit", "--step-packing=false",
                              "--verbose").stdout
        _, row = self.memory("--target=cpu", "--base=nf4", "--lora-r=2",
                             "--per-device-train-batch-size=4")
        total, = (line.split() for line in plan.splitlines()
                  if line.split()[:1] == ["total"])
        # On a CPU, `qlora memory` also counts the process's own memory
        # (runtime/Base/HostMemory.h).
        self.assertEqual(row[5], "MiB")
        self.assertGreater(float(row[4]), float(total[1]))

    def test_memory_limit(self):
        _, roomy, tight = self.memory(
            "--memory-limit=1GiB", "--base", "nf4", "bf16", "--lora-r=2",
            "--per-device-train-batch-size=1")
        self.assertEqual((roomy[-1], tight[-1]), ("fits", "fits"))
        _, row = self.memory("--memory-limit=1MiB", "--base=nf4",
                             "--per-device-train-batch-size=1")
        self.assertEqual(row[-3], "needs")

    def test_info(self):
        shown = self.run_qlora("info").stdout
        for word in ("CPU", "GPU", "Tools", "qloracc", "Caches"):
            self.assertIn(word, shown)

    def test_help(self):
        shown = self.run_qlora("help").stdout
        topics = shown.split("Topics:")[1].split()
        self.assertEqual(shown, self.run_qlora("--help").stdout)
        self.assertIn("memory", topics)
        for topic in topics:
            for line in self.run_qlora("help", topic).stdout.splitlines():
                self.assertLessEqual(len(line), 80)


if __name__ == "__main__":
    unittest.main()
