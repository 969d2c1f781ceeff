"""Limits and reads: ids are kept over retries, refusals are errors, figures are exact."""

from __future__ import annotations

import json
import threading
import time
from unittest import mock
from urllib.parse import parse_qs, urlsplit

from meterplex import InvalidEvent, MeterplexError, QuotaExceeded, UnknownOutcome, _calls, _limits
from meterplex._events import MAX_AMOUNT

from .base import ClientTest
from .fake import about, answer, problem

ACCOUNT = {"feature": "tokens", "periodKey": "2026-11", "limit": 2**53 - 1, "used": 3**40, "held": 0, "remaining": 7, "resetAt": None, "position": "1-2"}
HELD = {**ACCOUNT, "reservationId": "r1", "amount": 5, "state": "HELD", "expiresAt": "2026-11-29T10:00:00Z"}


class Extended:
    """Replaces Client.extend: succeeds, does not answer, succeeds, refuses."""

    def __init__(self):
        self.calls, self.refused = [], threading.Event()

    def __call__(self, feature, reservation_id, ttl_seconds, *, timeout):
        self.calls.append((feature, reservation_id, ttl_seconds, timeout))
        if len(self.calls) == 2:
            raise UnknownOutcome("unknown_outcome")
        if len(self.calls) > 3:
            self.refused.set()
            raise MeterplexError("reservation_ended")

    def check(self, test, reservation_id):
        test.assertEqual(self.calls, [("tokens", reservation_id, 0.03, 0.01)] * 4, "each third of its time, until a refusal")


