# SPDX-License-Identifier: MIT

"""Tests the messages found in sources, and the page that lists them."""

import os
import tempfile
import unittest

import messages
import errors as page_check

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def cpp(source):
    wrappers = messages.wrappers_of(source)
    found = (messages.normalise(text)
             for text, _ in messages.cpp_messages(source, wrappers))
    return [text for text in found if messages.has_words(text)]


def python(source):
    return sorted(messages.normalise(text)
                  for text, _ in messages.python_messages(source))


class CppTest(unittest.TestCase):
    def test_formats_are_joined_and_filled(self):
        self.assertEqual(cpp("""
            return Status::invalid("'{}' has {:.2f} of "  // a comment, "no"
                                   "{{braces}}\\n{}", name, f("x"), 'c');
            """), ["'…' has … of {braces} …"])

    def test_only_what_is_not_our_fault(self):
        self.assertEqual(cpp("""
            Status::error(StatusCode::kInternal, "an offset of {}", 3);
            Status::error(full ? StatusCode::kResourceExhausted
                               : StatusCode::kInternal, "no room");
            """), ["no room"])

    def test_wrappers_are_known_by_their_format(self):
        self.assertEqual(cpp("""
            static Status damaged(fmt::format_string<Args...> format) {
              return Status::error(StatusCode::kDataLoss, format);
            }
            static Status misuse(fmt::format_string<Args...> format) {
              return Status::error(StatusCode::kInternal, format);
            }
            return damaged("no shape"), misuse("no entry");
            """), ["no shape"])

    def test_diagnostics_with_what_is_streamed(self):
        self.assertEqual(cpp("""
            return op->emitOpError("has ") << n << " rows; use " << (a ? "b"
                : "c") << " instead";
            emitError(op.getLoc()) << "limit: needs " << bytes(x, "MiB");
            getOperation().emitError(option) << ": " << error;
            """), ["has … rows; use … instead", "limit: needs …"])

    def test_texts_that_are_added_or_formatted(self):
        self.assertEqual(cpp("""
            return fail("cannot write " + path + ": " + what), failure();
            warnings.push_back(fmt::format("'{}' is not read", name));
            run.metrics->warn(fmt::format("step {} has no "
                                          "token", step));
            error = "'" + text + "' is unknown";
            error = other;
            warning = fmt::format("cannot lock '{}'", file);
            """), ["cannot write …: …", "'…' is not read",
                   "step … has no token", "'…' is unknown",
                   "cannot lock '…'"])

    def test_what_some_functions_return(self):
        self.assertEqual(cpp("""
            std::string Divergence::check(const StepReport &report) {
              if (first(report))
                return fmt::format("the loss of step {} is "
                                   "high", report.step);
              return "";
            }
            std::string other() { return fmt::format("{} of {}", a, b); }
            if (text = divergence.check(report); text != "")
              return fmt::format("a table of {}", a);
            std::string RenamedTensor::warning(const std::string &to) const {
              return fmt::format("'{}' is read", to);
            }
            """), ["the loss of step … is high", "'…' is read"])

    def test_raw_literals_and_quotes_in_literals(self):
        self.assertEqual(cpp('char c = \'"\'; auto r = R"(Status::invalid("a '
                             'b"))"; Status::invalid("say \\"{}\\" now", x);'),
                         ['say "…" now'])


class PythonTest(unittest.TestCase):
    def test_what_and_what_to_do(self):
        self.assertEqual(python('''
_ADVICE = "mark " "it"
def f():
    only = "only text"
    raise DataError(f"'{key!r}' is {size:.1f} long, {only}", _ADVICE, path)
    todo = "fix it"
    todo = "or not"
    raise DataError("no line", todo)
    raise DataError("no rows" + end, choose(a), path)
    raise argparse.ArgumentTypeError(f"expects a {kind}")
    _warn(f"{path}:1", f"rows cut: {n}")
    print(f"qlora-data: error: {path}: is {missing}", file=sys.stderr)
'''), ["'…' is … long, only text; mark it", "expects a …", "no line; …",
            "no rows…; …", "rows cut: …", "…: is …"])


class PageTest(unittest.TestCase):
    def errors_of(self, page):
        with tempfile.TemporaryDirectory() as root:
            os.mkdir(os.path.join(root, "docs"))
            path = os.path.join(root, page_check.PAGE)
            with open(path, "w", encoding="utf-8") as file:
                file.write(page)
            found = [messages.Message("no rows", "runtime/A.cpp", 7)]
            errors = page_check.compare(
                page_check.read_page(root), found)
            return [error for error in errors if "heading" not in error
                    and "no file with" not in error]

    def test_missing_and_stale(self):
        self.assertEqual(self.errors_of("- `no rows`\n\nWrite some.\n"), [])
        self.assertEqual(self.errors_of("- `no row`\n\nWrite some.\n"), [
            "docs/errors.md:1: stale: no row",
            "runtime/A.cpp:7: missing: no rows"])

    def test_each_once_and_with_a_remedy(self):
        self.assertEqual(
            self.errors_of("- `no rows`\n- `no rows`\n\n## Next\n\nText.\n"), [
                "docs/errors.md:2: no cause and remedy",
                "docs/errors.md:2: twice: no rows"])

    def test_page_has_all_messages_and_no_others(self):
        errors = page_check.compare(
            page_check.read_page(ROOT),
            list(messages.read_messages(ROOT)))
        self.assertEqual(errors, [], "\n" + "\n".join(errors))


if __name__ == "__main__":
    unittest.main()
