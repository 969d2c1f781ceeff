"""The writer: one thread that appends events to the client's queue. Concurrent callers share a write and a sync."""

from __future__ import annotations

import os
import time

from . import _owner
from ._memory import MemoryQueue
from ._pipeline import Pipeline, Ticket, log
from ._queue import MAGIC, SEGMENT_BYTES, DiskQueue, record

GROUP_BYTES = 1 << 20  # of events that share a sync
PAUSE_SECONDS = 0.1  # after an error of the disk


class Writer:
    """Writes what callers submit, and renews the owners of the client's queues."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._p = pipeline
        self._queue: DiskQueue  # p.own, unless that is None
        self._fd = -1  # the segment that is written
        self._segment = self._offset = 0
        self._renewed = 0.0

    def run(self) -> None:
        """Run until the pipeline stops. Then only give the queue up: while an event is being written, nobody else may remove its queue."""
        while (group := self._next()) is not None:
            self._renew()
            if group:
                self._write(group)
        self._close()
        self._p.stop()  # events that are pending again
        if self._p.settings.dir is not None and self._p.own is not None:
            _owner.release(self._p.own, remove=True)

    def _next(self) -> list[Ticket] | None:
        """Wait for events, or for the time to renew the owners. None: the pipeline stops."""
        p = self._p
        with p.changed:
            while not p.stopping:
                group = self._fitting()
                due = self._renewed + _owner.RENEW_SECONDS - time.monotonic()
                holds = p.settings.dir is not None and bool(p.queues)
                if group or holds and due <= 0:
                    return group
                p.to_write.wait(due if holds else None)
        return None

    def _fitting(self) -> list[Ticket]:
        """Take the pending events that the bound of the queue allows, in order."""
        p, group, size = self._p, [], 0
        room = p.settings.queue_bytes - p.waiting_bytes - p.refused.memory_bytes
        while p.pending and size < GROUP_BYTES:
            if p.pending[0].future.cancelled():
                p.pending.popleft()
                continue
            size += p.pending[0].size
            if size > room:
                break
            group.append(p.pending.popleft())
        return group

    def _renew(self) -> None:
        if time.monotonic() - self._renewed < _owner.RENEW_SECONDS or self._p.settings.dir is None:
            return
        self._renewed = time.monotonic()
        with self._p.changed:
            queues = self._p.queues
        for queue in queues:
            try:
                _owner.renew(queue)
            except FileNotFoundError:
                self._p.drop(queue)
            except OSError as e:
                self._p.settings.report("queue_failed", f"the owner of {queue.path} cannot be renewed: {e}")

    def _write(self, group: list[Ticket]) -> None:
        """Store a group and confirm it to its callers; if it is not stored, it is pending again."""
        p = self._p
        if p.settings.dir is None:
            with p.changed:
                p.own = p.own or MemoryQueue()
                for event in _events(group):
                    p.own.append(event)
                self._confirm(group)
            return
        try:
            stored = self._append(group)
        except Exception as e:
            self._abandon()
            with p.changed:
                p.write_error = e
                p.pending.extendleft(reversed(group))
                p.stats.last_error = f"queue_failed: {e}"
                p.to_write.wait(PAUSE_SECONDS)
            return
        with p.changed:
            p.write_error = None
            if not stored:  # the queue was taken over while this process was frozen
                p.pending.extendleft(reversed(group))
                return
            queue = self._queue
            queue.end = (self._segment, self._offset)
            queue.added += len(_events(group))
            queue.waiting_bytes += sum(ticket.size for ticket in group)
            self._confirm(group)

    def _confirm(self, group: list[Ticket]) -> None:
        """Return to the callers; wake the sender if it may have to send."""
        p = self._p
        if not p.first_waiting or p.due():
            p.first_waiting = p.first_waiting or time.monotonic()
            p.changed.notify_all()
        for ticket in group:
            ticket.settle(None)

    def _append(self, group: list[Ticket]) -> bool:
        """Append records and sync them. False: the queue belongs to another client."""
        if self._p.own is None:
            self._begin()
        data: list[bytes] = []
        new, end = self._fd < 0, self._offset
        for event in _events(group):
            if self._fd < 0 or end >= SEGMENT_BYTES:
                self._store(data)
                self._open()
                data, end, new = [], self._offset, True
            data.append(record(event))
            end += len(data[-1])
        self._store(data)
        if new and self._p.settings.fsync:
            _owner.sync_folder(self._queue.path)
        if _owner.is_owner(self._queue):
            return True
        self._p.drop(self._queue)
        return False

    def _begin(self) -> None:
        """Begin a queue: the first one, or after the last one was taken over."""
        self._close()
        self._segment = 0
        self._queue = _owner.begin(str(self._p.settings.dir), self._p.settings.tenant, (0, 0))
        self._renewed = time.monotonic()
        with self._p.changed:
            self._p.own = self._queue

    def _store(self, data: list[bytes]) -> None:
        """Write and sync records at the end of the segment."""
        if not data:
            return
        rest = memoryview(b"".join(data))
        while rest:
            written = os.pwrite(self._fd, rest, self._offset)
            self._offset += written
            rest = rest[written:]
        if self._p.settings.fsync:
            _owner.sync(self._fd)

    def _open(self) -> None:
        """Begin a segment."""
        self._close()
        self._fd = os.open(self._queue.segment(self._segment + 1), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._segment += 1
        self._offset = os.pwrite(self._fd, MAGIC, 0)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def forget(self) -> None:
        """Close the file in a child of fork."""
        self._close()

    def _abandon(self) -> None:
        """Cut off what is not confirmed. The next write begins a segment: what a failed sync left in this one is not known."""
        self._close()
        if self._p.own is None:
            return
        confirmed, end = self._queue.end or (0, 0)
        try:
            for number in range(confirmed + 1, self._segment + 1):
                os.unlink(self._queue.segment(number))
            self._segment = confirmed
            if confirmed:
                os.truncate(self._queue.segment(confirmed), end)
        except OSError as e:
            log.warning("the rest of a failed write stays in %s: %s", self._queue.path, e)


def _events(group: list[Ticket]) -> list[bytes]:
    return [event for ticket in group for event in ticket.events]