@mock.patch.object(_calls, "FIRST_WAIT", 0.01)
class Limits(ClientTest):
    def setUp(self):
        super().setUp()
        self.quota = self.client(dir=None, memory=True)

    def sent(self, n=-1):
        r = self.fake.requests[n]
        return r.method, r.path, json.loads(r.body) if r.body else None

    def test_consume_is_repeated_with_the_same_id_until_it_is_answered(self):
        self.fake.replies = [None, problem(503, "unavailable"), problem(429, "rate_limited"), (200, {}, b"a proxy"), answer({"allowed": True}), answer({"eventId": "another"}), (302, {"Location": "/"}, b"")]
        self.fake.then = lambda r: about(r, {**ACCOUNT, "allowed": True, "amount": 9, "new": 1})
        found = self.quota.consume("tokens", 9, metadata={"model": "large"})
        self.assertEqual((found["used"], found["new"]), (3**40, 1), "exact, and with members of a later service")
        self.assertEqual(len({r.body for r in self.fake.requests}), 1)
        self.assertEqual(len(self.fake.requests), 8)
        method, path, body = self.sent()
        self.assertEqual((method, path, body["amount"], body["metadata"]), ("POST", "/api/v1/entitlements/tokens/consume", 9, {"model": "large"}))
        self.assertRegex(body["eventId"], "^[0-9a-f-]{36}$")

    def test_no_answer_until_the_deadline_is_an_unknown_outcome(self):
        self.fake.then = lambda r: problem(503, "unavailable")
        for call in (lambda: self.quota.consume("tokens", 1, event_id="my-id", timeout=0.1), lambda: self.quota.release("tokens", "my-id", timeout=0.1)):
            with self.assertRaises(UnknownOutcome) as caught:
                call()
            self.assertEqual((caught.exception.code, caught.exception.id), ("unknown_outcome", "my-id"))
            self.assertIn("my-id", caught.exception.detail)

    def test_refusals_are_raised_at_once(self):
        self.fake.then = lambda r: problem(409, "quota_exceeded", remaining=2**60 + 1, resetAt="2026-12-01T00:00:00Z", errors=[{"pointer": "/amount"}])
        with self.assertRaises(QuotaExceeded) as caught:
            self.quota.consume("tokens", 1)
        e = caught.exception
        self.assertEqual((e.status, e.remaining, e.reset_at, e.trace_id, e.errors), (409, 2**60 + 1, "2026-12-01T00:00:00Z", "t1", [{"pointer": "/amount"}]))
        self.assertIn("resetAt", e.remedy)
        self.fake.then = lambda r: problem(401, "unauthenticated")
        with self.assertRaises(MeterplexError) as caught:
            self.quota.reserve("tokens", 1)
        self.assertEqual((caught.exception.code, len(self.fake.requests)), ("unauthenticated", 2))

    def test_invalid_arguments_are_not_sent(self):
        for call in (lambda: self.quota.consume("tokens", 0), lambda: self.quota.consume("tokens", MAX_AMOUNT + 1), lambda: self.quota.consume("a/b", 1),
                     lambda: self.quota.consume("tokens", 1.5), lambda: self.quota.reserve("tokens", 1, reservation_id="a b"), lambda: self.quota.check("tokens", -1),
                     lambda: self.quota.consume("tokens", 1, metadata={"a": float("nan")})):
            with self.assertRaises(InvalidEvent):
                call()
        self.assertEqual(self.fake.requests, [])

    def test_a_position_that_is_not_reached_is_an_error_at_once(self):
        self.fake.then = lambda r: problem(503, "projection_behind")
        for call in (lambda: list(self.quota.entitlements(min_position="1-2")), lambda: self.quota.receipt("e", min_position="1-2", wait=1),
                     lambda: self.quota.check("tokens", min_position="1-2")):
            self.fake.requests.clear()
            with self.assertRaises(MeterplexError) as caught:
                call()
            self.assertEqual((caught.exception.code, caught.exception.status, len(self.fake.requests)), ("projection_behind", 503, 1))

    def test_the_time_limit_of_a_read_begins_after_its_wait(self):
        self.fake.then = lambda r: time.sleep(0.3) or about(r, {"data": [], "nextCursor": None})
        self.assertEqual(list(self.client(dir=None, memory=True, timeout=0.01).entitlements(min_position="1-2", wait=10, timeout=0.1)), [])

    def test_reserve_commit_extend_release(self):
        self.fake.then = lambda r: about(r, HELD, 201)
        self.assertEqual(self.quota.reserve("tokens", 5, reservation_id="r/1", ttl_seconds=9)["state"], "HELD")
        self.assertEqual(self.sent(), ("POST", "/api/v1/entitlements/tokens/reservations", {"reservationId": "r/1", "amount": 5, "ttlSeconds": 9}))
        self.quota.commit("tokens", "r/1", 4)
        self.assertEqual(self.sent(), ("POST", "/api/v1/entitlements/tokens/reservations/r%2F1/commit", {"eventId": "r/1-usage", "amount": 4}))
        self.quota.extend("tokens", "r1", 60)
        self.assertEqual(self.sent(), ("POST", "/api/v1/entitlements/tokens/reservations/r1/extend", {"ttlSeconds": 60}))
        self.quota.release("tokens", "r1")
        self.assertEqual(self.sent(), ("DELETE", "/api/v1/entitlements/tokens/reservations/r1", None))
        self.fake.then = lambda r: about(r, {**HELD, "state": "EXPIRED"})
        with self.assertRaises(MeterplexError) as caught:
            self.quota.reserve("tokens", 5, reservation_id="r1")
        self.assertEqual((caught.exception.code, caught.exception.problem["state"]), ("reservation_ended", "EXPIRED"))

    def test_a_reservation_is_committed_or_released(self):
        self.fake.then = lambda r: about(r, {**HELD, "state": "HELD" if r.path.endswith("reservations") else "COMMITTED"})
        with self.quota.reservation("tokens", 5, reservation_id="r1") as hold:
            hold.used = 8
        self.assertEqual(self.sent()[2], {"eventId": "r1-usage", "amount": 8, "overage": "record"})
        self.assertEqual(hold.committed["state"], "COMMITTED")
        self.assertEqual(self.quota.with_reservation("tokens", 5, lambda: 3)["state"], "COMMITTED")

        def fail():
            raise KeyError("work")

        for fn, error in ((fail, KeyError), (lambda: None, InvalidEvent), (lambda: -1, InvalidEvent), (lambda: 0, None)):
            if error is None:
                self.assertIsNone(self.quota.with_reservation("tokens", 5, fn))
            else:
                with self.assertRaises(error):
                    self.quota.with_reservation("tokens", 5, fn)
            self.assertEqual(self.sent()[0], "DELETE")

    def test_a_hold_is_extended_while_its_block_runs(self):
        self.fake.then = lambda r: about(r, HELD)
        extended = Extended()
        with mock.patch.object(self.quota, "extend", extended):
            with self.quota.reservation("tokens", 5, reservation_id="r1", ttl_seconds=0.03) as hold:
                self.assertTrue(extended.refused.wait(20))
                hold.used = 1
                time.sleep(0.05)
            extended.check(self, "r1")
            with self.quota.reservation("tokens", 5, ttl_seconds=3) as hold:
                hold.used = 1
            self.assertFalse([t for t in threading.enumerate() if t.name == "meterplex-hold" and t.join(20)], "it ends with the block")

    def test_an_error_of_the_block_is_raised_also_if_the_release_fails(self):
        self.fake.then = lambda r: about(r, HELD) if r.method == "POST" else problem(503, "unavailable")
        with self.assertRaises(KeyError), self.quota.reservation("tokens", 5, timeout=0.05):
            raise KeyError("work")
        self.assertIn("ends by itself", self.wait_error("unknown_outcome"))

    def test_what_may_be_held_is_released(self):
        self.fake.then = lambda r: problem(503, "unavailable") if r.method == "POST" else about(r, HELD)
        with self.assertRaises(UnknownOutcome), self.quota.reservation("tokens", 5, reservation_id="r1", timeout=0.05):
            self.fail("it is not held")
        self.assertEqual(self.sent(), ("DELETE", "/api/v1/entitlements/tokens/reservations/r1", None))

    def test_check(self):
        self.fake.then = lambda r: answer({"allowed": False, "feature": "tokens", "reason": "quota_exceeded", "remaining": 3, "asOfPosition": "1-2"})
        found = self.quota.check("tokens", 4, min_position="1-2")
        self.assertEqual((found.allowed, found.source, found.remaining, found.reason, found.as_of_position), (False, "service", 3, "quota_exceeded", "1-2"))
        self.assertEqual(self.sent()[:2], ("GET", "/api/v1/entitlements/tokens/check?amount=4&minPosition=1-2"))
        self.fake.then = lambda r: problem(403, "forbidden")
        with self.assertRaises(MeterplexError):
            self.quota.check("tokens")

    def test_check_without_an_answer(self):
        known = {"allowed": True, "feature": "tokens", "remaining": 10, "resetAt": None, "asOfPosition": "1-2"}

        def check(amount=1, feature="tokens", **client):
            self.fake.then = lambda r: problem(503, "unavailable")
            found = (client.get("on") or self.quota).check(feature, amount)
            return found.allowed, found.source

        def learn(**members):
            self.fake.then = lambda r: answer({**known, **members})
            self.quota.check("tokens", 1)

        self.assertEqual(check(), (False, "policy"))
        self.assertEqual(check(on=self.client(dir=None, memory=True, policy="allow")), (True, "policy"))
        learn()
        self.assertEqual([check(n) for n in (6, 5, 4, 1)], [(True, "cache"), (False, "policy"), (True, "cache"), (False, "policy")], "less what was checked since")
        learn(remaining=None)
        self.assertEqual(check(MAX_AMOUNT), (True, "cache"))
        learn(allowed=False, reason="not_entitled", remaining=None)
        self.assertEqual(check(), (False, "cache"))
        for members in ({"limitBehavior": "SOFT"}, {"type": "METERED", "limitBehavior": "HARD"}):
            learn(remaining=1, **members)
            self.assertEqual([check(n) for n in (5, 5)], [(True, "cache")] * 2, "a limit that does not deny")
        learn(resetAt="2020-01-01T00:00:00Z")
        self.assertEqual(check(), (False, "policy"), "the period is over")
        learn()
        self.assertEqual(check(feature="other"), (False, "policy"))
        with mock.patch.object(_limits.time, "monotonic", lambda now=time.monotonic: now() + 61):
            self.assertEqual(check(), (False, "policy"), "too old")

    def test_check_has_a_short_time_limit(self):
        self.fake.then = lambda r: time.sleep(3)
        begun = time.monotonic()
        self.assertEqual(self.client(dir=None, memory=True, check_timeout=0.05).check("tokens").source, "policy")
        self.assertLess(time.monotonic() - begun, 2)

    def test_reads_are_iterators_over_pages(self):
        def pages(r):
            query = parse_qs(urlsplit(r.path).query)
            n = int(query.get("cursor", ["0"])[0])
            return answer({"data": [{"amount": 10**30 + n}, {"amount": n}], "nextCursor": str(n + 1) if n < 2 else None, "asOfPosition": "1-2"})

        self.fake.then = pages
        rows = self.quota.aggregates(feature="tokens", period="2026-11", min_position="1-2", wait=5, limit=2)
        self.assertEqual(self.fake.requests, [], "lazy")
        self.assertEqual([row["amount"] for row in rows], [10**30, 0, 10**30 + 1, 1, 10**30 + 2, 2])
        self.assertEqual(self.sent(-2)[1], "/api/v1/usage/aggregates?feature=tokens&period=2026-11&minPosition=1-2&limit=2&cursor=1")
        self.assertEqual(self.fake.requests[0].headers["prefer"], "wait=5")
        for call, path in (
            (lambda: self.quota.usage("f", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", group_by=["metadata.a", "metadata.b"]),
             "/api/v1/usage?feature=f&from=2026-01-01T00%3A00%3A00Z&to=2026-02-01T00%3A00%3A00Z&groupBy=metadata.a&groupBy=metadata.b"),
            (lambda: self.quota.events(status="REJECTED"), "/api/v1/usage/events?status=REJECTED"),
            (lambda: self.quota.entitlements(), "/api/v1/entitlements"),
            (lambda: self.quota.reservations("f", state="HELD"), "/api/v1/entitlements/f/reservations?state=HELD"),
        ):
            next(iter(call()))
            self.assertEqual(self.sent()[1], path)
        self.fake.then = lambda r: about(r, {"status": "AGGREGATED"})
        self.assertEqual(self.quota.receipt("a/b", wait=3)["status"], "AGGREGATED")
        self.assertEqual(self.sent()[1], "/api/v1/usage/events/a%2Fb")

    def test_reads_are_repeated(self):
        self.fake.replies = [problem(503, "unavailable"), None, answer({"captive": "portal"})]
        self.fake.then = lambda r: answer({"data": [], "nextCursor": None})
        self.assertEqual(list(self.quota.entitlements()), [])
        self.assertEqual(len(self.fake.requests), 4)
        self.fake.then = lambda r: None
        with self.assertRaises(MeterplexError) as caught:
            self.quota.receipt("e", timeout=0.05)
        self.assertEqual(caught.exception.code, "unavailable")
