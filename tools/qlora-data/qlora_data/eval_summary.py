# SPDX-License-Identifier: MIT
"""Metrics of an evaluation: a table, JSON, and a file."""

from __future__ import annotations

import json
import math

from .errors import DataError, unwritable
from .metrics import SCORES, Summary
from .user_metrics import UserMetrics

_SHARES = (*SCORES, "stopped")


class _Variant:
    """Results with one adapter, or with none."""

    def __init__(self, own: UserMetrics | None):
        self.summary = Summary(own)
        self.losses: list[float] = []  # sums over the tokens of a row
        self.tokens = self.broken = 0

    def add(self, result: dict) -> None:
        if "error" in result:
            self.broken += 1
            return
        self.losses.append(result["loss"] * result["tokens"])
        self.tokens += result["tokens"]
        if "prediction" in result:
            self.summary.add(result)

    def metrics(self) -> dict:
        loss = math.fsum(self.losses) / self.tokens
        metrics = {"rows": len(self.losses)}
        if self.summary.rows:
            metrics |= self.summary.result()
        # A loss of more would have an infinite perplexity, which JSON lacks.
        metrics |= {"loss": loss, "perplexity": math.exp(min(loss, 700)),
                    "tokens": self.tokens}
        return metrics | ({"broken_rows": self.broken} if self.broken else {})


class EvalSummary:
    """Collects results. `variants`: values of "adapter"; "" if there is none.
    """

    def __init__(self, variants: list[str | None], own: UserMetrics | None):
        self._variants = {name: _Variant(own) for name in variants}
        self._first_error = ""

    def add(self, result: dict) -> None:
        self._first_error = self._first_error or result.get("error", "")
        self._variants[result.get("adapter", "")].add(result)

    @property
    def _counts(self) -> tuple[int, int]:
        """Numbers of results, and of those with an error."""
        broken = sum(one.broken for one in self._variants.values())
        return broken + sum(len(one.losses)
                            for one in self._variants.values()), broken

    def check(self, path: str) -> None:
        if not self._counts[0]:
            raise DataError("has no row with a token in the loss", "write "
                            "rows with answers, as for training", path)

    def check_broken(self, path: str) -> None:
        total, broken = self._counts
        if broken:
            raise DataError(f"{broken} of {total} rows have no result; the "
                            f"first: {self._first_error}", place=path)

    def metrics(self) -> list[dict]:
        """Returns the metrics of each variant with results."""
        return [({} if name == "" else {"adapter": name}) | one.metrics()
                for name, one in self._variants.items() if one.tokens]


def write_metrics(metrics: list[dict], output: str | None,
                  as_json: bool) -> None:
    """Prints the metrics, and writes them next to the output. JSON is an
    object, or a list of objects for several variants."""
    if not metrics:
        return
    text = json.dumps(metrics if "adapter" in metrics[0] else metrics[0],
                      indent=1)
    print(text if as_json else _table(metrics))
    if not output:
        return
    path = output.removesuffix(".jsonl") + ".metrics.json"
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        raise unwritable(path, error) from None


def _table(metrics: list[dict]) -> str:
    """Returns a line per metric, and a column per variant."""
    names = list(dict.fromkeys(name for one in metrics for name in one
                               if name != "adapter"))
    rows = [[name, *(_shown(name, one.get(name)) for one in metrics)]
            for name in names]
    if "adapter" in metrics[0]:
        rows.insert(0, ["", *(one["adapter"] or "base alone"
                              for one in metrics)])
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(
        [cells[0].ljust(widths[0]), *(cell.rjust(width) for cell, width
                                      in zip(cells[1:], widths[1:]))])
        for cells in rows)


def _shown(name: str, value: float | int | None) -> str:
    if value is None:
        return "-"
    if name in _SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"
