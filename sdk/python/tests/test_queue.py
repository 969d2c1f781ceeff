"""The queue of a client: durable before record returns, bounded, taken over, left alone by a fork."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

from meterplex import Client, MeterplexError, QueueFull, UnknownOutcome, _client, _memory, _owner, _pipeline, _queue, _sender, _writer

from .base import KEY, ClientTest, event
from .fake import problem, verdicts
from .test_vectors import copy_queue

PROGRAM = """
import sys
from meterplex import Client
client = Client(sys.argv[1], "mp_test_x", sys.argv[2] or None, tenant=sys.argv[3], memory=not sys.argv[2], max_age=60 if sys.argv[3] == "late" else 1)
"""
FULL = OSError(errno.ENOSPC, "No space left on device")


class QueueTest(ClientTest):
    def offline(self, **options):
        """A client whose service cannot be reached."""
        return self.client(url="http://127.0.0.1:1", **options)

    def run_program(self, text, url="http://127.0.0.1:1", tenant="", dir=None, **options):
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PROGRAM + text, url, self.dir if dir is None else dir, tenant]
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def stored(self):
        """The events in the queues of the directory, whoever owns them."""
        found = []
        for name in self.queues():
            queue = _queue.DiskQueue(os.path.join(self.dir, name))
            position = queue.position
            while (batch := queue.read(position, 1000, 1 << 20)) is not None:
                position = batch.after
                found += [json.loads(e)["eventId"] for e in batch.events]
        return found

    def make_queue(self, *ids, age=0.0, **owner):
        """A queue of another process; by default a dead one of this host."""
        token = os.urandom(8).hex()
        path = os.path.join(self.dir, "q-" + token)
        os.makedirs(path)
        with open(os.path.join(path, "00000001.seg"), "wb") as file:
            file.write(_queue.MAGIC + b"".join(_queue.record(json.dumps(event(id), sort_keys=True).encode()) for id in ids))
        owner = {"version": 1, "token": token, "pid": 4194303, "host": socket.gethostname(), "tenant": "", **owner}
        with open(os.path.join(path, "owner"), "w") as file:
            json.dump(owner, file)
        os.utime(file.name, (time.time() - age, time.time() - age))
        return path


class Durable(QueueTest):
    def test_record_returns_after_the_sync_of_the_file_and_of_its_folders(self):
        hold, synced, folders = threading.Event(), [], []
        real_sync, real_folder = _owner.sync, _owner.sync_folder
        self.dir = os.path.join(self.dir, "new")

        def sync(fd):
            hold.wait(20)
            real_sync(fd)
            synced.append(len(self.stored()))

        with mock.patch.object(_owner, "sync", sync), mock.patch.object(_owner, "sync_folder", lambda p: (folders.append(p), real_folder(p))):
            client = self.offline()
            caller = threading.Thread(target=client.record, args=("f", 1))
            caller.start()
            caller.join(0.2)
            self.assertTrue(caller.is_alive(), "record must wait for the sync")
            hold.set()
            caller.join(20)
        self.assertEqual(synced[-1], 1, "the last sync has the event")
        parent = os.path.dirname(self.dir)
        self.assertEqual(folders, [os.path.dirname(parent), parent, self.dir, os.path.join(self.dir, self.queues()[0])])

    def test_durability_os_has_no_sync(self):
        client = self.offline(durability="os")
        client.record("f", 1)
        with mock.patch.object(_owner, "sync", side_effect=AssertionError):
            client.record("f", 1)
        self.assertEqual(len(self.stored()), 2)

    def test_concurrent_callers_share_a_sync(self):
        client = self.offline()
        client.record("f", 1)
        first, go, syncs, real = threading.Event(), threading.Event(), [], _owner.sync

        def sync(fd):
            syncs.append(fd)
            first.set()
            go.wait(20)
            real(fd)

        with mock.patch.object(_owner, "sync", sync):
            callers = [threading.Thread(target=client.record, args=("f", 1)) for _ in range(20)]
            callers[0].start()
            first.wait(20)
            for caller in callers[1:]:
                caller.start()
            deadline = time.monotonic() + 20
            while len(client._running().pipeline.pending) < 19 and time.monotonic() < deadline:
                time.sleep(0.001)
            go.set()
            for caller in callers:
                caller.join(20)
        self.assertEqual(len(syncs), 2)
        self.assertEqual(len(self.stored()), 21)

    def test_modes(self):
        old = os.umask(0)
        self.addCleanup(os.umask, old)
        self.fake.then = lambda r: verdicts(r, a={"status": "rejected"})
        client = self.client()
        client.record_many([event("a")])
        client.flush(20)
        client.record("f", 1)
        client.flush(20)
        seen = 0
        for root, folders, files in os.walk(self.dir):
            self.assertEqual(os.stat(root).st_mode & 0o777, 0o700, root)
            for name in files:
                seen += 1
                self.assertEqual(os.stat(os.path.join(root, name)).st_mode & 0o777, 0o600, name)
        self.assertGreaterEqual(seen, 4)

    def test_segments_are_filled_and_deleted(self):
        with mock.patch.object(_writer, "SEGMENT_BYTES", 300), self.offline() as client:
            for n in range(10):
                client.record_many([event(str(n))])
            segments = sorted(f for f in self.files(self.queues()[0]) if f.endswith(".seg"))
            self.assertEqual(segments, ["00000001.seg", "00000002.seg", "00000003.seg"])
            client.record_many([event(str(n)) for n in range(10, 20)])  # one write over several segments
            self.assertEqual(self.stored(), [str(n) for n in range(20)])
            client.close(0)
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual([e["eventId"] for e, _ in self.verdicts], [str(n) for n in range(20)])
        self.assertEqual(self.queues(), [])

    def test_own_segments_are_deleted_behind_the_cursor(self):
        with mock.patch.object(_writer, "SEGMENT_BYTES", 300), self.client() as client:
            client.record_many([event(str(n)) for n in range(10)])
            client.flush(20)
            client.record_many([event("x")])
            client.flush(20)
            self.assertEqual([f for f in self.files(self.queues()[0]) if f.endswith(".seg")], ["00000003.seg"])
            self.assertEqual(len(self.verdicts), 11)

    def test_events_after_a_failed_sync_are_in_another_segment_and_nothing_twice(self):
        client = self.offline()
        client.record_many([event("a")])
        fails = [OSError(errno.EIO, "disk"), OSError(errno.ENOSPC, "full")]
        real = _owner.sync

        def sync(fd):
            if fails:
                raise fails.pop(0)
            real(fd)

        with mock.patch.object(_owner, "sync", sync):
            client.record_many([event("b")])
        self.assertEqual(self.stored(), ["a", "b"])
        self.assertEqual([f for f in self.files(self.queues()[0]) if f.endswith(".seg")], ["00000001.seg", "00000002.seg"])

    def test_a_disk_that_fails_until_the_deadline(self):
        client = self.offline()
        client.record_many([event("a")])
        for number, code in ((errno.ENOSPC, "queue_full"), (errno.EIO, "queue_failed")):
            with mock.patch.object(_owner, "sync", side_effect=OSError(number, "x")):
                with self.assertRaises(MeterplexError) as caught:
                    client.record("f", 1, timeout=0.3)
            self.assertEqual(caught.exception.code, code)
        self.assertEqual(self.stored(), ["a"])
        client.record_many([event("c")])
        self.assertEqual(self.stored(), ["a", "c"])

    def test_a_sync_that_hangs_has_an_unknown_outcome(self):
        client = self.offline()
        client.record("f", 1)
        go, real = threading.Event(), _owner.sync
        with mock.patch.object(_owner, "sync", lambda fd: (go.wait(20), real(fd))), mock.patch.object(_pipeline, "PATIENCE_SECONDS", 0.1):
            with self.assertRaises(UnknownOutcome) as caught:
                client.record("f", 1, event_id="e", timeout=0.1)
            self.assertEqual(caught.exception.id, "e")
            go.set()
            client.record("f", 1)


def full_disk(queue, position):
    """Replaces DiskQueue.save."""
    queue.saved = False
    raise FULL


class FullDisk(QueueTest):
    def test_a_cursor_that_cannot_be_written_holds_nothing_up(self):
        with mock.patch.object(_writer, "SEGMENT_BYTES", 100), self.client() as client:
            with mock.patch.object(_queue.DiskQueue, "save", full_disk):
                for id in "abc":
                    client.record_many([event(id)])
                    self.assertEqual(client.flush(20).events, 0)
                self.assertEqual([r.ids() for r in self.fake.requests], [["a"], ["b"], ["c"]], "sent once")
                self.assertEqual([c for c, _ in self.errors], ["queue_failed"], "reported once")
                folder = self.queues()[0]
                self.assertEqual([n for n in self.files(folder) if n.endswith(".seg")], ["00000002.seg"], "what was sent makes space")
                self.assertNotIn("cursor", self.files(folder))
            client._running().sender._looked = -100.0
            client.record_many([event("d")])
            client.flush(20)
            self.assertIn("cursor", self.files(folder))
        self.assertEqual(self.queues(), [])

    def test_the_cursor_is_written_later_without_another_event(self):
        with self.client() as client:
            with mock.patch.object(_queue.DiskQueue, "save", full_disk):
                client.record_many([event("a")])
                client.flush(20)
            run = client._running()
            run.sender._looked = -100.0
            with run.pipeline.changed:
                run.pipeline.changed.notify_all()
            deadline = time.monotonic() + 20
            while "cursor" not in self.files(self.queues()[0]):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.005)

    def test_a_queue_that_is_lost_with_its_cursor_holds_nothing_up(self):
        with self.client() as client:
            with mock.patch.object(_queue.DiskQueue, "save", full_disk):
                client.record_many([event("a")])
                client.flush(20)
            shutil.rmtree(os.path.join(self.dir, self.queues()[0]))
            self.make_queue("b")
            run = client._running()
            run.sender._looked = -100.0
            with run.pipeline.changed:
                run.pipeline.changed.notify_all()
                self.assertTrue(run.pipeline.changed.wait_for(lambda: len(self.verdicts) == 2, 20))
            client.record_many([event("c")])
            client.flush(20)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a", "b", "c"])

    def test_what_was_not_counted_is_kept_before_the_cursor_moves(self):
        self.fake.then = lambda r: problem(400, "malformed_json") if "c" in r.ids() else verdicts(r, b={"status": "rejected", "code": "x"})
        real, fails = _owner.write_synced, [FULL, FULL, FULL]

        def write(path, content):
            if fails and not path.endswith("owner"):
                raise fails.pop()
            real(path, content)

        with self.client(max_events=2) as client, mock.patch.object(_owner, "write_synced", write), mock.patch.object(_sender, "FIRST_WAIT", 0.01):
            client.record_many([event("a"), event("b")])
            client.flush(20)
            fails.append(FULL)
            client.record_many([event("c")])
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual([r.ids() for r in self.fake.requests], [["a", "b"], ["c"]], "not sent again")
            self.assertEqual(len(client.rejected()), 1)
        self.assertEqual(len(self.verdicts), 2)
        self.assertEqual((len(self.files("damaged")), [c for c, _ in self.errors]), (1, ["queue_failed", "queue_failed", "damaged"]))

    def test_queues_are_taken_over_and_new_ones_leave_nothing_behind(self):
        self.make_queue("a", tenant="t1")
        client = self.client(tenant="t1", max_age=60)
        with mock.patch.object(_owner, "write_synced", side_effect=FULL):
            self.assertEqual(client.flush(20).events, 0)
            with self.assertRaises(QueueFull):
                client.record("f", 1, timeout=0.3)
            self.assertEqual(self.files(), [])
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a"])
        client.record("f", 1)

    def test_an_owner_is_overwritten_on_a_full_disk(self):
        path = self.make_queue("a", tenant="t1", host="elsewhere" * 20, age=61)
        with mock.patch.object(_owner, "write_synced", side_effect=FULL):
            (queue,) = _owner.take_over(self.dir, "t1")
        with open(os.path.join(queue.path, "owner")) as file:
            owner = json.load(file)
        self.assertNotEqual(queue.path, path)
        self.assertEqual((owner["token"], owner["pid"], owner["tenant"]), (queue.token, os.getpid(), "t1"))

    def test_a_queue_that_cannot_be_taken_over_is_reported(self):
        path = self.make_queue("a")
        self.make_queue("b")
        real = os.rename
        with mock.patch.object(_owner.os, "rename", lambda a, b: real(a, b) if a != path else exec("raise OSError(5, 'disk')")), self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["b"])
        self.assertIn(path, self.wait_error("queue_failed"))

    def test_a_folder_that_cannot_be_made_is_an_error_at_once(self):
        file = os.path.join(os.path.dirname(self.dir), "file")
        open(file, "w").close()
        with self.assertRaises(MeterplexError) as caught:
            self.offline(dir=os.path.join(file, "usage"))
        self.assertEqual(caught.exception.code, "queue_failed")
        self.assertIn(file, caught.exception.detail)
        with mock.patch.object(_client.os, "access", return_value=False), self.assertRaises(MeterplexError):
            self.offline()
        with mock.patch.object(_owner.os, "mkdir", side_effect=FULL):
            self.offline()


class Full(QueueTest):
    def test_a_full_queue_waits_and_then_refuses(self):
        client = self.offline(queue_bytes=300)
        client.record_many([event("a"), event("b"), event("c")])
        begun = time.monotonic()
        with self.assertRaises(QueueFull) as caught:
            client.record_many([event("d")], timeout=0.2)
        self.assertEqual(caught.exception.code, "queue_full")
        self.assertGreaterEqual(time.monotonic() - begun, 0.2)
        self.assertEqual((client.stats().waiting, self.stored()), (3, ["a", "b", "c"]))

    def test_a_waiting_caller_goes_on_once_there_is_space(self):
        ready = threading.Event()
        self.fake.then = lambda r: verdicts(r) if ready.wait(20) else None
        client = self.client(queue_bytes=300)
        client.record_many([event("a"), event("b"), event("c")])
        self.fake.wait(1)
        caller = threading.Thread(target=client.record_many, args=([event("d")],), kwargs={"timeout": 20})
        caller.start()
        caller.join(0.1)
        self.assertTrue(caller.is_alive())
        ready.set()
        caller.join(20)
        self.assertEqual(client.flush(20).events, 0)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a", "b", "c", "d"])

    def test_queues_that_were_taken_over_count(self):
        self.make_queue("a", "b", "c")
        client = self.offline(queue_bytes=300)
        client.flush(0.3)
        with self.assertRaises(QueueFull):
            client.record("f", 1, timeout=0.1)

    def test_in_memory(self):
        client = self.offline(dir=None, memory=True, queue_bytes=300)
        client.record_many([event("a"), event("b"), event("c")])
        with self.assertRaises(QueueFull):
            client.record("f", 1, timeout=0.1)
        self.assertEqual(client.stats().waiting, 3)
        with self.client(dir=None, memory=True, max_events=2) as client:
            self.fake.then = lambda r: verdicts(r, b={"status": "rejected", "code": "x"})
            client.record_many([event(id) for id in "abcde"])
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual([r.event["eventId"] for r in client.rejected()], ["b"])
            client.acknowledge("b")
            self.assertEqual((client.rejected(), client.stats().accepted), ([], 4))
        self.assertFalse(os.path.exists(self.dir))

    def test_rejected_events_in_memory_count_for_the_bound(self):
        self.fake.then = lambda r: verdicts(r, **{id: {"status": "rejected", "code": "x"} for id in r.ids()})
        client = self.client(dir=None, memory=True, queue_bytes=600)
        client.record_many([event(id) for id in "abc"])
        self.assertEqual(client.flush(20).events, 0)
        with self.assertRaises(QueueFull) as caught:
            client.record_many([event("d")], timeout=0.1)
        self.assertIn("rejected", caught.exception.detail)
        caller = threading.Thread(target=client.record_many, args=([event("e")],), kwargs={"timeout": 20})
        caller.start()
        for id in "abc":
            client.acknowledge(id)
        caller.join(10)
        self.assertFalse(caller.is_alive(), "acknowledge makes space")
        client.flush(20)
        self.assertEqual([r.event["eventId"] for r in client.rejected()], ["e"])
        client.acknowledge("e")
        self.assertEqual(client._refused.memory_bytes, 0)

    def test_an_event_in_memory_that_the_service_cannot_read_is_reported(self):
        self.fake.then = lambda r: problem(400, "malformed_json")
        client = self.client(dir=None, memory=True)
        client.record_many([event("a")])
        client.flush(20)
        self.assertIn('"eventId":"a"', self.wait_error("damaged"))
        self.assertEqual(client._refused.memory_bytes, 0)

    def test_memory_is_read_while_it_is_written(self):
        queue = _memory.MemoryQueue()
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        writer = threading.Thread(target=lambda: [queue.append(b"{}") for _ in range(10_000)])
        writer.start()
        while writer.is_alive():
            queue.read((0, 0), 1000, 1 << 20)


class TakenOver(QueueTest):
    def test_the_queues_of_dead_processes_are_sent_first(self):
        self.make_queue("b", age=10)
        self.make_queue("a", age=20)
        self.make_queue("c", host="elsewhere", age=61)
        gone = self.make_queue("d", age=5)
        os.unlink(os.path.join(gone, "owner"))
        with open(os.path.join(self.make_queue("e", age=1), "owner"), "w") as file:
            file.write("{")
        with self.client() as client:
            client.record_many([event("own")])
            self.assertEqual(client.flush(20).events, 0)
        sent = [e["eventId"] for e, _ in self.verdicts]
        self.assertEqual((sorted(sent), sent[-1]), (["a", "b", "c", "d", "e", "own"], "own"))
        self.assertLess(sent.index("a"), sent.index("b"))
        self.assertEqual(self.queues(), [])

    def test_queues_of_others_are_left_alone(self):
        kept = [self.make_queue("a", tenant="t2"), self.make_queue("b", pid=os.getppid()), self.make_queue("c", host="elsewhere", age=50)]
        other = self.offline()
        other.record("f", 1)
        self.make_queue("own", tenant="t1")
        self.make_queue("any")
        with self.client(tenant="t1") as client:
            client.flush(20)
            self.assertTrue(all(map(os.path.isdir, kept)))
        self.assertEqual({e["eventId"] for e, _ in self.verdicts}, {"own", "any"})
        self.assertEqual(other.stats().waiting, 1)

    def test_a_queue_of_this_process_without_a_client_is_dead(self):
        self.make_queue("a", pid=os.getpid())
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a"])

    def test_what_close_leaves_the_next_client_sends(self):
        with self.offline() as client:
            client.record_many([event("a")])
            self.assertEqual(client.close(0).events, 1)
        self.assertEqual(self.files(self.queues()[0]), ["00000001.seg", "owner"])
        self.assertLess(os.stat(os.path.join(self.dir, self.queues()[0], "owner")).st_mtime, time.time() - 100, "it is dead at once")
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        self.assertEqual(len(self.verdicts), 1)

    def test_a_queue_that_cannot_be_read_holds_nothing_up(self):
        self.make_queue("a")
        self.make_queue("b")
        read, failed = _queue.DiskQueue.read, []

        def fail(queue, *args):
            batch = read(queue, *args)
            if not failed and batch and b'"a"' in batch.events[0]:
                failed.append(queue.path)
                raise OSError(errno.EIO, "disk")
            return batch

        with mock.patch.object(_queue.DiskQueue, "read", fail), self.client() as client:
            client.record_many([event("own")])
            client.flush(20)
            self.assertIn(failed[0], self.wait_error("queue_failed"))
            self.assertEqual({e["eventId"] for e, _ in self.verdicts}, {"b", "own"})
            client._running().sender._looked = -100.0
            client.record_many([event("later")])
            client.flush(20)
        self.assertEqual({e["eventId"] for e, _ in self.verdicts}, {"a", "b", "own", "later"})

    def test_the_cursor_is_read(self):
        ready = threading.Event()
        self.fake.then = lambda r: verdicts(r) if "a" in r.ids() or ready.is_set() else None
        client = self.client(max_events=1)
        client.record_many([event(id) for id in "abc"])
        self.fake.wait(2)
        client.close(0)
        ready.set()
        with self.client() as client:
            client.flush(20)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a", "b", "c"])

    def test_a_client_whose_queue_is_taken_over_begins_another(self):
        client = self.offline()
        client.record_many([event("a")])
        (mine,) = self.queues()
        taken = os.path.join(self.dir, "q-" + "0" * 16)
        os.rename(os.path.join(self.dir, mine), taken)
        with open(os.path.join(taken, "owner"), "w") as file:
            json.dump({"version": 1, "token": "0" * 16, "pid": os.getppid(), "host": socket.gethostname(), "tenant": ""}, file)
        client.record_many([event("b")])
        (new,) = set(self.queues()) - {os.path.basename(taken)}
        self.assertEqual(_queue.DiskQueue(os.path.join(self.dir, new)).read((1, 8), 9, 999).events, [b'{"amount":1,"eventId":"b","feature":"api_calls","timestamp":"2026-11-29T10:00:00Z"}'])
        self.assertEqual(client.stats().waiting, 1)

    def test_a_queue_that_is_taken_over_during_the_sync_is_written_again(self):
        client = self.client(max_age=60)
        client.record_many([event("a")])
        (mine,) = self.queues()
        real = _owner.sync

        def sync(fd):
            real(fd)
            path = os.path.join(self.dir, mine)
            if os.path.isdir(path):
                shutil.rmtree(path)

        with mock.patch.object(_owner, "sync", sync):
            client.record_many([event("b")])
        self.assertEqual(self.stored(), ["b"])
        client.flush(20)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["b"])

    def test_the_writer_outlives_the_loss_of_a_queue_that_it_has_just_written(self):
        client = self.offline(max_age=60)
        client.record_many([event("a")])
        real, p = _owner.is_owner, client._running().pipeline
        with mock.patch.object(_owner, "is_owner", lambda queue: real(queue) and (p.drop(queue), True)[1]):
            client.record_many([event("b")])
        client.record_many([event("c")])
        self.assertEqual(sorted(self.stored()), ["a", "b", "c"])

    def test_a_queue_whose_owner_cannot_be_opened_is_left_alone(self):
        path = self.make_queue("a")
        with mock.patch.object(_owner, "open", side_effect=OSError(errno.EMFILE, "too many open files"), create=True):
            self.assertEqual(_owner.take_over(self.dir, ""), [])
        self.assertEqual(self.queues(), [os.path.basename(path)])

    def test_the_owner_is_renewed(self):
        with mock.patch.object(_owner, "RENEW_SECONDS", 0.02):
            client = self.offline()
            client.record("f", 1)
            owner = os.path.join(self.dir, self.queues()[0], "owner")
            os.utime(owner, (1, 1))
            deadline = time.monotonic() + 20
            while os.stat(owner).st_mtime == 1:
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)

    def test_damage_is_kept_and_reported(self):
        for name in ("damaged-event", "missing-segment", "torn-tail"):
            copy_queue(name, os.path.join(self.dir, name))
            os.rename(os.path.join(self.dir, name, "q-00000000000000aa"), os.path.join(self.dir, "q-" + os.urandom(8).hex()))
        for root, _, files in os.walk(self.dir):
            for name in files:
                os.chmod(os.path.join(root, name), 0o600)
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
            self.assertEqual((client.stats().damaged, client.stats().waiting_bytes), (1, 0))
        self.assertEqual(sorted(e["eventId"] for e, _ in self.verdicts), ["evt_1"] * 3 + ["evt_2"] + ["evt_3"] * 2)
        (name,) = self.files("damaged")
        self.assertRegex(name, r"^[0-9a-f]{16}-1-103\.bin$")
        self.assertEqual(sorted("missing" in d for c, d in self.errors if c == "damaged"), [False, True])
        self.assertEqual(self.queues(), [])


class Processes(QueueTest):
    def test_kill_9_loses_nothing_that_was_confirmed(self):
        program = "\nwhile True: print(client.record('f', 1).event_id, flush=True)"
        confirmed = []
        for _ in range(2):
            with self.run_program(program) as child:
                confirmed += [child.stdout.readline().strip() for _ in range(20)]
                child.send_signal(signal.SIGKILL)
                confirmed += child.stdout.read().split("\n")[:-1]
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        sent = [e["eventId"] for e, _ in self.verdicts]
        self.assertLessEqual(set(confirmed), set(sent))
        self.assertEqual(len(sent), len(set(sent)))
        self.assertEqual(self.errors, [])

    def test_a_process_that_does_not_close_ends_at_once_and_loses_nothing(self):
        self.fake.then = lambda r: threading.Event().wait(30)  # no answer
        program = "\nimport atexit; client.record('f', 1, event_id='a'); atexit.register(client.record, 'f', 1, event_id='b')"
        with self.run_program(program, self.fake.url) as child:
            _, err = child.communicate(timeout=20)
        self.assertEqual(child.returncode, 0)
        self.assertRegex(err, "^unsent: 2 events are not sent; the next client of .* sends them: .*\n$")
        self.assertEqual(self.stored(), ["a", "b"])

    def test_the_end_of_a_program_sends_what_waits(self):
        program = "\nclient.record('f', 1)"
        for dir in ("", None):
            with self.run_program(program, self.fake.url, "late", dir) as child:
                _, err = child.communicate(timeout=20)
            self.assertEqual((child.returncode, err), (0, ""))
        self.assertEqual(len(self.fake.requests), 2)

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_a_child_of_fork_has_a_queue_of_its_own(self):
        program = """
