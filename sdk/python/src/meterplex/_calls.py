"""Calls that a caller waits for: they are repeated until a deadline, and their refusals are errors."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from ._http import Answer, Http, NoAnswer
from .errors import MeterplexError, UnknownOutcome, error_of

FIRST_WAIT = 0.2  # seconds, doubled after each attempt
LONGEST_WAIT = 5.0

#: A row of a list, or an answer, with the names of the API. Amounts are exact.
Row = dict[str, Any]


def path_of(*segments: str) -> str:
    """Return the path of a route."""
    return "/api/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def with_query(path: str, query: Mapping[str, object]) -> str:
    """Return a path with the parameters that are set."""
    given = {name: value for name, value in query.items() if value is not None}
    return path + "?" + urlencode(given, doseq=True) if given else path


def waiting(seconds: int | None) -> dict[str, str]:
    """Return the header of a read that waits until it is true at min_position."""
    return {"Prefer": f"wait={seconds}"} if seconds else {}


def success(answer: Answer, is_about: Callable[[Row], bool]) -> Row | None:
    """Return the service's answer if it is about the request; None: it is something else's."""
    found = answer.json() if 200 <= answer.status < 300 and answer.media_type == "application/json" else None
    return found if isinstance(found, dict) and is_about(found) else None


def is_refusal(answer: Answer) -> bool:
    """Report whether the service refuses the request for good: projection_behind, too, because the service has waited as the caller asked."""
    problem = answer.problem()
    return problem is not None and (answer.status < 500 and answer.status not in (408, 429) or problem["code"] == "projection_behind")


def call(
    http: Http,
    method: str,
    path: str,
    is_about: Callable[[Row], bool],
    *,
    body: Mapping[str, object] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout: float,
    attempt: float = 30.0,
    id: str | None = None,
) -> Row:
    """Send a request until it is answered, for at most timeout seconds. is_about tells the service's answer from a proxy's.

    A refusal raises MeterplexError at once. After the timeout a call with an id raises UnknownOutcome, a read MeterplexError.
    """
    deadline, last, reason, attempts = time.monotonic() + timeout, None, "", 0
    content = None if body is None else json.dumps({k: v for k, v in body.items() if v is not None}).encode()
    sent = {**(headers or {}), **({} if content is None else {"Content-Type": "application/json"})}
    while True:
        attempts, least = attempts + 1, 0.0
        try:
            answer = http.request(method, path, content, sent, min(attempt, max(deadline - time.monotonic(), 0.001)))
            found = success(answer, is_about)
            if found is not None:
                return found
            last, least = answer.problem(), answer.retry_after()
            if last is not None and is_refusal(answer):
                raise error_of(answer.status, last)
            reason = str(last["code"]) if last else f"status {answer.status}, not of the service"
        except NoAnswer as e:
            reason = str(e)
        pause = max(least, random.uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(attempts, 30))))
        if time.monotonic() + pause >= deadline:
            break
        time.sleep(pause)
    detail = f"no answer to {method} {path.partition('?')[0]} in {timeout:g} s and {attempts} attempts: {reason}"
    if id is not None:
        raise UnknownOutcome("unknown_outcome", f"{detail}; it may have been executed: repeat it with the same id, {id}", id=id)
    raise error_of(int(last.get("status") or 0), last) if last else MeterplexError("unavailable", detail)


class Rows:
    """The rows of a list, page by page. It can be iterated again, and then reads again."""

    def __init__(self, read: Callable[[str | None], tuple[list[Row], str | None]]) -> None:
        #: read(cursor) returns a page and the cursor of the next one; None: no more.
        self.read = read

    def __iter__(self) -> Iterator[Row]:
        cursor = None
        while True:
            rows, cursor = self.read(cursor)
            yield from rows
            if cursor is None:
                return
