"""The client."""

from __future__ import annotations

import atexit
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple

from . import _owner
from ._events import Event, Verdict, canonical, complete, format_time, parse_time
from ._http import Http
from ._limits import Limits, Known
from ._pipeline import Pipeline, Remaining, Settings, Stats, Ticket, log
from ._queue import HEADER
from ._reads import Reads
from ._refused import Refused, Rejected
from ._sender import Sender, age_of
from ._writer import Writer
from .errors import MeterplexError, UnknownOutcome


TOGETHER = 1000  # events of record_many that are written together
END_SECONDS = 1.0  # for which close waits for a thread to end
AT_EXIT, AT_EXIT_MEMORY = 1.0, 5.0  # seconds for which the end of a program waits for events to be sent, with and without files


class Recorded(NamedTuple):
    """The id and the time under which an event was recorded."""

    event_id: str
    timestamp: str


class _Running(NamedTuple):
    pipeline: Pipeline
    writer: Writer
    sender: Sender
    threads: tuple[threading.Thread, threading.Thread]


def log_verdict(event: dict[str, Any], verdict: Verdict) -> None:
    """Log an event that is not counted."""
    if not verdict.counted:
        log.warning("not counted: %s %s: %s: %s. %s", verdict.event_id, verdict.status, verdict.code, verdict.reason, verdict.remedy)


def log_error(code: str, detail: str) -> None:
    """Log an error of the sender."""
    log.warning("%s: %s", code, detail)


