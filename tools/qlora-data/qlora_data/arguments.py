# SPDX-License-Identifier: MIT
"""Parses command lines of qlora-data: mistakes become DataError."""

from __future__ import annotations

import argparse

from .errors import DataError


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise DataError(message, f"see {self.prog} --help")


def boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"expects true or false, got '{text}'")
    return text == "true"


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expects a number above 0, got "
                                         f"'{text}'")
    return int(text)
