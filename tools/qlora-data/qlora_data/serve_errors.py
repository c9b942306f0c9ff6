# SPDX-License-Identifier: MIT
"""Errors that clients of `qlora serve` get, in the form of OpenAI's API."""

from __future__ import annotations

_TYPES = {401: "authentication_error", 404: "not_found_error",
          408: "timeout_error", 429: "rate_limit_error", 500: "server_error",
          503: "server_error"}


class Refusal(Exception):
    """Why a request gets no answer. `param`: the field that is wrong; `code`: a
    name for programs; `headers`: of the response."""

    def __init__(self, status: int, message: str, param: str | None = None,
                 code: str | None = None,
                 headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.message = status, message
        self.param, self.code = param, code
        self.headers = headers or {}

    def body(self) -> dict:
        return {"error": {
            "message": self.message, "param": self.param, "code": self.code,
            "type": _TYPES.get(self.status, "invalid_request_error")}}


def busy(message: str, code: str) -> Refusal:
    """Returns the error for a request that should be sent again later."""
    return Refusal(429, message, None, code, {"Retry-After": "1"})


def shown(value: object) -> str:
    """Returns a value of a request, shortened, for errors."""
    text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."
