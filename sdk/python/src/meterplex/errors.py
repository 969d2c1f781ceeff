"""Errors that the functions of the client raise."""

from __future__ import annotations

from typing import Any

from ._codes import REMEDIES


class MeterplexError(Exception):
    """A call that failed.

    code is that of the service (https://github.com/meterplex/meterplex/blob/main/docs/reference/errors.md), or one of the client:
    "invalid_argument", "closed", "queue_full", "queue_failed", "unavailable", "unknown_outcome", "callback_failed".
    """

    def __init__(self, code: str, detail: str = "", status: int | None = None, problem: dict[str, Any] | None = None) -> None:
        super().__init__(code, detail, status, problem)
        self.code = code
        self.detail = detail
        #: The HTTP status; None if the service did not answer, or was not asked.
        self.status = status
        #: All members of the service's problem, e.g. "remaining" of a quota that is exceeded.
        self.problem: dict[str, Any] = problem or {}

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"

    @property
    def trace_id(self) -> str:
        """Id of the request in the service's logs, or ""."""
        return str(self.problem.get("traceId") or "")

    @property
    def errors(self) -> list[dict[str, Any]]:
        """The members at fault: {"pointer", "code", "detail"}."""
        found = self.problem.get("errors")
        return found if isinstance(found, list) else []

    @property
    def remedy(self) -> str:
        """How to correct the request, or ""."""
        return REMEDIES.get(self.code, "")


class InvalidEvent(MeterplexError, ValueError):
    """The event is invalid and was not stored. code is the service's, e.g. "amount_invalid"."""


class QueueFull(MeterplexError):
    """The queue has no space, and had none until the deadline. The event was not stored."""


class QuotaExceeded(MeterplexError):
    """The limit does not allow the amount; nothing was recorded or held."""

    @property
    def remaining(self) -> int | None:
        """The amount that the limit still allows."""
        value = self.problem.get("remaining")
        return value if isinstance(value, int) else None

    @property
    def reset_at(self) -> str | None:
        """When the limit is reset (RFC 3339); None: never."""
        value = self.problem.get("resetAt")
        return value if isinstance(value, str) else None


class UnknownOutcome(MeterplexError):
    """No answer until the deadline: the request may have been executed.

    Repeat the call with the same id to learn its outcome; it counts once.
    """

    def __init__(self, code: str, detail: str = "", status: int | None = None, problem: dict[str, Any] | None = None, id: str = "") -> None:
        super().__init__(code, detail, status, problem)
        self.args = (code, detail, status, problem, id)
        #: The eventId or reservationId of the call.
        self.id = id


def error_of(status: int, problem: dict[str, Any]) -> MeterplexError:
    """Return the error for a problem of the service."""
    code = str(problem.get("code") or f"http_{status}")
    kind = QuotaExceeded if code == "quota_exceeded" else MeterplexError
    return kind(code, str(problem.get("detail") or problem.get("title") or ""), status, problem)
