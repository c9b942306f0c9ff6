# SPDX-License-Identifier: MIT
"""`qlora-data chat` on a pseudo-terminal."""

import os
import pty
import re
import select
import signal
import time
import unittest

from chats import ChatTest, chatml

SECONDS = 20  # that a test waits for a text
# Codes of readline, such as that of bracketed paste.
CODES = re.compile(r"\x1b\[\?\d+[hl]")
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, command, **environment):
        self.text, self._seen = "", 0
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.environ.update({"TERM": "xterm", "NO_COLOR": "", **environment})
            os.execv(command[0], command)

    def _more(self, seconds):
        if not select.select([self._file], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._file, 1 << 16)
        except OSError:  # the program has ended
            data = b""
        self.text += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)

    def wait(self, text):
        """Waits for a text after those that were waited for. Returns what is
        before it."""
        end = time.monotonic() + SECONDS
        while (at := self.text.find(text, self._seen)) < 0:
            if time.monotonic() > end or not self._more(1) \
                    and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG
                                  | os.WNOWAIT):
                raise AssertionError(f"no {text!r} in "
                                     f"{self.text[self._seen:]!r}")
        before = CODES.sub("", self.text[self._seen:at])
        self._seen = at + len(text)
        return before

    def type(self, text):
        os.write(self._file, text.encode())

    def interrupt(self):
        """Presses Ctrl-C. Waits before, because Python notices a signal at the
        prompt only if it is already waiting for a key."""
        time.sleep(0.3)
        self.type("\x03")

    def end(self):
        """Returns the exit code. The rest of the text is in self.text."""
        while self._more(SECONDS):
            pass
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class TerminalTest(ChatTest):
    def start(self, *flags, **environment):
        terminal = Terminal(self.command(*flags), **environment)
        self.addCleanup(self._kill, terminal.pid)
        terminal.wait("> ")
        return terminal

    def _kill(self, pid):
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass

    def test_a_conversation(self):
        self.answers("hello world<|im_end|>", "the<|im_end|>")
        screen = self.start()
        self.assertIn("/help lists commands", screen.text)
        screen.type("say\n")
        screen.wait("hello world\n" + DIM + "3 tokens, ")
        self.assertRegex(screen.wait("> "),
                         r"^[\d.]+ tokens/s" + re.escape(PLAIN))
        screen.type("user\n")
        screen.wait("the\n" + DIM + "2 tokens")
        screen.wait("> ")
        screen.type("/undo\n")
        screen.wait("removed: user")
        screen.type("/sett\n")
        screen.wait("error: '/sett' is not a command")
        screen.wait("> ")
        screen.type("\x04")
        self.assertEqual(screen.end(), 0)
        self.assertEqual(self.prompts()[1], chatml("say", "hello world",
                                                   "user"))

    def test_lines_are_edited(self):
        self.answers("hello")
        screen = self.start()
        screen.type("sai\x7fy\n")
        screen.wait("hello")
        screen.wait("> ")
        screen.type("\x1b[A\n")  # the line before
        screen.wait("hello")
        self.assertEqual(self.prompts()[1], chatml("say", "hello", "say"))

    def test_several_lines(self):
        self.answers("hello")
        screen = self.start()
        screen.type('"""a\n')
        screen.wait("... ")
        screen.type('b"""\n')
        screen.wait("hello")
        screen.wait("> ")
        # A terminal pastes like this.
        screen.type("\x1b[200~c\nd\x1b[201~\n")
        screen.wait("hello")
        self.assertEqual(self.prompts()[1], chatml("a\nb", "hello", "c\nd"))

    def test_ctrl_c_keeps_the_partial_answer(self):
        self.answers("hello world the user say " * 9, "the<|im_end|>")
        self.script["delay"] = 0.3
        screen = self.start()
        screen.type("say\n")
        screen.wait("hello world")
        screen.type("\x03")
        self.assertIn("tokens", screen.wait(", interrupted"))
        screen.wait("> ")
        screen.type("user\n")
        screen.wait("the\n")
        self.assertEqual(self.requests()[1], {"cancel": 0})
        screen.type("/save " + self.path("saved.jsonl") + "\n")
        screen.wait("1 row added")
        messages = self.saved()[0]["messages"]
        partial = messages[1]["content"]
        self.assertTrue("hello world the user say".startswith(partial))
        self.assertIn("hello world", partial)
        self.assertEqual(messages[2]["content"], "user")
        self.assertIn(partial, self.prompts()[1])
        screen.type("/exit\n")
        self.assertEqual(screen.end(), 0)

    def test_ctrl_c_before_the_first_token(self):
        self.answers("hello", "world<|im_end|>")
        self.script["delay"] = 0.5
        screen = self.start()
        screen.type("say\n")
        screen.wait("say\n")
        while not os.path.exists(self.script["log"]):
            time.sleep(0.01)
        screen.type("\x03")
        screen.wait("no answer, so the message is removed")
        screen.wait("> ")
        screen.type("the\n")
        screen.wait("world")
        self.assertEqual(self.prompts()[1], chatml("the"))

    def test_ctrl_c_at_the_prompt(self):
        self.answers("hello")
        screen = self.start()
        screen.type("sa")
        screen.wait("sa")
        screen.interrupt()
        screen.wait("Ctrl-C again, or Ctrl-D, ends the chat")
        screen.wait("> ")
        screen.type("the\n")
        screen.wait("hello")
        screen.wait("> ")
        self.assertEqual(self.prompts(), [chatml("the")])
        screen.type('"""a\n')
        screen.wait("... ")
        screen.interrupt()
        screen.wait("Ctrl-C again")
        screen.wait("> ")
        screen.interrupt()
        self.assertEqual(screen.end(), 0)

    def test_reasoning_is_dimmed(self):
        answer = "<think>\nthe user\n</think>\n\nworld<|im_end|>"
        self.answers(answer)
        screen = self.start()
        screen.type("say\n")
        screen.wait(DIM + "the user" + PLAIN + "\n\nworld\n")
        screen = self.start(NO_COLOR="1")
        screen.type("say\n")
        screen.wait("<think>\nthe user\n</think>\n\nworld\n2")
        self.assertNotIn(DIM, screen.text)

    def test_interrupted_reasoning(self):
        self.answers("<think>\n" + "hello world the user say " * 9)
        self.script["delay"] = 0.1
        screen = self.start()
        screen.type("say\n")
        screen.wait(DIM + "hello world")
        screen.type("\x03")
        screen.wait(PLAIN + "\n" + DIM)
        screen.wait("interrupted")

    def test_control_characters(self):
        self.answers("hello\x1b]0;world\x07")
        screen = self.start()
        screen.type("say\n")
        screen.wait("hello^[]0;world^G\n")

    def test_errors_do_not_end_it(self):
        self.answers("hello")
        self.script["refuses"] = 0
        screen = self.start()
        screen.type("say\n")
        screen.wait("error: refused\n")
        screen.wait("> ")
        screen.type("the\n")
        screen.wait("hello")
        self.assertEqual(self.prompts()[1], chatml("the"))
        screen.wait("> ")
        screen.type("\x04")
        self.assertEqual(screen.end(), 0)

    def test_a_full_cache(self):
        self.answers("hello world " * 30)
        self.script["capacity"] = len(self.tokens(chatml("say"))) + 5
        screen = self.start()
        screen.type("say\n")
        screen.wait("note: the answer ends here, because the conversation")
        screen.wait("no space")
        screen.type("the\n")
        screen.wait("error: the conversation has ")
        screen.wait("> ")
        screen.type("/save " + self.path("saved.jsonl") + "\n")
        screen.wait("1 row added")
        self.assertEqual(len(self.saved()[0]["messages"]), 2)

    def test_a_retry_without_variation(self):
        self.answers("hello")
        screen = self.start()
        screen.type("say\n")
        screen.wait("hello")
        screen.type("/retry\n")
        screen.wait("temperature is 0, so the same settings give the same")
        screen.wait("hello")


if __name__ == "__main__":
    unittest.main()
