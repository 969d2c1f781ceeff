"""The queues of a client in this process, and what the writer and the sender share: one lock, which neither holds while it waits for a
disk or a network."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import _owner
from ._events import Verdict
from ._queue import HEADER, Batch, Position
from ._refused import Refused
from .errors import MeterplexError, QueueFull, UnknownOutcome

log = logging.getLogger("meterplex")

PATIENCE_SECONDS = 1.0  # for a write in progress, after the deadline of its caller


@dataclass(frozen=True)
class Remaining:
    """Events that wait: their number, and the age of the oldest in seconds (0: none)."""

    events: int
    oldest: float


@dataclass
class Stats:
    """What a client in this process has done, and what waits."""

    waiting: int = 0
    waiting_bytes: int = 0
    oldest: float = 0.0  # seconds
    accepted: int = 0
    duplicates: int = 0
    conflicts: int = 0
    rejected: int = 0
    damaged: int = 0
    last_error: str = ""


@dataclass
class Settings:
    """The options of a client."""

    dir: str | None
    tenant: str
    fsync: bool
    max_events: int
    max_bytes: int
    max_age: float
    queue_bytes: int
    timeout: float
    longest_wait: float
    key_wait: float
    warn_age: float
    on_verdict: Callable[[dict[str, Any], Verdict], object]
    on_error: Callable[[str, str], object]

    def report(self, code: str, detail: str) -> None:
        """Report an error to the handler; one of the handler is logged."""
        try:
            self.on_error(code, detail)
        except Exception:
            log.exception("on_error failed")


class Queue(Protocol):
    """A queue of events, on the disk or in memory."""

    added: int
    finished: int
    waiting_bytes: int
    position: Position

    @property
    def waiting(self) -> int: ...

    def read(self, position: Position, max_events: int, max_bytes: int) -> Batch | None: ...

    def advance(self, position: Position, events: int) -> None: ...


@dataclass(eq=False)
class Ticket:
    """Events that a caller of record waits for: they are written together."""

    pipeline: Pipeline
    events: list[bytes]
    size: int  # bytes of the records
    future: Future[None] = field(default_factory=Future)

    def settle(self, error: MeterplexError | None) -> None:
        """End the caller's wait, unless it has been cancelled."""
        try:
            if error is None:
                self.future.set_result(None)
            else:
                self.future.set_exception(error)
        except InvalidStateError:
            pass


class Pipeline:
    """The state that callers, the writer and the sender share. One lock guards all of it."""

    def __init__(self, settings: Settings, refused: Refused) -> None:
        self.settings = settings
        self.refused = refused
        lock = threading.RLock()  # with Lock, record in a handler of a signal could hang for ever
        self.to_write = threading.Condition(lock)  # the writer waits for it
        self.changed = threading.Condition(lock)  # the sender and flush wait for it
        self.pending: deque[Ticket] = deque()
        self.write_error: Exception | None = None  # of the last write
        self.taken: list[Any] = []  # DiskQueues, the oldest first
        self.own: Any = None  # the queue that the writer appends to
        self.first_waiting = 0.0  # when the oldest event that the sender has not read was recorded
        self.looked = False  # for queues of dead processes
        self.flushing = 0
        self.stopping = False
        self.stats = Stats()

    @property
    def queues(self) -> list[Any]:
        """The queues in the order in which they are sent."""
        return [*self.taken, *([self.own] if self.own is not None else [])]

    @property
    def waiting_bytes(self) -> int:
        return sum(q.waiting_bytes for q in self.queues)

    def due(self) -> bool:
        """Report whether the next batch of the own queue is sent now, whatever its age. The caller holds the lock."""
        s, own = self.settings, self.own
        return own is not None and bool(self.flushing or own.waiting >= s.max_events or own.waiting_bytes >= s.max_bytes)

    def submit(self, events: list[bytes]) -> Ticket:
        """Give events to the writer."""
        ticket = Ticket(self, events, sum(HEADER + len(event) for event in events))
        with self.to_write:
            if self.stopping:
                raise MeterplexError("closed", "the client is closed")
            self.pending.append(ticket)
            self.to_write.notify()
        return ticket

    def notify(self) -> None:
        """Wake all threads. The caller holds the lock."""
        self.to_write.notify()
        self.changed.notify_all()

    def give_up(self, ticket: Ticket) -> BaseException | None:
        """Return the error of a caller whose deadline is over; None: the events are durable. A write in progress has a little longer."""
        patience = time.monotonic() + PATIENCE_SECONDS
        while True:
            with self.changed:
                if ticket.future.done():
                    return None if ticket.future.cancelled() else ticket.future.exception()
                if ticket in self.pending:
                    self.pending.remove(ticket)
                    return self._refusal()
            if time.monotonic() >= patience:
                return UnknownOutcome("unknown_outcome", "the disk did not answer; the event may be in the queue")
            time.sleep(0.02)

    def _refusal(self) -> MeterplexError:
        error = self.write_error
        if error is None:
            kept = self.refused.memory_bytes
            rest = f", and {kept} of rejected events that are not acknowledged" if kept else ""
            return QueueFull("queue_full", f"the queue held {self.waiting_bytes} bytes{rest} until the deadline; the event was not stored")
        if isinstance(error, OSError) and error.errno in _owner.DISK_FULL:
            return QueueFull("queue_full", f"{error}; the event was not stored")
        return MeterplexError("queue_failed", f"{error}; the event was not stored")

    def drop(self, queue: Any) -> None:
        """Forget a queue: it is empty, or another client has taken it over and sends its events."""
        _owner.held.discard(queue.token)
        with self.changed:
            if queue is self.own:
                self.own = None
            elif queue in self.taken:
                self.taken.remove(queue)
            self.notify()

    def flush(self, deadline: float) -> None:
        """Wait until the events that wait now have their verdicts, or a deadline (time.monotonic)."""
        with self.changed:
            self.flushing += 1
            self.changed.notify_all()
            try:
                self._wait(lambda: self.looked, deadline)
                targets = [(q, q.added) for q in self.queues]
                self._wait(lambda: not any(q.finished < n and q in self.queues for q, n in targets), deadline)
            finally:
                self.flushing -= 1

    def _wait(self, done: Callable[[], bool], deadline: float) -> None:
        self.changed.wait_for(lambda: done() or self.stopping, max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            for ticket in self.pending:
                ticket.settle(MeterplexError("closed", "the client was closed before the event was stored"))
            self.pending.clear()
            self.notify()
