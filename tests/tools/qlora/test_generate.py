# SPDX-License-Identifier: MIT
"""qlora generate answers with a model, a run's adapter or a program."""

import json
import os
import shlex
import shutil
import unittest

import numpy
from safetensors.numpy import save_file

from test_qlora import DATA, MODEL, SMALL, QloraTest

GOLDENS = os.path.normpath(os.path.join(
    os.path.dirname(os.path.abspath(__file__)), "../../Inputs/goldens"))
FAST = ["--generation-length=64", "--max-new-tokens=6",
        "--compute-dtype=float32", "--base-cache=none"]
CPUS = len(os.sched_getaffinity(0))
IDS = [{"input_ids": [5, 6, 7]}, {"input_ids": [9]}]


class CommandTest(QloraTest):
    def words(self, *words):
        """Returns the last command of --dry-run: qlora-data's words, and those
        of its engine."""
        shown = self.run_qlora("generate", *words, "--dry-run").stdout
        words = shlex.split(shown.splitlines()[-1])
        end = words.index("--")
        return words[1:end], words[end + 1:]

    def folder_with(self, name, **files):
        folder = os.path.join(self.folder, name)
        os.mkdir(folder)
        for stem, text in files.items():
            file_name = stem.replace("__", ".")
            with open(os.path.join(folder, file_name), "w",
                      encoding="utf-8") as file:
                file.write(text)
        return folder


