"""Reads of what the service holds."""

from __future__ import annotations

from typing import Any

from ._calls import Row, Rows, call, path_of, waiting, with_query
from ._http import Http


class Reads:
    """Lists are iterated page by page; limit is the size of a page.

    min_position: a position of an answer; the read is true at it, and waits for that for at most `wait` seconds (30 at most).
    """

    _http: Http

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
        return call(self._http, "GET", path, lambda row: row.get("eventId") == event_id, headers=waiting(wait), timeout=timeout, attempt=30.0 + (wait or 0))

    def entitlements(self, *, min_position: str | None = None, wait: int | None = None, limit: int | None = None, timeout: float = 30.0) -> Rows:
        """Return a check of each feature of the subscription."""
        return self._rows(path_of("entitlements"), {"minPosition": min_position, "limit": limit}, wait, timeout)

    def reservations(self, feature: str, *, state: str | None = None, limit: int | None = None, timeout: float = 30.0) -> Rows:
        """Return the reservations of a feature in the order of their ids. state: HELD, COMMITTED, RELEASED or EXPIRED."""
        return self._rows(path_of("entitlements", feature, "reservations"), {"state": state, "limit": limit}, None, timeout)

    def _rows(self, path: str, query: dict[str, Any], wait: int | None, timeout: float) -> Rows:
        def read(cursor: str | None) -> tuple[list[Row], str | None]:
            page = with_query(path, {**query, "cursor": cursor})
            found = call(self._http, "GET", page, lambda row: isinstance(row.get("data"), list), headers=waiting(wait), timeout=timeout, attempt=30.0 + (wait or 0))
            return found["data"], found.get("nextCursor")

        return Rows(read)
