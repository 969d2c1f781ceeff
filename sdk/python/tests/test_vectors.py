"""The vectors and golden files that the SDKs share."""

import json
import os
import shutil
import unittest

from meterplex import InvalidEvent, MeterplexError, amount, event_id
from meterplex._events import canonical, complete, uuid7
from meterplex._owner import release, take_over
from meterplex._limits import usage_id
from meterplex._queue import crc32c

from .base import folder as make_folder

DATA = os.path.join(os.path.dirname(__file__), "..", "..", "testdata")


def load(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as file:
        return json.load(file)


def copy_queue(name, to):
    """Copy a golden queue whose owner is dead: a checkout gives it the time of now."""
    shutil.copytree(os.path.join(DATA, "queues", name), to)
    for root, _, files in os.walk(to):
        for file in files:
            os.utime(os.path.join(root, file), (1, 1))


class Vectors(unittest.TestCase):
    def setUp(self):
        self.vectors = load("vectors.json")

    def test_event_ids(self):
        for v in self.vectors["eventIds"]:
            self.assertEqual(event_id(v["tenant"], v["feature"], v["resource"], v["occurredAt"]), v["id"])
        for v in self.vectors["eventIdsRefused"]:
            with self.assertRaises(MeterplexError, msg=v):
                event_id(v["tenant"], v["feature"], v["resource"], v["occurredAt"])

    def test_canonical(self):
        for v in self.vectors["canonical"]:
            self.assertEqual(canonical(v["event"]).decode(), v["canonical"])
            self.assertEqual(canonical(json.loads(v["canonical"])).decode(), v["canonical"], "canonical JSON stays as it is")

    def test_refused(self):
        for v in self.vectors["refused"]:
            with self.assertRaises(InvalidEvent, msg=v) as caught:
                canonical(v["event"])
            self.assertEqual(caught.exception.code, v["code"], v)

    def test_amounts(self):
        for v in self.vectors["amounts"]:
            self.assertEqual(amount(v["decimal"], "unit", v["scale"]), v["amount"])
        for v in self.vectors["amountsRefused"]:
            with self.assertRaises(InvalidEvent, msg=v) as caught:
                amount(v["decimal"], "unit", v["scale"])
            self.assertEqual(caught.exception.code, "amount_invalid")
            self.assertIn("unit", str(caught.exception))


    def test_usage_ids(self):
        long = "r" * 250
        for reservation, id in (("r/1", "r/1-usage"), (long[:249], long[:249] + "-usage"), (long, "fb6d383e11d76784ba315ed99addfcf6-usage")):
            self.assertEqual(usage_id(reservation), id)


class Events(unittest.TestCase):
    EVENT = {"eventId": "e", "feature": "f", "amount": 1, "timestamp": "2026-11-29T10:00:00Z"}

    def refused(self, **members):
        with self.assertRaises(InvalidEvent) as caught:
            canonical({**self.EVENT, **members})
        return caught.exception.code

    def test_what_python_would_round_or_guess_is_refused(self):
        from datetime import datetime

        for value in (True, 1.0, "1", 2**53):
            self.assertEqual(self.refused(amount=value), "amount_invalid")
        for value in (2**53 + 1, 2**60, 10**400, float("nan"), float("inf"), object(), {1: 2}, {"a": b"x"}, "\ud800", {"a": "\0"}):
            self.assertEqual(self.refused(metadata={"a": value}), "metadata_invalid", value)
        for value in (datetime(2026, 1, 1), "2026-01-01T00:00:00Z\n", "2026-01-01T00:00:60Z", "0001-01-01T00:00:00+01:00", "2026-01-01T00:00:00+24:00", 1):
            self.assertEqual(self.refused(timestamp=value), "timestamp_invalid")
        self.assertEqual(self.refused(correction="x"), "unknown_member")

    def test_numbers_are_written_as_ecmascript_does(self):
        for value, text in (
            (1.0, "1"), (-0.0, "0"), (1e20, "100000000000000000000"), (10**20, "100000000000000000000"), (123456.789, "123456.789"), (1e-6, "0.000001"),
            (1.5e-7, "1.5e-7"), (1.7976931348623157e308, "1.7976931348623157e+308"), (2**53, "9007199254740992"), (-123, "-123"), (0.1 + 0.2, "0.30000000000000004"),
        ):
            self.assertIn(f'{{"a":{text}}}', canonical({**self.EVENT, "metadata": {"a": value}}).decode())

    def test_missing_ids_and_times_are_made(self):
        made = complete({"feature": "f", "amount": 1})
        self.assertRegex(made["eventId"], r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$")
        self.assertEqual(canonical(made), canonical(complete(made)))
        self.assertEqual(uuid7(0x0123456789AB * 10**6)[:13], "01234567-89ab")


class GoldenQueues(unittest.TestCase):
    def test_crc(self):
        self.assertEqual(crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(crc32c(b""), 0)

    def test_queues(self):
        for name, want in load("queues.json").items():
            for max_bytes in (1 << 20, 1):  # one batch, and one for each event
                with self.subTest(name, max_bytes=max_bytes):
                    folder = make_folder()
                    self.addCleanup(shutil.rmtree, folder)
                    dir = os.path.join(folder, "queue")
                    copy_queue(name, dir)
                    ids, damaged = [], []
                    (queue,) = take_over(dir, "")
                    position, batches = queue.position, 0
                    while (batch := queue.read(position, 1000, max_bytes)) is not None:
                        position = batch.after
                        batches += len(batch.events) > 0
                        ids += [json.loads(e)["eventId"] for e in batch.events]
                        damaged += [{"segment": d.segment, "offset": d.offset, "bytes": len(d.bytes)} for d in batch.damages if d.bytes]
                    self.assertEqual({"events": ids, "damaged": damaged}, want)
                    if max_bytes == 1:
                        self.assertEqual(batches, len(ids))
                    release(queue, remove=False)
                    self.assertEqual(len(take_over(dir, "")), 1, "a queue that was released is taken over at once")
