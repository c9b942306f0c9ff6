# SPDX-License-Identifier: MIT
"""The installed programs train the demo to the same bytes as those in
build/bin, from a moved prefix and from the unpacked Debian package."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["QLORA_BUILD"])
SOURCE = pathlib.Path(__file__).resolve().parents[3]
PROGRAMS = ("qlora", "qlora-import", "qloracc", "qlora-run")


def run(command, cwd, **environment):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True,
                          env=environment or None)
    if done.returncode:
        raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


class Install(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, name, programs, demo):
        """Trains the demo for 5 steps with `programs`. Returns the digest of
        the adapter."""
        cwd = self.folder / name
        cwd.mkdir()
        environment = {"HOME": str(cwd), "PATH": f"{programs}:/usr/bin:/bin"}
        config = ("--config", demo / "train.yaml")
        run(["qlora-import", demo / "model", "-o", "m.mlir"], cwd,
            **environment)
        run(["qloracc", "m.mlir", "-o", "t.so", "--target", "cpu", *config],
            cwd, **environment)
        run(["qlora-run", "t.so", *config, "--max-steps", "5",
             "--output-dir", "a"], cwd, **environment)
        adapter = (cwd / "a" / "adapter_model.safetensors").read_bytes()
        return hashlib.sha256(adapter).hexdigest()

    def expect_same(self, prefix):
        for program in PROGRAMS:
            paths = run(["readelf", "-d", prefix / "bin" / program], "/")
            self.assertNotIn(str(BUILD), paths)
            page = prefix / "share" / "man" / "man1" / f"{program}.1"
            self.assertIn(r"\-\-", page.read_text())
        run([prefix / "bin" / "qlora-memory-viz", "--help"], "/")
        demo = prefix / "share" / "qlora" / "examples" / "demo"
        self.assertEqual(self.train("installed", prefix / "bin", demo),
                         self.train("built", BUILD / "bin",
                                    SOURCE / "examples" / "demo"))

    def test_a_prefix_that_was_moved(self):
        run(["cmake", "--install", BUILD, "--prefix", self.folder / "first"],
            "/")
        shutil.move(self.folder / "first", self.folder / "moved")
        self.expect_same(self.folder / "moved")

    def test_the_debian_package(self):
        run(["cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake",
             "-B", self.folder], self.folder)
        package, = self.folder.glob("*.deb")
        depends = run(["dpkg-deb", "-f", package, "Depends"], "/")
        for name in ("clang-22", "lld-22", "libmlir-22",
                     "libdnnl2"):
            self.assertIn(name, depends)
        run(["dpkg-deb", "-x", package, self.folder / "root"], "/")
        self.expect_same(self.folder / "root" / "usr")


if __name__ == "__main__":
    unittest.main()