client.record("f", 1, event_id="parent-1")
for n in range(3):
    pid = os.fork()
    if pid == 0:
        client.record("f", 1, event_id=f"child-{n}")
        assert client.stats().waiting >= 1  # it may take over the queue of a dead sibling
        if n == 1: client.close(0)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
client.record("f", 1, event_id="parent-2")
print(client.stats().waiting)
"""
        with self.run_program("\nimport os" + program) as child:
            out, err = child.communicate(timeout=30)
        self.assertEqual(out, "2\n")
        self.assertRegex(err, "^unsent: 2 events .*refused\n$")
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        sent = [e["eventId"] for e, _ in self.verdicts]
        self.assertEqual(sorted(sent), ["child-0", "child-1", "child-2", "parent-1", "parent-2"])

    @unittest.skipUnless(hasattr(os, "fork"), "no fork")
    def test_fork_at_any_moment_of_the_parents_threads(self):
        program = """
import os, threading
stop = threading.Event()
def work():
    while not stop.is_set(): client.record("f", 1)
workers = [threading.Thread(target=work) for _ in range(4)]
for w in workers: w.start()
for n in range(8):
    pid = os.fork()
    if pid == 0:
        client.record("f", 1, event_id=f"child-{n}", timeout=20)
        client.flush(20)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for w in workers: w.join()
