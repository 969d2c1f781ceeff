"""Reads of what the service holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._calls import Row, Rows, call, path_of, waiting, with_query
from ._http import Http


class Reads:
    """Lists are iterated page by page; limit is the size of a page.

    min_position: a position of an answer or a verdict; the read is true at it, or the error is projection_behind
    wait: seconds for which the service waits for min_position (30 at most); without it there is no wait
    timeout: seconds until there is an answer, besides wait
    """

    _http: Http
    _attempt: float

    def aggregates(
        self, *, feature: str | None = None, period: str | None = None, as_of: str | None = None, as_of_position: str | None = None,
        min_position: str | None = None, wait: int | None = None, limit: int | None = None, timeout: float = 30.0,
    ) -> Rows:
        """Return the billing figures, newest period first. period: "2026-05", "2026" or "lifetime"; as_of: as they were known at a time."""
        query = {"feature": feature, "period": period, "asOf": as_of, "asOfPosition": as_of_position, "minPosition": min_position, "limit": limit}
        return self._rows(path_of("usage", "aggregates"), query, wait, timeout)

    def usage(
        self, feature: str, start: str, end: str, *, granularity: str | None = None, group_by: list[str] | None = None,
        min_position: str | None = None, wait: int | None = None, limit: int | None = None, timeout: float = 30.0,
    ) -> Rows:
        """Return the usage of a feature by "hour", "day" (default) or "month", from start on and before end (RFC 3339), with group_by by ["metadata.<key>"]."""
        query = {"feature": feature, "from": start, "to": end, "granularity": granularity, "groupBy": group_by, "minPosition": min_position, "limit": limit}
        return self._rows(path_of("usage"), query, wait, timeout)

    def events(
        self, *, feature: str | None = None, status: str | None = None, start: str | None = None, end: str | None = None,
        min_position: str | None = None, wait: int | None = None, limit: int | None = None, timeout: float = 30.0,
    ) -> Rows:
        """Return the usage events, newest first, by their own time: from start on and before end (RFC 3339)."""
        query = {"feature": feature, "status": status, "from": start, "to": end, "minPosition": min_position, "limit": limit}
        return self._rows(path_of("usage", "events"), query, wait, timeout)

    def receipt(self, event_id: str, *, min_position: str | None = None, wait: int | None = None, timeout: float = 30.0) -> Row:
        """Return what happened to an event, each step with its time."""
        path = with_query(path_of("usage", "events", event_id), {"minPosition": min_position})
        return self._read(path, lambda row: row.get("eventId") == event_id, wait, timeout)

    def entitlements(self, *, min_position: str | None = None, wait: int | None = None, limit: int | None = None, timeout: float = 30.0) -> Rows:
        """Return a check of each feature of the subscription."""
        return self._rows(path_of("entitlements"), {"minPosition": min_position, "limit": limit}, wait, timeout)

    def reservations(self, feature: str, *, state: str | None = None, limit: int | None = None, timeout: float = 30.0) -> Rows:
        """Return the reservations of a feature in the order of their ids. state: HELD, COMMITTED, RELEASED or EXPIRED."""
        return self._rows(path_of("entitlements", feature, "reservations"), {"state": state, "limit": limit}, None, timeout)

    def _rows(self, path: str, query: dict[str, Any], wait: int | None, timeout: float) -> Rows:
        def read(cursor: str | None) -> tuple[list[Row], str | None]:
            page = with_query(path, {**query, "cursor": cursor})
            found = self._read(page, lambda row: isinstance(row.get("data"), list), wait, timeout)
            return found["data"], found.get("nextCursor")

        return Rows(read)

    def _read(self, path: str, is_about: Callable[[Row], bool], wait: int | None, timeout: float) -> Row:
        more = wait or 0
        return call(self._http, "GET", path, is_about, headers=waiting(wait), timeout=timeout + more, attempt=self._attempt + more)
