# SPDX-License-Identifier: MIT
"""The wheel, alone in a fresh environment and without LLVM in the system: its
commands and its package compile and train a model, stop training, and report
errors unchanged."""

import os
import pathlib
import signal
import subprocess
import tempfile
import textwrap
import unittest

BUILD = pathlib.Path(os.environ["QLORA_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[3]
DEMO = SOURCE / "examples" / "demo"


def run(command, code=0, **options):
    done = subprocess.run(command, capture_output=True, text=True,
                          check=False, **options)
    if done.returncode != code:
        raise AssertionError(f"{command}: {done.returncode} {done.stdout}"
                             f"{done.stderr}")
    return done


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        run([SOURCE / "scripts" / "wheel.sh", "--tools", BUILD / "bin",
             cls.folder])
        cls.wheel, = cls.folder.glob("qlora-*-py3-none-manylinux_*.whl")
        run(["python3", "-m", "venv", cls.folder / "venv"])
        cls.bin = cls.folder / "venv" / "bin"
        run([cls.bin / "pip", "install", "-q", "--no-index", "--no-deps",
             cls.wheel])
        # The wheel's dependencies come from the project's environment.
        theirs, = (SOURCE / ".venv" / "lib").glob("python3*/site-packages")
        site, = (cls.folder / "venv" / "lib").glob("python3*/site-packages")
        (site / "dependencies.pth").write_text(f"{theirs}\n")
        cls.environment = {"HOME": str(cls.folder), "PATH": "/usr/bin:/bin",
                           "CUDA_VISIBLE_DEVICES": ""}
        (cls.folder / "empty").mkdir()
        for command in (["qlora-import", DEMO / "model", "-o", "m.mlir"],
                        ["qloracc", "m.mlir", "-o", "train.so", "--target",
                         "cpu", "--config", DEMO / "train.yaml"]):
            cls.command(*command)

    @classmethod
    def command(cls, *words, **options):
        """Runs a program of the wheel, without the folder of LLVM."""
        hide = f"mount --bind {cls.folder}/empty /usr/lib/llvm-22 && " + \
            'exec "$@"'
        return run(["unshare", "--user", "--map-root-user", "--mount", "sh",
                    "-c", hide, "sh", cls.bin / words[0], *words[1:]],
                   cwd=cls.folder, env=cls.environment, **options)

    def python(self, text, **options):
        return self.command("python3", "-c", textwrap.dedent(text), **options)

    def test_trains_a_compiled_program(self):
        self.command("qlora", "train", "train.so", "--config",
                     DEMO / "train.yaml", "--max-steps", "3",
                     "--output-dir", "command")
        self.python(f"""
            import qlora
            run = qlora.train("train.so", config="{DEMO}/train.yaml",
                              max_steps=3, logging_steps=1,
                              output_dir="package", validation_file=None)
            rows = [row for row in run if "loss" in row]
            assert [row["step"] for row in rows] == [1, 2, 3], rows
            assert run.returncode == 0 and run.metrics[-1]["train_runtime"]
            """)
        one, other = ((self.folder / name / "adapter_model.safetensors")
                      .read_bytes() for name in ("command", "package"))
        self.assertEqual(one, other)

    def test_errors_are_the_programs(self):
        done = self.python("""
            import qlora
            try:
                list(qlora.train("train.so", "nothing.jsonl"))
            except qlora.Error as error:
                print(error)
            """)
        self.assertIn("nothing.jsonl", done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)
        self.assertIn("error: ", done.stderr)

    def test_compiles_as_the_build_does(self):
        for folder, tools in (("own", BUILD / "bin"), ("wheel", self.bin)):
            (self.folder / folder).mkdir()
            command = ["qloracc", "m.mlir", "-o", f"{folder}/train.so",
                       "--config", DEMO / "train.yaml"]
            if folder == "own":
                run([tools / command[0], *command[1:]], cwd=self.folder)
            else:
                self.command(*command)
        own, wheel = ((self.folder / name / "train.so").read_bytes()
                      for name in ("own", "wheel"))
        self.assertEqual(own, wheel)

    def test_trains_a_model(self):
        done = self.command("qlora", "train", DEMO / "model",
                            DEMO / "data" / "train.jsonl", "--max-steps", "1",
                            "--output-dir", "model")
        self.assertTrue((self.folder / "model" / "adapter_config.json")
                        .exists(), done.stdout + done.stderr)

    def test_finds_the_packages_of_cuda(self):
        nvidia, = (self.folder / "venv" / "lib").glob("python3*/site-packages")
        for name in ("bin", "lib"):
            (nvidia / "nvidia" / "cu13" / name).mkdir(parents=True)
        done = self.python("""
            from qlora import _run
            environment = _run._environment()
            print(environment["PATH"])
            print(environment["LD_LIBRARY_PATH"])
            """)
        path, libraries = done.stdout.splitlines()
        self.assertTrue(path.startswith("/usr/bin:/bin:"), path)
        self.assertIn("nvidia/cu13/bin", path)
        self.assertIn("nvidia/cu13/lib", libraries)

    def test_stops_with_a_checkpoint(self):
        self.python(f"""
            import qlora
            run = qlora.train("train.so", config="{DEMO}/train.yaml",
                              max_steps=100000, output_dir="stopped")
            next(row for row in run if "loss" in row)
            run.stop()
            assert run.returncode == 143, run.returncode
            assert list(run) == []
            """)
        self.assertTrue(list((self.folder / "stopped").glob("checkpoint-*")))

    def test_what_nobody_reads_holds_nothing_up(self):
        # The output is larger than a pipe's buffer.
        many = ("import json\\n"
                "for i in range(5000): print(json.dumps({'step': i}))\\n"
                "print('no row')\\nopen('done', 'w')")
        done = self.python(f"""
            import os, qlora, sys, time
            run = qlora.Training([sys.executable, "-c", "{many}"])
            deadline = time.monotonic() + 30
            while not os.path.exists("done"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert run.wait() == [{{"step": i}} for i in range(5000)]
            assert list(run) == []
            qlora.train("train.so", dry_run=True).wait()
            """)
        self.assertEqual(done.stdout.splitlines()[0], "no row")
        self.assertIn("qlora-run", done.stdout.splitlines()[1])

    def test_none_is_left_running(self):
        done = self.python(f"""
            import qlora
            run = qlora.train("train.so", config="{DEMO}/train.yaml",
                              max_steps=100000, output_dir="left")
            next(row for row in run if "loss" in row)
            print(run._process.pid)
            """)
        with self.assertRaises(ProcessLookupError):
            process = int(done.stdout)
            for _ in range(300):
                os.kill(process, 0)
                signal.sigtimedwait([], 0.1)


if __name__ == "__main__":
    unittest.main()
