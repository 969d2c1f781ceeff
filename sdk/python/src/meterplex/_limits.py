"""Limits: check, consume, reserve, commit, extend, release."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, TypedDict, cast

from ._calls import Row, call, is_refusal, path_of, success, waiting, with_query
from ._events import check_amount, check_feature, check_id, parse_time, plain_metadata, uuid7
from ._http import Http, NoAnswer
from ._pipeline import Settings
from .errors import InvalidEvent, MeterplexError, UnknownOutcome, error_of

DEFAULT_TTL = 60  # seconds of a hold, of the service
SETTLE_SECONDS = 5.0  # for the release of a hold whose outcome is not known


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
    if hold.used is None:
        raise InvalidEvent("amount_invalid", "the block did not say what it used: set used of the reservation, 0 for nothing")
    return check_amount(hold.used, 0)


def usage_id(reservation_id: str) -> str:
    """Return the eventId of a reservation's usage: the same for each attempt to commit it."""
    short = reservation_id if len(reservation_id) <= 249 else hashlib.sha256(reservation_id.encode()).hexdigest()[:32]
    return short + "-usage"


@dataclass
class _Answer:
    at: float
    row: Row
    checked: int = 0  # allowed from this answer since


class Known:
    """The last answer about each feature, for checks without an answer."""

    def __init__(self, max_stale: float) -> None:
        self.max_stale = max_stale
        self._guard = threading.RLock()
        self._answers: dict[str, _Answer] = {}

    def learn(self, feature: str, row: Row) -> None:
        """Keep an answer of the service."""
        with self._guard:
            self._answers[feature] = _Answer(time.monotonic(), row)

    def check(self, feature: str, amount: int) -> Check | None:
        """Return a check from the last answer; None: it does not tell."""
        with self._guard:
            last = self._answers.get(feature)
            if last is None or time.monotonic() - last.at > self.max_stale or _is_over(last.row.get("resetAt")):
                return None
            remaining = last.row.get("remaining")
            if not isinstance(remaining, int):
                return _check(last.row, "cache", bool(last.row.get("allowed")), None)
            if not _is_limited(last.row):
                return _check(last.row, "cache", bool(last.row.get("allowed")), remaining)
            if amount > remaining - last.checked:
                return None
            last.checked += amount
            return _check(last.row, "cache", True, remaining - last.checked)


def _is_over(reset: object) -> bool:
    """Report whether a period has ended, or may have: its end cannot be read."""
    try:
        return reset is not None and parse_time(reset) <= datetime.now(timezone.utc)
    except InvalidEvent:
        return True


def _is_limited(row: Row) -> bool:
    """Report whether an answer has a limit that denies: the HARD one of a QUOTA feature."""
    return (row.get("type", "QUOTA"), row.get("limitBehavior", "HARD")) == ("QUOTA", "HARD")


def _check(answer: Row, source: str, allowed: bool, remaining: int | None) -> Check:
    reason = "" if allowed else str(answer.get("reason") or "")
    return Check(allowed, source, remaining, reason, str(answer.get("asOfPosition") or ""), answer)


class Limits:
    """Amounts are ints from 1 to 9007199254740991, timeouts seconds. Refusals raise MeterplexError, e.g. QuotaExceeded.

    Without an answer until the timeout consume, reserve, commit, extend and release raise UnknownOutcome.
    """

    _http: Http
    _settings: Settings
    _attempt: float
    _check_timeout: float
    _allow: bool  # the policy without an answer
    _known: Known

    def check(self, feature: str, amount: int = 1, *, min_position: str | None = None, wait: int | None = None) -> Check:
        """Return whether an amount may be used, within the check timeout. A hint: between check and use others may use the rest.

        Without an answer: from the last answer of the feature if that is fresh and the amount fits; else by the policy.
        min_position: the answer includes the event at this position, for which the service waits up to `wait` seconds besides (30 at most), or
        the error is projection_behind.
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
        self._known.learn(feature, found)
        return _check(found, "service", found["allowed"], found.get("remaining"))

    def _without_answer(self, feature: str, amount: int, reason: str) -> Check:
        return self._known.check(feature, amount) or Check(self._allow, "policy", reason=reason)

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
        """Use an amount of a hold, and release the rest. overage="record": also more than is held. event_id: <reservation_id>-usage."""
        event_id = check_id("eventId", usage_id(reservation_id) if event_id is None else event_id)
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

        While the block runs, a thread extends the hold each third of ttl_seconds (60).
        """
        hold = self._hold(feature, amount, reservation_id, ttl_seconds, timeout)
        made, ended = hold.held["reservationId"], threading.Event()
        try:
            threading.Thread(target=self._extend, args=(feature, made, ttl_seconds or DEFAULT_TTL, ended), name="meterplex-hold", daemon=True).start()
            yield hold
            used = check_used(hold)
        except BaseException:
            self._let_go(feature, made, timeout)
            raise
        finally:
            ended.set()
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

    def _hold(self, feature: str, amount: int, reservation_id: str | None, ttl_seconds: int | None, timeout: float) -> Reservation:
        """Reserve. Without an answer release what may be held."""
        reservation_id = uuid7() if reservation_id is None else reservation_id
        try:
            return Reservation(self.reserve(feature, amount, reservation_id=reservation_id, ttl_seconds=ttl_seconds, timeout=timeout))
        except UnknownOutcome:
            self._let_go(feature, reservation_id, SETTLE_SECONDS)
            raise

    def _let_go(self, feature: str, reservation_id: str, timeout: float) -> None:
        """Release after an error, which an error of the release must not replace."""
        try:
            self.release(feature, reservation_id, timeout=timeout)
        except MeterplexError as e:
            if e.code not in ("reservation_not_found", "reservation_ended"):
                self._settings.report(e.code, f"the reservation {reservation_id} is not released, and ends by itself: {e.detail}")

    def _extend(self, feature: str, reservation_id: str, ttl: int, ended: threading.Event) -> None:
        """Extend a hold until its block ends."""
        while not ended.wait(ttl / 3):
            if not self._extended(feature, reservation_id, ttl):
                return

    def _extended(self, feature: str, reservation_id: str, ttl: int) -> bool:
        """Extend a hold. False: it is refused for good; the commit says why."""
        try:
            self.extend(feature, reservation_id, ttl, timeout=ttl / 3)
        except UnknownOutcome:
            pass
        except MeterplexError:
            return False
        return True

    def _reservation(self, feature: str, reservation_id: str, *action: str) -> str:
        return path_of("entitlements", check_feature(feature), "reservations", check_id("reservationId", reservation_id), *action)

    def _decide(self, method: str, path: str, body: Mapping[str, Any] | None, id: tuple[str, str], timeout: float) -> Row:
        member, value = id
        return call(self._http, method, path, lambda row: row.get(member) == value, body=body, timeout=timeout, attempt=self._attempt, id=value)
