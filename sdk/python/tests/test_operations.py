"""The client sends and knows the members of sdk/operations.json, which follows from the service's OpenAPI document."""

import json
from urllib.parse import parse_qs, urlsplit

from meterplex import Committed, Consumed, Event, Held, Verdict
from meterplex._limits import Account

from .base import ClientTest
from .fake import about, verdicts
from .test_vectors import load

UNSENT = {"amounts", "tenantId", "format", "includeTest", "source"}  # Python's ints are exact; a key names its tenant; CSV; CloudEvents
VALUES = {"feature": "f", "reservationId": "r", "eventId": "e"}


class Operations(ClientTest):
    def operations(self):
        return {op["operation"]: op for op in load("../operations.json")}

    def test_requests(self):
        self.fake.then = lambda r: verdicts(r) if r.path == "/api/v1/usage/events" and r.method == "POST" else about(
            r, {"allowed": True, "state": "HELD", "data": [], "nextCursor": None if "cursor" in r.path else "c"})
        client = self.client()
        read = {"min_position": "1-2", "wait": 1}
        page = {**read, "limit": 1}
        calls = {
            "ingestUsage": lambda: (client.record_many([{"feature": "f", "amount": 1, "metadata": {"a": 1}},
                                                         {"feature": "f", "amount": 1, "type": "correction", "correctionRef": "x"}]), client.flush(20)),
            "checkEntitlement": lambda: client.check("f", 1, **read),
            "listEntitlements": lambda: list(client.entitlements(**page)),
            "consume": lambda: client.consume("f", 1, metadata={"a": 1}),
            "reserve": lambda: client.reserve("f", 1, reservation_id="r", ttl_seconds=1),
            "commitReservation": lambda: client.commit("f", "r", 1, overage="record"),
            "extendReservation": lambda: client.extend("f", "r", 1),
            "releaseReservation": lambda: client.release("f", "r"),
            "listReservations": lambda: list(client.reservations("f", state="HELD", limit=1)),
            "listUsageEvents": lambda: list(client.events(feature="f", status="PENDING", start="a", end="b", **page)),
            "getReceipt": lambda: client.receipt("e", **read),
            "listAggregates": lambda: list(client.aggregates(feature="f", period="2026", as_of="a", as_of_position="1-2", **page)),
            "getSeries": lambda: list(client.usage("f", "a", "b", granularity="day", group_by=["metadata.a"], **page)),
        }
        operations = self.operations()
        self.assertEqual(set(calls), set(operations))
        for name, call in calls.items():
            with self.subTest(name):
                del self.fake.requests[:]
                call()
                op, r = operations[name], self.fake.requests[-1]
                path = urlsplit(r.path)
                method, _, template = op["request"].partition(" ")
                self.assertEqual((r.method, path.path), (method, template.format(**VALUES)))
                self.assertEqual(set(parse_qs(path.query)), {p[6:] for p in op.get("parameters", []) if p.startswith("query ")} - UNSENT)
                self.assertEqual("prefer" in r.headers, "header Prefer" in op.get("parameters", []) and name != "ingestUsage")
                body = json.loads(r.body) if r.body else {}
                sent = {f"events[].{k}" for e in body["events"] for k in e} if "events" in body else set(body)
                self.assertEqual(sent, {b.split()[0] for b in op.get("body", [])} - {"events[].source"})

    def test_answers(self):
        def members(name):
            return {a.split()[0] for a in self.operations()[name]["answer"]}

        for kind, name in ((Consumed, "consume"), (Held, "reserve"), (Held, "extendReservation"), (Held, "releaseReservation"), (Committed, "commitReservation")):
            self.assertEqual(set(kind.__annotations__) | set(Account.__annotations__), members(name), name)
        body = {b.split()[0] for b in self.operations()["ingestUsage"]["body"]}
        self.assertEqual({f"events[].{m}" for m in Event.__annotations__}, body - {"events[].source"})
        verdict = {m.removeprefix("events[].") for m in members("ingestUsage") if "[]" in m}
        self.assertEqual({"eventId" if f == "event_id" else f for f in Verdict.__dataclass_fields__} - {"remedy"}, verdict - {"index"})
