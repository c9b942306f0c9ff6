# SPDX-License-Identifier: MIT
"""The same rows in any supported kind of file give the same tokens. The error
for an unsupported kind has a command that converts the file to JSONL."""

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
import sys
import unittest
import zipfile

from fixtures import QWEN_TOOLS, TOOL, Rows, ToolTest

ROWS = [{"prompt": "a, é", "completion": "b\nc"},
        {"prompt": "d \"e\"", "completion": "f"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = 'prompt,completion\n"a, é","b\nc"\n"d ""e""",f\n'


class FormatsTest(ToolTest):
    def setUp(self):
        super().setUp()
        self.make_model()

    def refused(self, name, raw, what):
        """Checks that the file `name` is refused as `what`. Returns the
        suggested command, which writes its result into the same folder."""
        self.data = self.path(name)
        with open(self.data, "wb") as file:
            file.write(raw)
        error = self.refusal()
        found = re.fullmatch(
            rf"qlora-data: error: {re.escape(self.data)}: {re.escape(what)}, "
            r"which is not supported; convert it to JSONL: (.+)",
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

    def test_tables(self):
        for raw, what, reader in (
                (b"ARROW1\0\0", "is an Arrow file", "'arrow'"),
                (b"\xff\xff\xff\xff\x10\x01", "is an Arrow file", "'arrow'")):
            with self.subTest(what):
                command = self.refused("data.bin", raw, what)
                self.assertIn(f"load_dataset({reader}, ", command)
                # Debian's own Python does not allow installing packages.
                self.assertRegex(command, r"^(\S+ -m pip install datasets|"
                                 r"python3 -m venv tables) && ")

    def test_excel_command(self):
        if importlib.util.find_spec("openpyxl"):
            import pandas
            data = self.path("data 'x'.xlsx")
            pandas.DataFrame(ROWS).to_excel(data, index=False)
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

    def test_utf16(self):
        for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
            with self.subTest(encoding):
                command = self.refused(
                    "data 'x'.txt", JSONL.decode().encode(encoding),
                    "is UTF-16")
                self.check_command(command, "iconv")

    def test_the_file_is_not_written_over(self):
        with open(self.path("data.jsonl"), "wb"):
            pass
        self.assertTrue(self.refused(
            "data.txt", JSONL.decode().encode("utf-16"), "is UTF-16"
        ).endswith("> " + self.path("data.rows.jsonl")))

    def test_a_sentence_is_no_table(self):
        for text in ("Hello, world\n", "a\n", "# a,b\n"):
            with open(self.data, "w", encoding="utf-8") as file:
                file.write(text)
            with self.subTest(text):
                self.assertIn(f"{self.data}:1: malformed JSON",
                              self.refusal())


class KindsTest(ToolTest):
    """Tests the supported kinds of files."""

    def setUp(self):
        super().setUp()
        self.make_model()

    def tokens(self, name, raw=None, flags=()):
        """Converts a file `name` with the content `raw`. Returns the bytes of
        the tensors."""
        self.data = self.path(name)
        if raw is not None:
            with open(self.data, "wb") as file:
                file.write(raw)
        done = self.run_tool(*flags)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.output, "rb") as file:
            return file.read()[8:].split(b"}}", 1)[1].lstrip(b" }")

    def test_the_same_rows_are_the_same_tokens(self):
        tokens = self.tokens("d.jsonl", JSONL)
        array = json.dumps(ROWS, ensure_ascii=False).encode()
        tsv = "prompt\tcompletion\na, é\t\"b\nc\"\n\"d \"\"e\"\"\"\tf\n"
        for name, raw in (
                ("d.json", array), ("d.json", b"\xef\xbb\xbf\n" + array),
                ("d.json", json.dumps(ROWS, indent=2).encode()),
                ("d.json", b'{"version": 1, "data": ' + array + b"}"),
                ("d.json", b'{"train":' + array + b', "more": [1]}'),
                ("lines.json", JSONL), ("d.csv", CSV.encode()),
                ("d.txt", b"\xef\xbb\xbf" + CSV.encode()),
                ("d.tsv", tsv.encode()),
                ("d.jsonl.gz", gzip.compress(JSONL)),
                ("d.csv.gz", gzip.compress(CSV.encode())),
                ("d.json.xz", lzma.compress(array)),
                ("d.bz2", bz2.compress(JSONL))):
            with self.subTest(name=name, raw=raw[:16]):
                self.assertEqual(self.tokens(name, raw), tokens)

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"),
                         "pyarrow is not installed")
    def test_parquet_and_zstd(self):
        import pyarrow
        import pyarrow.parquet
        tokens = self.tokens("d.jsonl", JSONL)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS),
                                    self.path("d.parquet"), row_group_size=1)
        self.assertEqual(self.tokens("d.parquet"), tokens)
        half = len(JSONL) // 2
        for raw in (pyarrow.compress(JSONL, "zstd", asbytes=True),
                    pyarrow.compress(JSONL[:half], "zstd", asbytes=True)
                    + pyarrow.compress(JSONL[half:], "zstd", asbytes=True)):
            self.assertEqual(self.tokens("d.jsonl.zst", raw), tokens)
        with open(self.path("d.parquet"), "rb") as file:
            whole = file.read()
        for name, raw in (("d.parquet", whole[:-9]),
                          ("d.zst", b"\x28\xb5\x2f\xfd" + b"x" * 99)):
            self.assertIn("is damaged: ", self.broken(name, raw))

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"),
                         "pyarrow is not installed")
    def test_a_table_gives_no_row_the_fields_of_others(self):
        import pyarrow
        import pyarrow.parquet
        self.make_model(QWEN_TOOLS)

        def row(name, arguments):
            return {"messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"function": {"name": name, "arguments": arguments}}]}]}
        rows = [row("weather", {"city": "Paris"}),
                row("time", {"zone": {"name": "UTC", "names": ["a", None]}})]
        self.write_data(*rows)
        tokens = self.convert(*rows).data
        self.data = self.path("d.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), self.data)
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(Rows(self.output).data, tokens)

    @unittest.skipUnless(importlib.util.find_spec("pyarrow"),
                         "pyarrow is not installed")
    def test_types_that_json_does_not_have(self):
        import pyarrow
        import pyarrow.parquet
        self.make_model(QWEN_TOOLS)
        call = {"function": {"name": "f", "arguments": {"city": "world"}}}
        row = {"messages": [{"role": "user", "content": "hello"},
                            {"role": "assistant", "tool_calls": [call]}]}
        tokens = self.convert(row).data
        text = pyarrow.string()
        function = pyarrow.struct([("name", text),
                                   ("arguments", pyarrow.map_(text, text))])
        message = pyarrow.struct([
            ("role", text), ("content", text), ("tool_calls", pyarrow.list_(
                pyarrow.struct([("function", function)])))])
        self.data = self.path("d.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"messages": pyarrow.array(
            [row["messages"]], pyarrow.list_(message))}), self.data)
        done = self.run_tool()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(Rows(self.output).data, tokens)
        os.remove(self.output)
        pyarrow.parquet.write_table(pyarrow.table({"text": [b"a"]}), self.data)
        self.assertIn("'text' expects a string, but got a value of type bytes",
                      self.refusal())

    def test_what_needs_pyarrow_says_so(self):
        self.make_model()
        self.data = self.path("d.jsonl.zst")
        with open(self.data, "wb") as file:
            file.write(b"\x28\xb5\x2f\xfd" + b"x" * 99)
        blocked = self.path("blocked", "pyarrow")
        os.makedirs(blocked)
        with open(os.path.join(blocked, "__init__.py"), "w",
                  encoding="ascii") as file:
            file.write("raise ImportError")
        done = self.run_tool(env={**os.environ,
                                  "PYTHONPATH": self.path("blocked")})
        self.assertEqual(done.returncode, 1)
        self.assertIn("zstd needs the Python package pyarrow; run: ",
                      done.stderr)

    def test_a_folder_is_read_by_name(self):
        tokens = self.tokens("d.jsonl", JSONL)
        folder = self.path("folder")
        os.makedirs(os.path.join(folder, "d.jsonl"))
        for name, raw in (("a.jsonl", JSONL.splitlines()[0]),
                          ("b.csv", b'prompt,completion\n"d ""e""",f\n'),
                          (".hidden.jsonl", b"no"), ("README.md", b"no")):
            with open(os.path.join(folder, name), "wb") as file:
                file.write(raw)
        self.assertEqual(self.tokens("folder"), tokens)
        with open(os.path.join(folder, "c.jsonl"), "wb") as file:
            file.write(b'{"text": "a"}\n{"text": 1}\n')
        self.assertIn("c.jsonl:2: 'text' expects a string", self.refusal())

    def test_a_folder_without_data(self):
        self.data = self.path("empty")
        os.mkdir(self.data)
        self.assertIn("empty: the folder has no data; add files",
                      self.refusal())
        with open(self.path("empty", "a.jsonl"), "wb"):
            pass
        self.assertIn("empty: the data has no rows", self.refusal())

    def broken(self, name, raw):
        self.data = self.path(name)
        with open(self.data, "wb") as file:
            file.write(raw)
        return self.refusal()

    def test_what_is_broken_is_one_line_with_its_place(self):
        packed = gzip.compress(JSONL * 99)
        for name, raw, message in (
                ("d.gz", packed[:-20], "d.gz: is damaged: "),
                ("d.gz", packed[:30] + b"x" * 30, "d.gz: is damaged: "),
                ("d.xz", lzma.compress(JSONL)[:-20], "d.xz: is damaged: "),
                ("d.csv", b"a,a\n1,2\n", "d.csv:1: the first line does not"),
                ("d.csv", b"a,\n1,2\n", "d.csv:1: the first line does not"),
                ("d.csv", b"prompt,completion\na,b\na\n",
                 "d.csv: row 2: has 1 cells, but the first line names 2"),
                ("d.csv", b"how are you,fine\nand you,too\n",
                 "row 1: the shape of this row is not known (it has 'how"),
                ("d.csv", b"prompt,completion\na,\xff\n", "not UTF-8"),
                ("d.json", b'[{"text": "a"} {"text": "b"}]',
                 "row 2: malformed JSON: expects ','"),
                ("d.json", b'[{"text": "a"}, {"text": ',
                 "row 2: malformed JSON: "),
                ("d.json", b'[{"text": "a"}, 3]',
                 "row 2: expects a JSON object, but got a number"),
                ("d.json", b'[{"text": "a"}] {}', "follows the array"),
                ("d.json", b"[" * 100000, "nested too deeply"),
                ("d.json", b"[{\"text\": 1e}," + b" " * 99 + b"{}]",
                 "row 1: malformed JSON: ")):
            with self.subTest(name=name, raw=raw[:20]):
                self.assertIn(message, self.broken(name, raw))

    def test_a_row_has_a_limit(self):
        for name, start in (("d.jsonl", b'{"text": "'), ("d.csv", b"text\n"),
                            ("d.json", b'[{"text": "')):
            with self.subTest(name):
                self.assertIn("a row of more than 64 MiB", self.broken(
                    name, start + b"x" * ((65 << 20) + 100)))

    def test_columns(self):
        tokens = self.tokens("d.jsonl", JSONL)
        named = [{"question": row["prompt"], "answer": row["completion"],
                  "text": "no", "messages": []} for row in ROWS]
        raw = "".join(json.dumps(row) + "\n" for row in named).encode()
        flags = ["--column", "prompt=question", "--column"]
        self.assertEqual(
            self.tokens("n.jsonl", raw, (*flags, "completion=answer")), tokens)
        for column, message in (
                ("completion=reply", "n.jsonl:1: has no column 'reply' (it has "
                 "'question', 'answer', 'text', 'messages')"),
                ("answer=answer", "'answer' is not a column that is read"),
                ("prompt=x", "each name once, but got 'prompt=x'")):
            self.assertIn(message, self.refusal(flags=(*flags, column)))

    def test_memory_does_not_grow_with_the_rows(self):
        def peak(rows):
            self.write_data(*[{"text": "hello world " * 40}] * rows)
            program = (
                "import resource, sys; from qlora_data import main\n"
                "code = main.main(sys.argv[1:])\n"
                "for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):\n"
                "    print(resource.getrusage(of).ru_maxrss)\n"
                "sys.exit(code)\n")
            done = subprocess.run(
                [sys.executable, "-c", program, "--tokenizer", self.model,
                 "--input", self.data, "--output", self.output, "--workers",
                 "2"], env={**os.environ, "PYTHONPATH": os.path.dirname(TOOL)
                            + os.pathsep + os.environ.get("PYTHONPATH", "")},
                capture_output=True, text=True, check=True)
            return [int(line) for line in done.stdout.splitlines()[-2:]]
        peak(3000)
        few, many = peak(3000), peak(24000)
        # The 24,000 rows of `many` have 4 MB of tokens and more than 11 MB of
        # text.
        for before, after in zip(few, many):
            self.assertLess(after - before, 4 << 10, (few, many))
