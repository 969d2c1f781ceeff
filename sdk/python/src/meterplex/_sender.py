"""The sender: one thread that sends the events of the client's queues in order, and acts on each answer as sdk/queue.md says."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from typing import Any

from . import _owner
from ._codes import REMEDIES
from ._events import Verdict, parse_time
from ._http import Answer, Http, NoAnswer
from ._pipeline import Pipeline, log
from ._queue import HEADER, Batch, DiskQueue, Position

FIRST_WAIT = 0.5  # seconds, doubled after each attempt
WARN_EVERY = 3600.0  # seconds between warnings of old events


class Sender:
    """Sends batches until the pipeline stops."""

    def __init__(self, pipeline: Pipeline, http: Http) -> None:
        self._p, self._http, self._refused = pipeline, http, pipeline.refused
        self._looked = -_owner.LOOK_SECONDS
        self._failing = 0.0  # when the present outage began; 0: none
        self._attempt = 0  # in the present outage
        self._reported = False  # the present outage
        self._told = False  # that the disk fails
        self._warned = -WARN_EVERY
        self.key_changed = False

    def run(self) -> None:
        """Run until the pipeline stops."""
        while not self._p.stopping:
            try:
                queue = self._next()
                if queue is not None:
                    self._serve(queue)
            except Exception as e:  # a disk that fails; the events stay where they are
                log.debug("sender", exc_info=True)
                self._fail(f"{type(e).__name__}: {e}", None)
        for queue in self._p.taken:
            _owner.release(queue, remove=False)

    def _look(self) -> None:
        """Take over the queues of dead processes."""
        p, s = self._p, self._p.settings
        if time.monotonic() - self._looked < _owner.LOOK_SECONDS and p.looked:
            return
        taken: list[DiskQueue] = []
        if s.dir is not None:
            try:
                taken = _owner.take_over(s.dir, s.tenant, s.report)
            except OSError as e:
                s.report("queue_failed", f"{s.dir} cannot be read: {e}")
            for queue in p.queues:
                try:
                    if not queue.saved:
                        self._move(queue, queue.position)
                except FileNotFoundError:
                    p.drop(queue)  # another client has it
        self._looked = time.monotonic()
        with p.changed:
            p.taken += taken
            p.looked = True
            p.notify()

    def _next(self) -> Any:
        """Wait for a queue with a batch to send; None: the pipeline stops."""
        p = self._p
        while not p.stopping:
            self._look()
            with p.changed:
                if p.stopping:
                    return None
                if p.taken:
                    return p.taken[0]
                wait = self._looked + _owner.LOOK_SECONDS - time.monotonic() if p.settings.dir is not None else None
                if p.own is not None and p.own.waiting:
                    age = p.first_waiting + p.settings.max_age - time.monotonic()
                    if p.due() or age <= 0:
                        return p.own
                    wait = age if wait is None else min(wait, age)
                if wait is None or wait > 0:
                    p.changed.wait(wait)
        return None

    def _serve(self, queue: Any) -> None:
        """Send one batch of a queue."""
        p = self._p
        with p.changed:
            added, waiting, since = queue.added, queue.waiting, p.first_waiting
            if queue is p.own:
                p.first_waiting = 0.0
        try:
            batch = queue.read(queue.position, p.settings.max_events, p.settings.max_bytes)
            if batch is None:
                self._end(queue, added)
                return
            with p.changed:
                if queue is p.own and len(batch.events) < waiting:
                    p.first_waiting = since
            if not self._keep_damages(queue, batch):
                return
            if batch.events:
                self._send(queue, batch)
            else:
                self._advance(queue, batch, [])
        except FileNotFoundError:
            p.drop(queue)  # another client has taken it over
        except OSError as e:
            if queue is p.own:
                raise
            p.drop(queue)  # its events stay there; the next look takes it over again
            p.settings.report("queue_failed", f"the queue {queue.path} waits: {e}")

    def _end(self, queue: Any, added: int) -> None:
        """Nothing more can be read: remove a queue that was taken over."""
        p = self._p
        with p.changed:
            queue.finished = max(queue.finished, added)
            if not queue.waiting:
                queue.waiting_bytes = 0
            p.notify()
        if queue in p.taken:
            queue.remove()
            p.drop(queue)

    def _keep_damages(self, queue: Any, batch: Batch) -> bool:
        """Keep and report the bytes that are no records. False: the pipeline stops."""
        for damage in batch.damages:
            if damage.bytes:
                if not self._keep(partial(self._refused.damage, queue.token, damage)):
                    return False
                self._p.stats.damaged += 1
                detail = f"{len(damage.bytes)} bytes at {damage.offset} of segment {damage.segment} of queue {queue.token} are no record; moved to damaged/"
            else:
                detail = f"segment {damage.segment} of queue {queue.token} is missing"
            self._p.settings.report("damaged", detail)
        return True

    def _keep(self, write: Callable[[], None]) -> bool:
        """Write what must be kept before the cursor moves behind it, until the disk takes it. False: the pipeline stops."""
        while not self._p.stopping:
            try:
                write()
                self._told, self._attempt = False, 0
                return True
            except OSError as e:
                self._tell(f"what was not counted cannot be kept, so that sending waits: {e}")
                self._back_off()
        return False

    def _tell(self, detail: str) -> None:
        """Report once that the disk fails."""
        self._p.stats.last_error = "queue_failed: " + detail
        if not self._told:
            self._told = True
            self._p.settings.report("queue_failed", detail)

    def _send(self, queue: Any, batch: Batch) -> bool:
        """Send events until each has a final verdict. False: the pipeline stops."""
        events = [_decode(event) for event in batch.events]
        ids = [event.get("eventId") for event in events]
        body = gzip.compress(b'{"events":[' + b",".join(batch.events) + b"]}", 6, mtime=0)
        while not self._p.stopping:
            self._look()
            self._warn(events)
            answer, reason = self._exchange(body)
            verdicts = _verdicts(answer, ids) if answer is not None else None
            if verdicts is not None:
                self._recover()
                return self._finish(queue, batch, events, verdicts)
            if answer is not None and answer.status in (401, 403):
                self._refuse_key(answer)
                continue
            if answer is not None and answer.status not in (408, 429) and answer.status < 500:
                if len(ids) > 1:
                    half = len(ids) // 2
                    return self._send(queue, batch.part(0, half)) and self._send(queue, batch.part(half, len(ids)))
                problem = answer.problem()
                if problem is not None and answer.status not in (404, 405):
                    self._recover()
                    return self._damage(queue, batch, ids[0], problem)
            self._fail(reason, answer)
        return False

    def _exchange(self, body: bytes) -> tuple[Answer | None, str]:
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        if self._failing and time.monotonic() - self._failing >= self._p.settings.longest_wait:
            headers["Meterplex-Replay"] = "offline"
        try:
            answer = self._http.request("POST", "/api/v1/usage/events", body, headers, self._p.settings.timeout)
        except NoAnswer as e:
            return None, str(e)
        problem = answer.problem()
        return answer, f"{problem['code']}: {problem.get('detail', '')}" if problem else f"status {answer.status}, not of the service"

    def _recover(self) -> None:
        self._failing, self._attempt, self._reported = 0.0, 0, False

    def _fail(self, reason: str, answer: Answer | None) -> None:
        """Wait before the next attempt; report an outage once."""
        s, now = self._p.settings, time.monotonic()
        self._failing = self._failing or now
        self._p.stats.last_error = "unavailable: " + reason
        if now - self._failing >= s.longest_wait and not self._reported:
            self._reported = True
            s.report("unavailable", f"no event could be sent for {now - self._failing:.0f} s; events wait in the queue: {reason}")
        self._back_off(answer.retry_after() if answer is not None else 0.0)

    def _back_off(self, least: float = 0.0) -> None:
        """Wait before the next attempt, longer after each; a flush ends the wait, but not the least one."""
        most = min(self._p.settings.longest_wait, FIRST_WAIT * 2 ** min(self._attempt, 30))
        self._attempt += 1
        self._pause(least, flush=False)
        self._pause(random.uniform(0, most) - least)

    def _refuse_key(self, answer: Answer) -> None:
        """The key is refused: keep all events, and wait for another one."""
        problem = answer.problem() or {"code": "unauthenticated" if answer.status == 401 else "forbidden", "detail": f"status {answer.status}"}
        self._p.stats.last_error = f"{problem['code']}: {problem.get('detail', '')}"
        self._p.settings.report(problem["code"], f"{problem.get('detail', '')}; events wait in the queue: set_key sends them at once")
        with self._p.changed:
            self._p.changed.wait_for(lambda: self.key_changed or self._p.stopping, self._p.settings.key_wait)
            self.key_changed = False

    def _pause(self, seconds: float, flush: bool = True) -> None:
        """Wait; a new key ends the wait, and so does a flush, if it may."""
        p = self._p
        if seconds <= 0:
            return
        with p.changed:
            begun = p.flushing
            p.changed.wait_for(lambda: p.stopping or self.key_changed or flush and p.flushing > begun, seconds)
            self.key_changed = False

    def _warn(self, events: list[dict[str, Any]]) -> None:
        """Report, at most once an hour, that events become too old for the service."""
        oldest = max((age_of(event) for event in events), default=0.0)
        if oldest > self._p.settings.warn_age and time.monotonic() - self._warned >= WARN_EVERY:
            self._warned = time.monotonic()
            self._p.settings.report("too_old", f"the oldest event is {oldest / 86400:.1f} days old; the service refuses events that are more than 7 days old")

    def _finish(self, queue: Any, batch: Batch, events: list[dict[str, Any]], verdicts: list[Verdict]) -> bool:
        """Keep what was not counted, then call the handler, then move the cursor. False: the pipeline stops."""
        refused = [(event, v) for event, v in zip(batch.events, verdicts) if not v.counted]
        if refused and not self._keep(lambda: self._refused.reject(refused)):
            return False
        for event, verdict in zip(events, verdicts):
            try:
                self._p.settings.on_verdict(event, verdict)
            except Exception:
                log.exception("on_verdict failed")
        self._advance(queue, batch, verdicts)
        return True

    def _damage(self, queue: Any, batch: Batch, event_id: Any, problem: dict[str, Any]) -> bool:
        """Keep an event that the service cannot read even alone; without files report it. False: the pipeline stops."""
        event, event_id = batch.events[0], event_id if isinstance(event_id, str) else ""
        where = "moved to damaged/"
        if self._p.settings.dir is None:
            where = "which has no file: " + event.decode(errors="replace")
        elif not self._keep(lambda: self._refused.damage_event(event, event_id, problem)):
            return False
        self._p.stats.damaged += 1
        self._p.settings.report("damaged", f"the service cannot read the event {event_id!r}, {where}: {problem['code']}: {problem.get('detail', '')}")
        self._advance(queue, batch, [])
        return True

    def _move(self, queue: Any, position: Position, events: int = 0) -> None:
        """Move the cursor. If the disk does not take it, sending goes on: a crash repeats events, which count once."""
        try:
            queue.advance(position, events)
            self._told = False
        except FileNotFoundError:
            raise  # another client has the queue
        except OSError as e:
            self._tell(f"the cursor of {queue.path} cannot be written; sending goes on, and events are sent again after a crash: {e}")

    def _advance(self, queue: Any, batch: Batch, verdicts: list[Verdict]) -> None:
        size = sum(HEADER + len(event) for event in batch.events)
        self._move(queue, batch.after, len(batch.events))
        stats = self._p.stats
        with self._p.changed:
            queue.position = batch.after
            queue.finished = min(queue.finished + len(batch.events), queue.added)
            queue.waiting_bytes = max(0, queue.waiting_bytes - size)
            for v in verdicts:
                if v.status == "accepted":
                    stats.accepted += 1
                elif v.status == "duplicate":
                    stats.duplicates += 1
                elif v.status == "conflict":
                    stats.conflicts += 1
                else:
                    stats.rejected += 1
            self._p.notify()


def _decode(event: bytes) -> dict[str, Any]:
    try:
        found = json.loads(event.decode())
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {}


def age_of(event: bytes | dict[str, Any]) -> float:
    """Return the age of an event in seconds, by its timestamp."""
    try:
        sent = _decode(event) if isinstance(event, bytes) else event
        return max(0.0, (datetime.now(timezone.utc) - parse_time(sent.get("timestamp"))).total_seconds())
    except ValueError:
        return 0.0


def _verdicts(answer: Answer, ids: list[Any]) -> list[Verdict] | None:
    """Return one verdict for each event, in order; None: the answer is not the service's."""
    found = answer.json() if answer.status == 202 and answer.media_type == "application/json" else None
    entries = found.get("events") if isinstance(found, dict) else None
    if not isinstance(entries, list) or len(entries) != len(ids):
        return None
    verdicts = []
    for index, (entry, sent) in enumerate(zip(entries, ids)):
        if not isinstance(entry, dict) or entry.get("eventId") != sent or entry.get("index", index) != index:
            return None
        if not isinstance(entry.get("status"), str) or not entry["status"]:
            return None
        code, reason, position, pointer = (str(entry.get(name) or "") for name in ("code", "reason", "position", "pointer"))
        verdicts.append(Verdict(sent if isinstance(sent, str) else "", entry["status"], code, reason, REMEDIES.get(code, ""), position, pointer))
    return verdicts