client.close(20)
"""
        with self.run_program(program, self.fake.url) as child:
            _, err = child.communicate(timeout=60)
        self.assertEqual((child.returncode, err), (0, ""))
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        sent = [id for r in self.fake.requests for id in r.ids()]
        self.assertEqual(len({id for id in sent if id.startswith("child")}), 8)

    def test_two_processes_share_a_directory(self):
        program = "\nclient.record_many([{'feature': 'f', 'amount': 1}] * 50); client.close(20)"
        children = [self.run_program(program, self.fake.url) for _ in range(2)]
        for child in children:
            _, err = child.communicate(timeout=30)
            self.assertEqual((child.returncode, err), (0, ""))
        self.assertEqual(len({id for r in self.fake.requests for id in r.ids()}), 100)
        self.assertEqual(self.queues(), [])

    def test_flush_ends_while_others_record(self):
        done = threading.Event()
        client = self.client(on_verdict=lambda e, v: done.is_set() or client.record("f", 1))  # something always waits
        client.record("f", 1)
        begun = time.monotonic()
        client.flush(60)
        self.assertLess(time.monotonic() - begun, 50)
        done.set()


class Closing(QueueTest):
    def test_close_ends_a_request_in_progress(self):
        release = threading.Event()
        self.addCleanup(release.set)
        self.fake.then = lambda r: verdicts(r) if release.wait(30) else None
        client = self.client()
        self.fake.replies = [verdicts]
        client.record("f", 1)
        client.flush(20)  # the next request is on a connection that is kept
        client.record("f", 1)
        self.fake.wait(2)
        begun, threads = time.monotonic(), client._running().threads
        self.assertEqual(client.close(0.1).events, 1)
        self.assertFalse([thread for thread in threads if thread.is_alive()])
        self.assertLess(time.monotonic() - begun, 10)
        self.assertIn("owner", self.files(self.queues()[0]))

    def test_close_removes_no_queue_that_is_being_written(self):
        for slow in ("sync", "is_owner"):
            with self.subTest(slow):
                client = self.client(max_age=60, dir=f"{self.dir}-{slow}")
                client.record("f", 1)
                client.flush(20)
                closed, writes, recorded, real = threading.Event(), threading.Event(), [], getattr(_owner, slow)

                def wait(of):
                    found = real(of)
                    writes.set()
                    closed.wait(20)
                    return found

                def work():
                    try:
                        recorded.append(client.record("f", 1).event_id)
                    except MeterplexError as e:
                        recorded.append(e.code)

                with mock.patch.object(_owner, slow, wait), mock.patch.object(_client, "END_SECONDS", 0.05):
                    caller = threading.Thread(target=work)
                    caller.start()
                    self.assertTrue(writes.wait(20))
                    threads = client._running().threads
                    client.close(0)
                    closed.set()
                    for thread in (caller, *threads):
                        thread.join(20)
                self.dir = client._settings.dir
                self.assertEqual(self.stored(), recorded, "what record has confirmed is in the queue")
                with self.client(dir=self.dir) as client:
                    self.assertEqual(client.flush(20).events, 0)
                self.assertIn(recorded[0], [e["eventId"] for e, _ in self.verdicts], "and the next client sends it at once")

    def test_a_late_caller_learns_that_its_event_is_not_stored(self):
        client = self.offline(queue_bytes=1)
        _, tickets = client.submit([event("a")])
        client.close(0)
        with self.assertRaises(MeterplexError) as caught:
            client.give_up([], tickets)
        self.assertEqual(caught.exception.code, "closed")
        self.assertEqual(self.stored(), [])

    def test_queues_that_are_taken_over_during_close_are_given_up(self):
        self.make_queue("a")
        looks, closed, real = threading.Event(), threading.Event(), _owner.take_over

        def take_over(*args):
            looks.set()
            closed.wait(20)
            return real(*args)

        with mock.patch.object(_owner, "take_over", take_over), mock.patch.object(_client, "END_SECONDS", 0.05):
            client = self.client()
            self.assertTrue(looks.wait(20))
            threads = client._running().threads
            client.close(0)
            closed.set()
            for thread in threads:
                thread.join(20)
        with self.client() as client:
            self.assertEqual(client.flush(20).events, 0)
        self.assertEqual([e["eventId"] for e, _ in self.verdicts], ["a"])

    def test_callers_of_record_end_with_the_client(self):
        client = self.offline(queue_bytes=100)
        client.record_many([event("a")])
        failed = []

        def work():
            try:
                client.record("f", 1, timeout=None)
            except MeterplexError as e:
                failed.append(e.code)

        caller = threading.Thread(target=work)
        caller.start()
        caller.join(0.1)
        client.close(0)
        caller.join(20)
        self.assertEqual(failed, ["closed"])