class Client(Limits, Reads):
    """Sends usage of one tenant, and asks its limits. It reads no environment, and its threads keep no process alive.

    url: of the service, e.g. https://meterplex.example.com; a path in front of /api/v1 stays
    key: a key of the tenant, mp_live_…
    dir: the folder of the queue, one for each tenant; None only with memory=True
    tenant: names the owner of the queue; a client of another tenant does not send its events
    durability: "fsync", or "os": events survive the end of the process, but not that of the machine
    memory: no files; events end with the process
    max_events, max_bytes, max_age: a batch is sent at 1,000 events, 1 MiB, or when its oldest event is 1 s old
    queue_bytes: bound of the queue (1 GiB); record then waits until its timeout
    ca: a file of certificates that replace those of the system
    policy: "allow" or "deny", the result of check without an answer
    check_timeout, max_stale: seconds within which check answers, and for which its last answer is used
    timeout: seconds for one attempt of a request
    on_verdict(event, verdict): called by the sender's thread for each verdict, at least once; the default logs those not counted
    on_error(code, detail): called for errors of the sender; the default logs them

    A program that ends without close waits for at most 1 s (without files 5 s) for what is not sent.
    """

    def __init__(
        self,
        url: str,
        key: str,
        dir: str | os.PathLike[str] | None,
        *,
        tenant: str = "",
        durability: str = "fsync",
        memory: bool = False,
        max_events: int = 1000,
        max_bytes: int = 1 << 20,
        max_age: float = 1.0,
        queue_bytes: int = 1 << 30,
        ca: str | None = None,
        policy: str = "deny",
        check_timeout: float = 0.5,
        max_stale: float = 60.0,
        timeout: float = 30.0,
        longest_wait: float = 60.0,
        key_wait: float = 60.0,
        warn_age: float = 6 * 86400.0,
        on_verdict: Callable[[dict[str, Any], Verdict], object] = log_verdict,
        on_error: Callable[[str, str], object] = log_error,
    ) -> None:
        if memory == (dir is not None):
            raise MeterplexError("invalid_argument", "give a dir for the queue, or memory=True and dir=None")
        if durability not in ("fsync", "os") or policy not in ("allow", "deny"):
            raise MeterplexError("invalid_argument", 'durability must be "fsync" or "os", policy "allow" or "deny"')
        if not 1 <= max_events <= 1000 or not 1 <= max_bytes <= 1 << 20:
            raise MeterplexError("invalid_argument", "max_events must be 1 to 1000, max_bytes 1 to 1048576")
        folder = None if dir is None else os.path.abspath(os.fspath(dir))
        self._settings = Settings(
            folder, tenant, durability == "fsync", max_events, max_bytes, max_age, queue_bytes, timeout, longest_wait, key_wait, warn_age, on_verdict, on_error
        )
        self._http = Http(url, key, ca)
        self._attempt, self._check_timeout, self._allow = timeout, check_timeout, policy == "allow"
        self._known = Known(max_stale)
        self._refused = Refused(folder)
        if folder is not None:
            _check_folder(folder)
        self._guard = threading.RLock()
        self._closed = False
        self._run: _Running | None = None
        _clients.add(self)
        self._running()

    def _running(self) -> _Running:
        """Return the running threads of this process; a child of fork starts its own."""
        with self._guard:
            if self._closed:
                raise MeterplexError("closed", "the client is closed")
            if self._run is None:
                pipeline = Pipeline(self._settings, self._refused)
                writer, sender = Writer(pipeline), Sender(pipeline, self._http)
                threads = tuple(threading.Thread(target=part.run, name=name, daemon=True) for part, name in ((writer, "meterplex-writer"), (sender, "meterplex-sender")))
                for thread in threads:
                    thread.start()
                self._run = _Running(pipeline, writer, sender, (threads[0], threads[1]))
            return self._run

    def record(
        self,
        feature: str,
        amount: int | None = None,
        *,
        event_id: str | None = None,
        timestamp: str | datetime | None = None,
        metadata: Mapping[str, Any] | None = None,
        type: str = "usage",
        correction_ref: str | None = None,
        timeout: float | None = 10.0,
    ) -> Recorded:
        """Store an event in the queue, and return once it is durable there; the sender sends it.

        feature, amount: what was used; an int from 1 to 9007199254740991
        event_id: the same id counts once, whatever the number of calls (default: random)
        timestamp: an aware datetime or RFC 3339 (default: now)
        type, correction_ref: "correction" or "retraction" of the usage with the eventId correction_ref
        timeout: seconds for which it waits for space in a full queue; None: for ever

        InvalidEvent: nothing was stored; code is the service's. QueueFull: nothing was stored.
        """
        event = event_of(feature, amount, event_id, timestamp, metadata, type, correction_ref)
        return self.record_many([event], timeout=timeout)[0]

    def record_many(self, events: Iterable[Event], *, timeout: float | None = 10.0) -> list[Recorded]:
        """Store events, with the names of the API, under one sync. If one is invalid, none is stored.

        After another error repeat the call: events with an eventId and a timestamp count once.
        """
        made, tickets = self.submit(events)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            for ticket in tickets:
                ticket.future.result(None if deadline is None else max(0.0, deadline - time.monotonic()))
        except FutureTimeout:
            self.give_up(made, tickets)
        return made

    def submit(self, events: Iterable[Event]) -> tuple[list[Recorded], list[Ticket]]:
        """Give events to the writer. The future of each ticket ends once its events are durable."""
        whole = [complete(event) for event in events]
        encoded = [canonical(event) for event in whole]
        pipeline = self._running().pipeline
        made = [Recorded(event["eventId"], format_time(parse_time(event["timestamp"]))) for event in whole]
        return made, [pipeline.submit(encoded[n : n + TOGETHER]) for n in range(0, len(encoded), TOGETHER)]

    def give_up(self, made: list[Recorded], tickets: list[Ticket]) -> None:
        """Raise the error of a caller that waits no longer, unless its events are durable. What is not written yet will not be."""
        errors = [error for ticket in tickets if (error := ticket.pipeline.give_up(ticket)) is not None]
        if errors:
            if isinstance(errors[0], UnknownOutcome):
                errors[0].id = made[0].event_id
            raise errors[0]

    def flush(self, timeout: float = 30.0) -> Remaining:
        """Send what waits now, for at most timeout seconds, and return what remains."""
        pipeline = self._running().pipeline
        pipeline.flush(time.monotonic() + timeout)
        return self._remaining(pipeline)

    def close(self, timeout: float = 5.0) -> Remaining:
        """Send what waits, for at most timeout seconds, and end. The next client of the directory sends what remains."""
        with self._guard:
            run, self._run, self._closed = self._run, None, True
        _clients.discard(self)
        if run is None:
            self._http.close()
            return Remaining(0, 0.0)
        run.pipeline.flush(time.monotonic() + timeout)
        run.pipeline.stop()
        self._http.abort()
        for thread in run.threads:
            thread.join(END_SECONDS)  # if a slow disk or a handler holds it, it gives its queues up later
        return self._remaining(run.pipeline)

    def _remaining(self, pipeline: Pipeline) -> Remaining:
        with pipeline.changed:
            queues = [(q, q.position, q.waiting) for q in pipeline.queues if q.waiting]
        oldest = 0.0
        for queue, position, _ in queues:
            try:
                batch = queue.read(position, 1, HEADER)
            except OSError:
                continue  # sent, or taken over, meanwhile
            for event in batch.events if batch else ():
                oldest = max(oldest, age_of(event))
        return Remaining(sum(n for _, _, n in queues), oldest)

    def stats(self) -> Stats:
        """Return what this client has done in this process, and what waits."""
        pipeline = self._running().pipeline
        remaining = self._remaining(pipeline)
        with pipeline.changed:
            return replace(pipeline.stats, waiting=remaining.events, waiting_bytes=pipeline.waiting_bytes, oldest=remaining.oldest)

    def rejected(self) -> list[Rejected]:
        """Return the events that the service did not count, until they are acknowledged."""
        return self._refused.rejected()

    def acknowledge(self, event_id: str) -> None:
        """Forget the rejected events with this id."""
        self._refused.acknowledge(event_id)
        with self._guard:
            run = self._run
        if run is not None:
            with run.pipeline.to_write:
                run.pipeline.to_write.notify()  # in memory this makes space

    def set_key(self, key: str) -> None:
        """Use another key; what waited for it is sent at once."""
        self._http.set_key(key)
        with self._guard:
            run = self._run
        if run is not None:
            with run.pipeline.changed:
                run.sender.key_changed = True
                run.pipeline.changed.notify_all()

    def report(self, error: MeterplexError) -> None:
        """Report an error to on_error."""
        self._settings.report(error.code, error.detail)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._guard:
            run = self._run
        left = self.close()
        if run is not None:
            self._unsent(left, run.pipeline)

    def _unsent(self, left: Remaining, pipeline: Pipeline) -> None:
        """Report what a program leaves that does not ask."""
        if left.events:
            folder, reason = self._settings.dir, pipeline.stats.last_error or "there was no time"
            then = f"the next client of {folder} sends them" if folder else "they end with this process"
            self._settings.report("unsent", f"{left.events} events are not sent; {then}: {reason}")

    def _forked(self) -> None:
        """Begin again in a child of fork: the queue, the threads and the connections are its parent's."""
        self._guard = threading.RLock()
        run, self._run = self._run, None
        self._refused, self._known = Refused(self._settings.dir), Known(self._known.max_stale)
        self._http.forget()
        if run is not None:
            run.writer.forget()


