# SPDX-License-Identifier: MIT
"""Files that are not JSONL: each is named, and the command that is advised
makes JSONL of it, where what it needs is installed."""

import bz2
import gzip
import importlib.util
import json
import lzma
import os
import re
import shlex
import shutil
import subprocess
import zipfile

from fixtures import ToolTest

ROWS = [{"prompt": "a, é", "completion": "b\nc"},
        {"prompt": "d \"e\"", "completion": "f"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = 'prompt,completion\n"a, é","b\nc"\n"d ""e""",f\n'


class FormatsTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model()

    def refused(self, name, raw, what):
        """The file `name` is refused as `what`; the command that is advised,
        which leaves its result beside."""
        self.data = self.path(name)
        with open(self.data, "wb") as file:
            file.write(raw)
        error = self.refusal()
        found = re.fullmatch(
            rf"qlora-data: error: {re.escape(self.data)}: {re.escape(what)}, "
            r"not JSONL; turn it into JSONL: (.+)",
            error)
        self.assertTrue(found, error)
        return found[1]

    def check_command(self, command, *needed):
        missing = [name for name in needed if not shutil.which(name)
                   and importlib.util.find_spec(name) is None]
        if missing:
            return
        result = shlex.split(command)[-1]
        self.assertFalse(os.path.exists(result))
        subprocess.run(command, shell=True, check=True)
        with open(result, encoding="utf-8") as file:
            self.assertEqual([json.loads(line) for line in file], ROWS)
        os.remove(result)

    def test_compressed(self):
        for extension, pack, name, tool in (
                (".gz", gzip.compress, "gzip", "gzip"),
                (".bz2", bz2.compress, "bzip2", "bzip2"),
                (".xz", lzma.compress, "xz", "xz")):
            with self.subTest(name):
                command = self.refused("data 'x'.jsonl" + extension,
                                       pack(JSONL),
                                       f"is compressed with {name}")
                self.check_command(command, tool)
        self.assertIn("zstd -dc <", self.refused(
            "d.jsonl.zst", b"\x28\xb5\x2f\xfd\x00", "is compressed with zstd"))

    def test_tables(self):
        for raw, what, reader in (
                (b"PAR1\x15\x04", "is a Parquet file", "'parquet'"),
                (b"ARROW1\0\0", "is an Arrow file", "'arrow'"),
                (b"\xff\xff\xff\xff\x10\x01", "is an Arrow file", "'arrow'")):
            with self.subTest(what):
                command = self.refused("data.bin", raw, what)
                self.assertIn(f"load_dataset({reader}, ", command)
                # Debian's own Python takes no packages.
                self.assertRegex(command, r"^(\S+ -m pip install datasets|"
                                 r"python3 -m venv tables) && ")

    def test_parquet_and_excel_commands(self):
        if importlib.util.find_spec("pandas") is None:
            self.skipTest("pandas is not installed")
        import pandas
        rows = pandas.DataFrame(ROWS)
        data = self.path("data 'x'.parquet")
        if importlib.util.find_spec("pyarrow"):
            rows.to_parquet(data)
            with open(data, "rb") as file:
                self.check_command(self.refused(
                    "data 'x'.parquet", file.read(), "is a Parquet file"),
                    "datasets")
        if importlib.util.find_spec("openpyxl"):
            data = self.path("data 'x'.xlsx")
            rows.to_excel(data, index=False)
            with open(data, "rb") as file:
                self.check_command(self.refused(
                    "data 'x'.xlsx", file.read(), "is an Excel workbook"))

    def test_zip(self):
        data = self.path("data 'x'.zip")
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr("rows.jsonl", JSONL)
        with open(data, "rb") as file:
            self.check_command(self.refused(
                "data 'x'.zip", file.read(), "is a zip archive"), "unzip")

    def test_separated_values(self):
        for name, raw, what in (
                ("data 'x'.csv", CSV, "is CSV"),
                ("data 'x'.txt", CSV, "is CSV"),
                ("data 'x'.csv", "\ufeff" + CSV, "is CSV"),
                ("data 'x'.tsv", CSV.replace("t,c", "t\tc")
                 .replace('","', '"\t"').replace('",f', '"\tf'), "is TSV")):
            with self.subTest(name=name, raw=raw[:8]):
                self.check_command(self.refused(name, raw.encode(), what),
                                   "python3")

    def test_json_array(self):
        for text in (json.dumps(ROWS), "\n " + json.dumps(ROWS, indent=2)):
            self.check_command(self.refused("data 'x'.json", text.encode(),
                                            "is one JSON array"), "python3")

    def test_utf16(self):
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            with self.subTest(encoding):
                command = self.refused(
                    "data 'x'.txt", JSONL.decode().encode(encoding),
                    "is UTF-16")
                self.check_command(command, "iconv")

    def test_the_file_is_not_written_over(self):
        for name, output in (("data.jsonl", "data.rows.jsonl"),
                             ("data.jsonl.gz", "data.rows.jsonl")):
            with open(self.path("data.jsonl"), "wb"):
                pass
            with self.subTest(name):
                self.assertTrue(self.refused(
                    name, gzip.compress(JSONL), "is compressed with gzip"
                ).endswith("> " + self.path(output)))

    def test_a_sentence_is_no_table(self):
        for text in ("Hello, world\n", "a\n", "# a,b\n"):
            with open(self.data, "w", encoding="utf-8") as file:
                file.write(text)
            with self.subTest(text):
                self.assertIn(f"{self.data}:1: malformed JSON",
                              self.refusal())
