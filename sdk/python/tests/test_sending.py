"""Each answer of the service, and what the sender makes of it."""

from __future__ import annotations

import json
import os
import threading
import time
import unittest
from unittest import mock

from meterplex import Client, MeterplexError, Remaining, _http, _queue, _sender
from meterplex._events import canonical

from .base import KEY, ClientTest, event
from .fake import JSON, PROBLEM, answer, problem, verdicts

FAST = mock.patch.object(_sender, "FIRST_WAIT", 0.01)


@FAST
class Answers(ClientTest):
    def test_accepted_events_are_sent_as_they_were_recorded(self):
        with self.client() as client:
            made = client.record("api_calls", 3, metadata={"b": 1, "a": "ü"})
            self.assertEqual(client.flush(20), Remaining(0, 0.0))
            request = self.fake.wait(1)[0]
            sent = {"eventId": made.event_id, "timestamp": made.timestamp, "feature": "api_calls", "amount": 3, "metadata": {"b": 1, "a": "ü"}}
            self.assertEqual(request.body, b'{"events":[' + canonical(sent) + b"]}")
            self.assertEqual(request.path, "/api/v1/usage/events")
            self.assertEqual(request.headers["authorization"], "Bearer " + KEY)
            self.assertEqual(request.headers["user-agent"], "meterplex-python/0.1.0")
            self.assertNotIn("meterplex-replay", request.headers)
            stats = client.stats()
            self.assertEqual((stats.accepted, stats.waiting, stats.waiting_bytes), (1, 0, 0))
        self.assertEqual(self.verdicts, [(sent, mock.ANY)])
        self.assertEqual(self.queues(), [], "an empty queue is removed")

    def test_what_is_not_counted_is_kept_until_it_is_acknowledged(self):
        self.fake.then = lambda r: verdicts(
            r,
            a={"status": "rejected", "code": "feature_not_found", "reason": "why"},
            b={"status": "conflict", "code": "payload_conflict"},
            c={"status": "duplicate"},
            d={"status": "parked", "code": "new_code"},  # of a later service
        )
        with self.client() as client:
            client.record_many([event(id) for id in "abcde"])
            client.flush(20)
            found = {r.event["eventId"]: r for r in client.rejected()}
            self.assertEqual({id: (r.status, r.code) for id, r in found.items()},
                             {"a": ("rejected", "feature_not_found"), "b": ("conflict", "payload_conflict"), "d": ("parked", "new_code")})
            self.assertEqual((found["a"].reason, found["d"].remedy), ("why", ""))
            self.assertIn("feature", found["a"].remedy)
            client.acknowledge("a")
            client.acknowledge("never")
            self.assertEqual({r.event["eventId"] for r in client.rejected()}, {"b", "d"})
            s = client.stats()
            self.assertEqual((s.accepted, s.duplicates, s.conflicts, s.rejected), (1, 1, 1, 2))
        self.assertEqual([v.status for _, v in self.verdicts], ["rejected", "conflict", "duplicate", "parked", "accepted"])
        self.assertRegex(self.files("rejected")[0], r"^[0-9a-f]{32}-[0-9a-f]{16}\.json$")

    def test_no_answer_408_429_and_5xx_repeat_the_same_bytes(self):
        self.fake.replies = [None, problem(408, "timeout"), problem(429, "rate_limited"), problem(503, "unavailable"), (502, {}, b"bad gateway")]
        with self.client() as client:
            client.record_many([event("a"), event("b")])
            self.assertEqual(client.flush(20).events, 0)
            requests = self.fake.wait(6)
            self.assertEqual({r.sent for r in requests}, {requests[0].sent})
            self.assertEqual(len(requests), 6)
        self.assertEqual(self.errors, [])

    def test_retry_after_is_the_least_wait(self):
        self.fake.replies = [problem(429, "rate_limited")]
        with mock.patch.object(_http.Answer, "retry_after", lambda answer: 0.3), self.client() as client:
            begun = time.monotonic()
            client.record("f", 1)
            client.flush(20)
            self.assertGreaterEqual(time.monotonic() - begun, 0.3)

    def test_an_outage_is_reported_once_and_sent_with_the_header(self):
        self.fake.then = lambda r: problem(503, "unavailable")
        with self.client(longest_wait=0.05) as client:
            client.record("f", 1)
            self.assertIn("unavailable", self.wait_error("unavailable"))
            count = len(self.fake.requests)
            self.fake.wait(count + 3)
            self.fake.then = verdicts
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual([c for c, _ in self.errors], ["unavailable"])
            self.assertNotIn("meterplex-replay", self.fake.requests[0].headers)
            self.assertEqual(self.fake.requests[-1].headers["meterplex-replay"], "offline")
            client.record("f", 1)
            client.flush(20)
            self.assertNotIn("meterplex-replay", self.fake.requests[-1].headers)

    def test_a_refused_key_keeps_all_events_until_another_key(self):
        for status, reply, code in ((401, problem(401, "unauthenticated"), "unauthenticated"), (403, (403, {}, b"no"), "forbidden")):
            with self.subTest(status), self.client(dir=f"{self.dir}-{status}") as client:
                self.fake.then = lambda r, reply=reply: verdicts(r) if r.headers["authorization"] == "Bearer new" else reply
                client.record("f", 1)
                self.wait_error(code)
                self.assertEqual(client.flush(0.05).events, 1)
                self.assertIn(code, client.stats().last_error)
                client.set_key("new")
                self.assertEqual(client.flush(20).events, 0)

    def test_a_refused_key_is_tried_again(self):
        self.fake.replies = [problem(401, "unauthenticated")]
        with self.client(key_wait=0.05) as client:
            client.record("f", 1)
            self.assertEqual(client.flush(20).events, 0)

    def test_a_batch_that_is_refused_whole_is_halved(self):
        self.fake.then = lambda r: problem(400, "malformed_json") if "c" in r.ids() else verdicts(r)
        with self.client() as client:
            client.record_many([event(id) for id in "abcdefgh"])
            self.assertEqual(client.flush(20).events, 0)
            self.assertIn("malformed_json", self.wait_error("damaged"))
            self.assertEqual(client.stats().damaged, 1)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], list("abdefgh"), "the order is kept")
        (name,) = self.files("damaged")
        self.assertTrue(name.startswith("event-"))
        with open(os.path.join(self.dir, "damaged", name)) as file:
            kept = json.load(file)
        self.assertEqual((kept["event"], kept["problem"]["code"]), (event("c"), "malformed_json"))
        self.assertEqual(self.files("rejected"), [])

    def test_a_queue_of_another_program_may_hold_anything(self):
        folder = os.path.join(self.dir, "q-0123456789abcdef")
        os.makedirs(folder)
        with open(os.path.join(folder, "00000001.seg"), "wb") as file:
            file.write(_queue.MAGIC + b"".join(map(_queue.record, (b'{"a":1}', b'{"eventId":5}', b"\"\xff", b'{"eventId":"e"}'))))

        def reply(r):
            if b"\xff" in r.body or b'"a"' in r.body:
                return problem(400, "malformed_json")
            return answer({"events": [{"index": i, "eventId": e.get("eventId"), "status": "rejected"} for i, e in enumerate(r.events())]}, 202)

        self.fake.then = reply
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual([r.event for r in client.rejected()], [{"eventId": 5}, {"eventId": "e"}])
            client.acknowledge("e")
        kept = []
        for name in self.files("damaged"):
            with open(os.path.join(self.dir, "damaged", name)) as file:
                kept.append(json.load(file)["event"])
        self.assertEqual(sorted(kept, key=str), ["\"\ufffd", {"a": 1}])

    def test_an_answer_that_is_not_the_services_is_never_success(self):
        def cut(r, n=1):
            return answer({"events": json.loads(verdicts(r)[2])["events"][n:]}, 202)

        fakes = {
            "200": lambda r: (200, *verdicts(r)[1:]),
            "html": lambda r: (202, {"Content-Type": "text/html"}, verdicts(r)[2]),
            "empty": lambda r: (202, JSON, b""),
            "no verdicts": lambda r: answer({"ok": True}, 202),
            "a list": lambda r: answer([], 202),
            "one verdict too few": cut,
            "another event": lambda r: verdicts(r, a={"eventId": "b"}),
            "another index": lambda r: verdicts(r, a={"index": 7}),
            "no status": lambda r: verdicts(r, a={"status": None}),
            "redirect": lambda r: (302, {"Location": self.fake.url + "/elsewhere"}, b""),
            "a proxy's 413": lambda r: (413, {}, b"too large"),
            "a proxy's 400": lambda r: (400, PROBLEM, b'{"title":"no code"}'),
            "another address": lambda r: problem(404, "not_found"),
            "another method": lambda r: problem(405, "method_not_allowed"),
        }
        for name, fake in fakes.items():
            with self.subTest(name), self.client(dir=f"{self.dir}-{name}") as client:
                self.fake.requests.clear()
                self.fake.then = fake
                client.record_many([event("a"), event("x")])
                requests = self.fake.wait(4)
                self.assertEqual([r.ids() for r in requests[:3]], [["a", "x"], ["a"], ["a"]], "halved, then as no answer")
                stats = client.stats()
                self.assertEqual((stats.waiting, stats.accepted, stats.damaged), (2, 0, 0))
                self.fake.then = verdicts
                self.assertEqual(client.flush(20).events, 0)
                self.assertTrue(all(r.path == "/api/v1/usage/events" for r in self.fake.requests))

    def test_a_cut_answer_is_no_answer(self):
        whole = lambda r: (202, {**JSON, "Content-Length": "9999", "Connection": "close"}, verdicts(r)[2])  # noqa: E731
        self.fake.replies = [whole]
        with self.client(timeout=1) as client:
            client.record("f", 1)
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual(len(self.fake.requests), 2)

    def test_batches_are_bounded_by_count_and_bytes(self):
        with self.client(max_events=3, max_age=60) as client:
            client.record_many([event(str(n)) for n in range(7)])
            client.flush(20)
            self.assertEqual([r.ids() for r in self.fake.requests], [["0", "1", "2"], ["3", "4", "5"], ["6"]])
        self.fake.requests.clear()
        with self.client(max_bytes=200, max_age=60) as client:
            client.record_many([event(str(n)) for n in range(4)])
            client.flush(20)
            self.assertEqual([r.ids() for r in self.fake.requests], [["0", "1"], ["2", "3"]])

    def test_an_event_waits_for_others_at_most_max_age(self):
        with self.client(max_age=0.2) as client:
            begun = time.monotonic()
            client.record("f", 1)
            client.record("f", 1)
            (request,) = self.fake.wait(1)
            self.assertGreaterEqual(time.monotonic() - begun, 0.2)
            self.assertEqual(len(request.ids()), 2)

    def test_old_events_are_reported(self):
        with self.client() as client:
            client.record("f", 1, timestamp="2020-01-01T00:00:00Z")
            client.flush(20)
            client.record("f", 1, timestamp="2020-01-01T00:00:00Z")
            client.flush(20)
        self.assertEqual([c for c, _ in self.errors], ["too_old"], "at most once an hour")

    def test_handlers_that_fail_stop_nothing(self):
        def fail(*args):
            raise RuntimeError("handler")

        with self.assertLogs("meterplex", "ERROR"), self.client(on_verdict=fail, on_error=fail) as client:
            client.record("f", 1, timestamp="2020-01-01T00:00:00Z")
            self.assertEqual(client.flush(20).events, 0)

    def test_the_default_handlers_log(self):
        self.fake.then = lambda r: verdicts(r, a={"status": "rejected", "code": "feature_not_found"})
        with self.assertLogs("meterplex", "WARNING") as logs, Client(self.fake.url, KEY, self.dir) as client:
            client.record_many([event("a"), event("b")])
            client.flush(20)
        self.assertEqual(len([line for line in logs.output if "feature_not_found" in line]), 1)
        self.assertFalse(any(KEY in line for line in logs.output))

    def test_the_rejected_file_is_there_before_the_cursor_moves(self):
        self.fake.then = lambda r: verdicts(r, a={"status": "rejected", "code": "x"})
        seen = []
        with self.client() as client:
            advance = client._running().sender._advance
            client._running().sender._advance = lambda *args: (seen.append((len(self.files("rejected")), len(self.verdicts))), advance(*args))
            client.record_many([event("a")])
            client.flush(20)
        self.assertEqual(seen, [(1, 1)])


class Keys(ClientTest):
    def test_arguments(self):
        for options in ({"url": "ftp://x"}, {"url": "http://u:p@x"}, {"durability": "none"}, {"policy": "maybe"}, {"dir": None}, {"memory": True}, {"max_events": 1001}):
            with self.assertRaises(MeterplexError, msg=options) as caught:
                self.client(**options)
            self.assertEqual(caught.exception.code, "invalid_argument")
        for key in ("", "a b", "a\r\nX: y", "ü"):
            with self.assertRaises(MeterplexError):
                Client(self.fake.url, key, self.dir)

    def test_a_closed_client_refuses(self):
        client = self.client()
        client.close()
        for call in (lambda: client.record("f", 1), client.flush, client.stats, lambda: client.check("f"), lambda: client.consume("f", 1)):
            with self.assertRaises(MeterplexError) as caught:
                call()
            self.assertEqual(caught.exception.code, "closed")
        self.assertEqual(client.close(), Remaining(0, 0.0))
        self.assertFalse([t for t in threading.enumerate() if t.name in ("meterplex-writer", "meterplex-sender") and t.is_alive()])


if __name__ == "__main__":
    unittest.main()
