# SPDX-License-Identifier: MIT

"""README.md works as written: its data, its train.yaml and its commands, with
the demo's model instead of a downloaded one. So do the commands that
quickstart.sh prints at its end.

QLORA_TOOLS names the folder of the tools; the default is build/bin.
"""

import ast
import glob
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.realpath(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOOLS = os.path.realpath(
    os.environ.get("QLORA_TOOLS", os.path.join(ROOT, "build", "bin")))
MOST_LINES = 150
PAGES = ("README.md", *sorted(
    path for folder in ("docs", "examples")
    for path in glob.glob(f"{folder}/**/*.md", root_dir=ROOT, recursive=True)))


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def fenced(language):
    """Returns README.md's only block in this language."""
    found = re.findall(rf"^```{language}\n(.*?)^```", read("README.md"),
                       re.M | re.S)
    assert len(found) == 1, f"{len(found)} blocks of {language}"
    return found[0]


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", read("README.md"),
                     re.M | re.S)[1]


def fresh_shell():
    """Returns the environment of a user without .venv on PATH."""
    folders = os.environ["PATH"].split(os.pathsep)
    path = [one for one in folders if ".venv" not in one.split(os.sep)]
    return dict(os.environ, PATH=os.pathsep.join(path))


def anchor(heading):
    words = re.sub(r"[^\w\- ]", "", heading.strip("# ").lower())
    return words.replace(" ", "-")


class TextTest(unittest.TestCase):
    def test_readme_is_short(self):
        self.assertLess(len(read("README.md").splitlines()), MOST_LINES)

    def test_links_lead_somewhere(self):
        for page in PAGES:
            for target in re.findall(r"\]\(([^)#]*)(#[^)]*)?\)", read(page)):
                path = os.path.join(os.path.dirname(page), target[0])
                other = os.path.normpath(path) if target[0] else page
                with self.subTest(page=page, target="".join(target)):
                    self.assertTrue(os.path.exists(os.path.join(ROOT, other)))
                    if target[1]:
                        anchors = [anchor(line) for line in
                                   read(other).splitlines()
                                   if line.startswith("#")]
                        anchors += re.findall(r'<a id="([^"]*)"', read(other))
                        self.assertIn(target[1][1:], anchors)

    def test_page_of_options(self):
        subprocess.run([os.path.join(ROOT, "tests/docs/options_page.py"),
                        TOOLS], check=True)

    def test_python_can_be_parsed(self):
        ast.parse(fenced("python"))


class CommandTest(unittest.TestCase):
    """Has a folder with the tools at the same place as in a clone."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.mkdir(self.at("build"))
        os.symlink(TOOLS, self.at("build", "bin"))

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def run_command(self, line, code=0):
        result = subprocess.run(
            line, shell=True, cwd=self.folder, text=True, timeout=600,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(fresh_shell(), XDG_CACHE_HOME=self.at("cache"),
                     CUDA_VISIBLE_DEVICES=""))
        self.assertEqual(result.returncode, code, f"{line}\n{result.stdout}")
        return result.stdout


class OwnModelTest(CommandTest):
    def setUp(self):
        super().setUp()
        with open(self.at("data.jsonl"), "w", encoding="utf-8") as file:
            file.write(fenced("jsonl"))
        with open(self.at("train.yaml"), "w", encoding="utf-8") as file:
            file.write(fenced("yaml"))
        self.copy_model(self.at("Qwen3-0.6B"))

    def copy_model(self, folder):
        """Copies the demo's model, with the real model's maximum length."""
        shutil.copytree(os.path.join(ROOT, "examples/demo/model"), folder)
        path = os.path.join(folder, "config.json")
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
        config["max_position_embeddings"] = 40960
        with open(path, "w", encoding="utf-8") as file:
            json.dump(config, file)

    def test_commands_train_an_adapter(self):
        lines = re.findall(r"^    (build/bin/.*)$",
                           section("Your own model"), re.M)
        self.assertEqual(len(lines), 1)
        self.run_command(lines[0])
        written = os.listdir(self.at("adapter"))
        for name in re.findall(r"`([\w.]+\.(?:safetensors|jsonl?|yaml))`",
                               section("What comes out")):
            self.assertIn(name, written)
        with open(self.at("adapter", "adapter_config.json"),
                  encoding="utf-8") as file:
            self.assertEqual(json.load(file)["r"], 16)
        self.assertIn("--overwrite-output-dir",
                      self.run_command(lines[-1], code=1))
        self.run_command(lines[-1] + " --overwrite-output-dir")


class QuickStartTest(CommandTest):
    def test_commands_at_the_end(self):
        os.makedirs(self.at("examples"))
        os.symlink(os.path.join(ROOT, "examples/demo"),
                   self.at("examples", "demo"))
        script = read("quickstart.sh")
        begin = "demo=examples/demo out=out/demo\n"
        end = self.run_command(begin + script[script.index("cat <<TEXT"):])
        commands = re.findall(r"build/bin/(?:.*\\\n)*.*", end)
        self.assertEqual(len(commands), 3)
        for command in commands:
            # Two steps are enough to show that the run starts.
            few = " --max-steps 2" if "--output-dir" in command else ""
            self.run_command(command + few)


if __name__ == "__main__":
    unittest.main()
