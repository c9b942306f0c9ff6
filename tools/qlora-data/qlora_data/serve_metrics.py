# SPDX-License-Identifier: MIT
"""Counters of `qlora serve`, in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60,
            120, 300)


class Histogram:
    def __init__(self):
        self._counts = [0] * (len(_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(_SECONDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str):
        total = 0
        for bound, count in zip((*_SECONDS, "+Inf"), self._counts):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class Metrics:
    """Names of metrics begin with qlora_."""

    def __init__(self):
        self.requests: Counter[tuple[str, int]] = Counter()  # (path, status)
        self.prompt_tokens = self.generated_tokens = 0
        self.first_token, self.latency = Histogram(), Histogram()

    def text(self, gauges: dict[str, int]) -> str:
        """`gauges`: current values, by the text that describes them."""
        lines: list[str] = []

        def add(name: str, kind: str, what: str, values) -> None:
            lines.extend([f"# HELP qlora_{name} {what}",
                          f"# TYPE qlora_{name} {kind}", *values])

        add("requests_total", "counter", "Ended requests. Status 499: the "
            "client disconnected.", [
                f'qlora_requests_total{{path="{path}",status="{status}"}} '
                f"{count}"
                for (path, status), count in sorted(self.requests.items())])
        for name, value in gauges.items():
            add(name, "gauge", f"Current number of {name.replace('_', ' ')}.",
                [f"qlora_{name} {value}"])
        for name in ("prompt_tokens", "generated_tokens"):
            add(name + "_total", "counter",
                f"Number of {name.replace('_', ' ')} since the start.",
                [f"qlora_{name}_total {getattr(self, name)}"])
        for name, what, histogram in (
                ("time_to_first_token_seconds", "From a request to the first "
                 "token of its answer.", self.first_token),
                ("request_duration_seconds", "From a request to the end of its "
                 "answer.", self.latency)):
            add(name, "histogram", what, histogram.lines("qlora_" + name))
        return "\n".join(lines) + "\n"
