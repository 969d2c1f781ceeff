"""A queue without files. Its events end with the process."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice

from ._queue import HEADER, Batch, Position


class MemoryQueue:
    """Holds events in memory; a position counts the events before it."""

    def __init__(self) -> None:
        self.added = self.finished = self.waiting_bytes = 0
        self.position: Position = (0, 0)
        self._events: deque[bytes] = deque()
        self._guard = threading.RLock()  # of the events: the writer appends while others read

    @property
    def waiting(self) -> int:
        return self.added - self.finished

    def append(self, event: bytes) -> None:
        with self._guard:
            self._events.append(event)
        self.added += 1
        self.waiting_bytes += HEADER + len(event)

    def read(self, position: Position, max_events: int, max_bytes: int) -> Batch | None:
        """Return the first events."""
        batch, size = Batch(), 0
        with self._guard:
            first = list(islice(self._events, max_events))
        for event in first:
            size += len(event)
            if batch.events and size > max_bytes:
                break
            batch.events.append(event)
            batch.ends.append((0, position[1] + len(batch.events)))
        batch.after = (0, position[1] + len(batch.events))
        return batch if batch.events else None

    def advance(self, position: Position, events: int) -> None:
        """Drop events that have a final verdict."""
        with self._guard:
            for _ in range(events):
                self._events.popleft()
