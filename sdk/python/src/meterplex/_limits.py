"""Limits: check, consume, reserve, commit, extend, release."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypedDict, cast

from ._calls import Row, call, is_refusal, path_of, success, waiting, with_query
from ._events import check_amount, check_feature, check_id, parse_time, plain_metadata, uuid7
from ._http import Http, NoAnswer
from .errors import MeterplexError, error_of


class Account(TypedDict):
    """The amounts of a feature in a period, after a call. None: no limit, or no account (METERED)."""

    feature: str
    periodKey: str
    limit: int | None
    used: int | None
    held: int | None
    remaining: int | None
    resetAt: str | None
    position: str


class Consumed(Account):
    """A consumed amount."""

    allowed: bool
    eventId: str
    amount: int


class _Ended(TypedDict, total=False):
    released: int


class Held(Account, _Ended):
    """A reservation. released: only if it has ended."""

    reservationId: str
    amount: int
    state: str
    expiresAt: str


class Committed(Account):
    """A reservation that is committed."""

    reservationId: str
    state: str
    eventId: str
    amount: int
    released: int


@dataclass(frozen=True)
class Check:
    """Whether an amount may be used: a hint. source is "service", "cache" or "policy"."""

    allowed: bool
    source: str
    remaining: int | None = None  # None: no limit, or not known
    reason: str = ""
    as_of_position: str = ""
    answer: Row = field(default_factory=dict)  #: all members of the service's answer


@dataclass
class Reservation:
    """A held amount. Set used before the block ends; 0 releases the whole amount."""

    held: Held
    used: int | None = None
    committed: Committed | None = None  # after the block


def check_used(hold: Reservation) -> int:
    """Return the amount that a block used; InvalidEvent if it did not say."""
    return check_amount(hold.used, 0)


@dataclass
class _Known:
    at: float
    answer: Row
    checked: int = 0  # allowed from this answer since

    def allows(self, amount: int, max_stale: float) -> Check | None:
        """Return a check from the cached answer; None: the answer does not tell."""
        reset, remaining = self.answer.get("resetAt"), self.answer.get("remaining")
        if time.monotonic() - self.at > max_stale or reset is not None and parse_time(reset) <= datetime.now(timezone.utc):
            return None
        if isinstance(remaining, int):
            if amount > remaining - self.checked:
                return None
            self.checked += amount
            return _check(self.answer, "cache", True, remaining - self.checked)
        return _check(self.answer, "cache", bool(self.answer.get("allowed")), None)


def _check(answer: Row, source: str, allowed: bool, remaining: int | None) -> Check:
    reason = "" if allowed else str(answer.get("reason") or "")
    return Check(allowed, source, remaining, reason, str(answer.get("asOfPosition") or ""), answer)


class Limits:
    """Amounts are ints from 1 to 9007199254740991, timeouts seconds. Refusals raise MeterplexError, e.g. QuotaExceeded.

    Without an answer until the timeout consume, reserve, commit, extend and release raise UnknownOutcome.
    """

    _http: Http
    _attempt: float
    _check_timeout: float
    _max_stale: float
    _allow: bool  # the policy without an answer
    _known: dict[str, _Known]

    def check(self, feature: str, amount: int = 1, *, min_position: str | None = None, wait: int | None = None) -> Check:
        """Return whether an amount may be used, within the check timeout. A hint: between check and use others may use the rest.

        Without an answer: from the last answer of the feature if that is fresh and the amount fits; else by the policy.
        """
        check_amount(amount, 0)
        path = with_query(path_of("entitlements", check_feature(feature), "check"), {"amount": amount, "minPosition": min_position})
        try:
            answer = self._http.request("GET", path, None, waiting(wait), self._check_timeout + (wait or 0))
        except NoAnswer as e:
            return self._without_answer(feature, amount, str(e))
        found = success(answer, lambda row: isinstance(row.get("allowed"), bool))
        if found is None:
            if is_refusal(answer):
                raise error_of(answer.status, answer.problem() or {})
            return self._without_answer(feature, amount, f"status {answer.status}")
        self._known[feature] = _Known(time.monotonic(), found)
        return _check(found, "service", found["allowed"], found.get("remaining"))

    def _without_answer(self, feature: str, amount: int, reason: str) -> Check:
        known = self._known.get(feature)
        found = known.allows(amount, self._max_stale) if known else None
        return found or Check(self._allow, "policy", reason=reason)

    def consume(
        self, feature: str, amount: int, *, event_id: str | None = None, metadata: Mapping[str, Any] | None = None, timeout: float = 30.0
    ) -> Consumed:
        """Use an amount if the limit allows it, and record it. event_id: the same id counts once (default: a new one)."""
        event_id = check_id("eventId", uuid7() if event_id is None else event_id)
        body = {"eventId": event_id, "amount": check_amount(amount), "metadata": plain_metadata(metadata)}
        return cast(Consumed, self._decide("POST", path_of("entitlements", check_feature(feature), "consume"), body, ("eventId", event_id), timeout))

    def reserve(self, feature: str, amount: int, *, reservation_id: str | None = None, ttl_seconds: int | None = None, timeout: float = 30.0) -> Held:
        """Hold an amount for ttl_seconds (60), until it is committed or released. reservation_ended: the id was used, and holds nothing any more."""
        reservation_id = check_id("reservationId", uuid7() if reservation_id is None else reservation_id)
        body = {"reservationId": reservation_id, "amount": check_amount(amount), "ttlSeconds": ttl_seconds}
        held = self._decide("POST", path_of("entitlements", check_feature(feature), "reservations"), body, ("reservationId", reservation_id), timeout)
        if held.get("state") != "HELD":
            detail = f"the reservation {reservation_id} is {held.get('state')} and holds nothing; hold the amount under another id"
            raise MeterplexError("reservation_ended", detail, 200, held)
        return cast(Held, held)

    def commit(
        self, feature: str, reservation_id: str, amount: int, *, event_id: str | None = None, overage: str | None = None, timeout: float = 30.0
    ) -> Committed:
        """Use an amount of a hold, and release the rest. overage="record": also more than is held. event_id: reservation_id-usage."""
        event_id = check_id("eventId", f"{reservation_id[:249]}-usage" if event_id is None else event_id)
        body = {"eventId": event_id, "amount": check_amount(amount), "overage": overage}
        return cast(Committed, self._decide("POST", self._reservation(feature, reservation_id, "commit"), body, ("reservationId", reservation_id), timeout))

    def extend(self, feature: str, reservation_id: str, ttl_seconds: int, *, timeout: float = 30.0) -> Held:
        """Hold the amount for ttl_seconds from now, or as long as before if that is longer."""
        body = {"ttlSeconds": ttl_seconds}
        return cast(Held, self._decide("POST", self._reservation(feature, reservation_id, "extend"), body, ("reservationId", reservation_id), timeout))

    def release(self, feature: str, reservation_id: str, *, timeout: float = 30.0) -> Held:
        """End a hold without usage."""
        return cast(Held, self._decide("DELETE", self._reservation(feature, reservation_id), None, ("reservationId", reservation_id), timeout))

    @contextmanager
    def reservation(
        self, feature: str, amount: int, *, reservation_id: str | None = None, ttl_seconds: int | None = None, timeout: float = 30.0
    ) -> Iterator[Reservation]:
        """Hold an amount during a block, then commit what it used, also above the hold; release if it fails or used nothing.

            with client.reservation("tokens", 2000) as hold:
                hold.used = answer_the_question()
        """
        hold = Reservation(self.reserve(feature, amount, reservation_id=reservation_id, ttl_seconds=ttl_seconds, timeout=timeout))
        made = hold.held["reservationId"]
        try:
            yield hold
            used = check_used(hold)
        except BaseException:
            self.release(feature, made, timeout=timeout)
            raise
        if used:
            hold.committed = self.commit(feature, made, used, overage="record", timeout=timeout)
        else:
            self.release(feature, made, timeout=timeout)

    def with_reservation(
        self, feature: str, amount: int, fn: Callable[[], int], *, reservation_id: str | None = None, ttl_seconds: int | None = None, timeout: float = 30.0
    ) -> Committed | None:
        """Hold an amount, call fn, and commit the amount that it returns (None for 0); release if it fails."""
        with self.reservation(feature, amount, reservation_id=reservation_id, ttl_seconds=ttl_seconds, timeout=timeout) as hold:
            hold.used = fn()
        return hold.committed

    def _reservation(self, feature: str, reservation_id: str, *action: str) -> str:
        return path_of("entitlements", check_feature(feature), "reservations", check_id("reservationId", reservation_id), *action)

    def _decide(self, method: str, path: str, body: Mapping[str, Any] | None, id: tuple[str, str], timeout: float) -> Row:
        member, value = id
        return call(self._http, method, path, lambda row: row.get(member) == value, body=body, timeout=timeout, attempt=self._attempt, id=value)