class DryRunTest(CommandTest):
    def test_flags_of_both_programs(self):
        front, engine = self.words(
            MODEL, "say 'hello'", "--stop", "a b", "--stop=,c", "--top-k=3",
            "--temperature=0.5", "--system=s", "--ignore-eos", "--threads=1",
            "--seed=7", "--chat-template=chatml")
        self.assertEqual(front, [
            "generate", "--model=" + MODEL, "--seed=7",
            "--chat-template=chatml", "--system=s", "--stop=a b", "--stop=,c",
            "--ignore-eos", "--temperature=0.5", "--top-k=3",
            "--prompt=say 'hello'"])
        self.assertEqual(os.path.basename(engine[0]), "qlora-run")
        self.assertEqual(engine[2], "--generate")
        for flag in ("--threads=1", "--model-name-or-path=" + MODEL):
            self.assertIn(flag, engine)
        self.assertEqual(os.listdir(self.folder), [])

    def test_the_program(self):
        shown = self.run_qlora("generate", MODEL, "a", "--dry-run").stdout
        compiled = shlex.split(shown.splitlines()[1])
        # The model has 256 positions.
        for flag in ("--generation-batch=8", "--generation-length=256",
                     "--entries=generate", "--lora-target-modules=[]"):
            self.assertIn(flag, compiled)
        _, engine = self.words(MODEL, "a")
        self.assertEqual(engine[1], self.words(MODEL, "b", "--top-k=1")[1][1])
        self.assertNotEqual(engine[1], self.words(
            MODEL, "a", "--generation-batch=4")[1][1])

    def test_ranks(self):
        words = [MODEL, "--input", DATA]
        one = self.words(*words)
        front, engine = self.words(*words, "--gpus=2")
        self.assertEqual(set(front) - set(one[0]), {"--ranks=2"})
        added = set(engine) - set(one[1])
        self.assertEqual(added, {f"--threads={max(1, CPUS // 2)}"})
        front, engine = self.words(*words, "--nproc-per-node=3", "--threads=4")
        self.assertIn("--ranks=3", front)
        self.assertEqual(set(engine) - set(one[1]), {"--threads=4"})

    def test_options_of_a_peft_adapter(self):
        folder = self.folder_with("peft", adapter_config__json=json.dumps({
            "base_model_name_or_path": MODEL, "r": 4, "lora_alpha": 6,
            "target_modules": ["q_proj"], "modules_to_save": None,
            "rank_pattern": {"layers.1.q_proj": 2}}))
        shown = self.run_qlora("generate", folder, "a", "--dry-run").stdout
        compiled = shlex.split(shown.splitlines()[1])
        for flag in ("--lora-r=4", "--lora-alpha=6.0",
                     '--lora-target-modules=["q_proj"]',
                     '--lora-rank-pattern={"layers.1.q_proj":2}'):
            self.assertIn(flag.replace(" ", ""),
                          [word.replace(" ", "") for word in compiled])
        self.assertIn("--adapter=peft=" + folder, self.words(folder, "a")[1])
        self.assertIn("--adapter-name-or-path=",
                      self.words(folder, "a", "--adapter=none")[1])

    def test_adapters_that_rows_cannot_choose(self):
        plain = self.folder_with("plain", adapter_config__json="{}")
        for name, config, message in (
                ("dora", {"use_dora": True}, "use_dora is true, but rows can "
                 "choose only plain LoRA adapters. Fix: use this adapter"),
                ("saved", {"modules_to_save": ["lm_head"]},
                 'modules_to_save is ["lm_head"], but rows can choose only'),
                ("bias", {"bias": "all"}, 'bias is "all", but rows can'),
                ("pissa", {"init_lora_weights": "pissa"},
                 "init_lora_weights changes the weights of the base"),
                ("loftq", {"init_lora_weights": "loftq"},
                 "init_lora_weights changes the weights of the base")):
            with self.subTest(name):
                folder = self.folder_with(
                    name, adapter_config__json=json.dumps(config))
                done = self.run_qlora(
                    "generate", MODEL, "a", "--adapter", folder, "--adapter",
                    plain, code=1)
                self.assertIn(message, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1)

    def run_folder(self, name, base, **settings):
        folder = self.folder_with(
            name, adapter_config__json=json.dumps({
                "base_model_name_or_path": base,
                "target_modules": ["q_proj"]}),
            config__resolved__yaml=json.dumps(settings))
        module = "base_model.model.model.layers.0.self_attn.q_proj"
        save_file({f"{module}.lora_A.weight": numpy.ones((8, 4), "f"),
                   f"{module}.lora_B.weight": numpy.ones((4, 8), "f")},
                  folder + "/adapter_model.safetensors")
        return folder

    def test_runs_with_bases_that_differ(self):
        four = self.run_folder("four", MODEL, load_in_4bit=True)
        eight = self.run_folder("eight", MODEL, load_in_8bit=True)
        again = self.run_folder("again", MODEL, load_in_4bit=True)
        done = self.run_qlora("generate", four, "a", "--adapter", four,
                              "--adapter", eight, code=1)
        self.assertIn(f"'{four}' was trained with --load-in-4bit true, but "
                      f"'{eight}' with false. Fix: give --load-in-4bit",
                      done.stderr)
        # An option that is given applies to both.
        for words in (["--adapter", eight, "--load-in-8bit=false",
                       "--load-in-4bit=true"], ["--adapter", again]):
            self.run_qlora("generate", MODEL, "a", "--adapter", four, *words,
                           "--dry-run")

    def test_the_base_of_a_run_with_an_adapter_of_another_model(self):
        run = self.run_folder("run", MODEL, load_in_4bit=True)
        foreign = self.folder_with("foreign", adapter_config__json=json.dumps(
            {"base_model_name_or_path": "org/other", "r": 4,
             "target_modules": ["q_proj"]}))
        done = self.run_qlora("generate", run, "a", "--adapter", foreign,
                              "--dry-run")
        self.assertIn(f"warning: '{foreign}' was trained on 'org/other', but "
                      f"is used with '{MODEL}'", done.stderr)
        self.assertIn("--load-in-4bit=true", done.stdout)
        self.assertIn("--adapter=foreign=" + foreign, done.stdout)
        self.assertNotIn(f"run={run}", done.stdout)

    def test_the_adapters_chat_template(self):
        folder = self.folder_with(
            "peft", chat_template__jinja="x", adapter_config__json=json.dumps(
                {"base_model_name_or_path": MODEL}))
        flag = f"--chat-template={folder}/chat_template.jinja"
        for words in ([folder], [MODEL, "a", "--adapter", folder],
                      [folder, "a", "--adapter=none"]):
            self.assertIn(flag, self.words(*words, *["a"][len(words) - 1:])[0])
        self.assertIn("--chat-template=chatml", self.words(
            folder, "a", "--chat-template=chatml")[0])

    def test_mistakes(self):
        unfinished = self.folder_with("run", config__resolved__yaml="")
        nameless = self.folder_with("peft", adapter_config__json="{}")
        for words, message in (
                ((), "no model is named; usage: qlora generate MODEL [PROMPT]"),
                ((MODEL, "a", "b"), "got 'b' too; put the prompt in quotes"),
                ((MODEL, "a", "--input=" + DATA), "--input conflicts with the "
                 "prompt 'a'; remove one"),
                ((MODEL, "--input=none.jsonl"), "--input: there is no file"),
                ((MODEL, "a", "--output=b"), "--output needs --input; add"),
                ((MODEL, "a", "--logprobs=1"), "--logprobs needs --input"),
                ((MODEL, "a", "--gpus=2"), "--gpus 2: one rank answers a "
                 "prompt; add --input, or remove it"),
                ((MODEL, "a", "--learning-rate=1"), "unknown option"),
                ((MODEL, "a", "--lora-rr=1"), "did you mean '--lora-r'?"),
                ((MODEL, "a", "--top-p=2"), "--top-p"),
                ((MODEL, "a", "--adapter", self.folder),
                 "adapter_config.json'. Fix: give the folder of a PEFT"),
                ((unfinished, "a"), "has no adapter, because its run has not "
                 "ended. Fix: name one of its checkpoint folders"),
                ((nameless, "a"), "names no base model. Fix: name MODEL "
                 "instead, with --adapter"),
                ((MODEL, "a", "--adapter", nameless, "--lora-r=4"),
                 "r is 8, but --lora-r is 4. Fix: --lora-r 8"),
                ((MODEL, "a", "--adapter=none", "--adapter=a"),
                 "--adapter none conflicts with other adapters. Fix: remove"),
                ((MODEL, "a", "--adapter=a=/x", "--adapter=a=/y"),
                 "--adapter: two adapters are called 'a'. Fix: --adapter "),
                ((MODEL, "a", "--adapter==/x"), "names no folder or no "),
                (("./none", "a"), "none")):
            with self.subTest(words=words):
                done = self.run_qlora("generate", *words, code=1)
                self.assertIn(message, done.stderr)
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertEqual(done.stdout, "")