def event_of(
    feature: str, amount: int | None, event_id: str | None, timestamp: str | datetime | None, metadata: Mapping[str, Any] | None, type: str, correction_ref: str | None
) -> Event:
    """Return an event with the members that are given."""
    members = {"feature": feature, "amount": amount, "eventId": event_id, "timestamp": timestamp, "metadata": metadata, "type": type, "correctionRef": correction_ref}
    return {name: value for name, value in members.items() if value is not None}  # type: ignore[return-value]


def _check_folder(folder: str) -> None:
    """Make the folder of the queues; MeterplexError if it cannot be made or written. On a full disk record waits for space."""
    try:
        _owner.make_folder(folder)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    except OSError as e:
        if e.errno not in _owner.DISK_FULL:
            raise MeterplexError("queue_failed", f"the folder of the queue cannot be used: {e}") from e


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    _owner.held.clear()
    for client in list(_clients):
        client._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def _at_exit() -> None:
    """Send, in a short time, what clients that nobody has closed hold; without files it would be lost."""
    begun = time.monotonic()
    for client in list(_clients):
        run = client._run
        if run is not None:
            run.pipeline.flush(begun + (AT_EXIT_MEMORY if client._settings.dir is None else AT_EXIT))
            client._unsent(client._remaining(run.pipeline), run.pipeline)