class AnswerTest(CommandTest):
    def rows(self, *words, rows=IDS):
        """Returns the answers to `rows`."""
        path = os.path.join(self.folder, "rows.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        done = self.run_qlora("generate", *words, "--input", path,
                              "--ignore-eos", *FAST)
        return [json.loads(line)["output_ids"]
                for line in done.stdout.splitlines()]

    def train(self, *words):
        self.run_qlora("train", MODEL, DATA, *SMALL, "--learning-rate=0.05",
                       "--save-strategy=no", "--output-dir=run", *words)
        return os.path.join(self.folder, "run")

    def test_a_prompt(self):
        self.own_cache()
        shown = self.run_qlora("generate", MODEL, "Who?", *FAST)
        self.assertIn("qlora: compiling", shown.stderr)
        self.assertTrue(shown.stdout.endswith("\n"))
        again = self.run_qlora("generate", MODEL, "Who?", *FAST)
        self.assertEqual((again.stdout, again.stderr), (shown.stdout, ""))

    def test_a_run_its_base_and_its_program(self):
        base = self.rows(MODEL)
        self.assertEqual([len(ids) for ids in base], [6, 6])
        run = self.train()
        answers = self.rows(run)
        self.assertNotEqual(answers, base)
        self.assertEqual(self.rows(run, "--adapter=none"), base)
        self.assertEqual(self.rows(MODEL, "--adapter", run), answers)
        program = self.words(run, "a", *FAST)[1][1]
        self.assertEqual(self.rows(program, "--adapter", run), answers)
        self.assertEqual(self.rows(program), base)
        # The folder may move; the base stays where it was.
        moved = shutil.move(run, self.folder + "/moved")
        self.assertEqual(self.rows(moved), answers)

    def test_ranks(self):
        rows = [{"input_ids": [5 + row, 6]} for row in range(20)]
        flags = ["--temperature=1.2", "--seed=3"]
        one = self.rows(MODEL, *flags, rows=rows)
        self.assertEqual(len(set(map(str, one))), 20)
        for ranks in (2, 3):
            self.assertEqual(self.rows(MODEL, *flags, f"--gpus={ranks}",
                                       rows=rows), one)

    def test_rows_choose_adapters(self):
        one = shutil.move(self.train("--lora-r=2"), self.folder + "/one")
        two = self.train("--lora-r=9", "--lora-target-modules=v_proj")
        answers = {"one": self.rows(one), "two": self.rows(two),
                   None: self.rows(MODEL)}
        self.assertEqual(len(set(map(str, answers.values()))), 3)
        choices = ["two", None, "one"]
        flags = ["--adapter=one=" + one, "--adapter=two=" + two]
        self.assertEqual(
            self.rows(MODEL, *flags, rows=[
                {**row, "adapter": name} for row in IDS for name in choices]),
            [answers[name][i] for i in range(len(IDS)) for name in choices])
        # Without a choice, a row gets the first adapter.
        self.assertEqual(self.rows(MODEL, *flags), answers["one"])
        shown = self.run_qlora("generate", MODEL, *flags, "a",
                               "--dry-run").stdout
        for flag in ("--max-loras=2", "--max-lora-rank=16"):
            self.assertIn(flag, shown)

    def test_an_unknown_adapter(self):
        path = os.path.join(self.folder, "unknown.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            for name in ("x", 3):
                file.write(json.dumps({**IDS[0], "adapter": name}) + "\n")
        done = self.run_qlora("generate", MODEL, "--input", path, *FAST,
                              code=1)
        first, second = map(json.loads, done.stdout.splitlines())
        self.assertIn("no adapter is called 'x'", first["error"])
        self.assertIn("'adapter' expects the name of an adapter or null",
                      second["error"])

    def test_the_quantization_of_a_run(self):
        run = self.train("--load-in-4bit")
        shown = self.run_qlora("generate", run, "a", "--dry-run").stdout
        self.assertIn("--load-in-4bit=true", shown)
        self.assertIn("--compute-dtype=float32", shown)
        shown = self.run_qlora("generate", run, "a", "--dry-run",
                               "--load-in-4bit=false").stdout
        self.assertNotIn("--load-in-4bit=true", shown)

    def test_the_seed_of_a_run(self):
        # Initial adapters depend on the run's seed, not on that of sampling.
        run = self.train("--seed=9")
        for flags, seed in (([], "--seed=42"), (["--seed=7"], "--seed=7")):
            front, engine = self.words(run, "a", *flags)
            self.assertEqual((front[2], engine.count("--seed=9"),
                              engine.count(seed)), (seed, 1, 0))

    def test_a_model_with_experts(self):
        mixtral = os.path.join(GOLDENS, "mixtral", "model")
        self.assertEqual([len(ids) for ids in self.rows(mixtral)], [6, 6])

    def test_a_long_prompt(self):
        done = self.run_qlora("generate", MODEL, "a " * 99, *FAST, code=1)
        self.assertIn("tokens, but a row has at most 64", done.stderr)


if __name__ == "__main__":
    unittest.main()
