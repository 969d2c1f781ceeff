"""A queue without files. Its events end with the process."""

from __future__ import annotations

from collections import deque
from itertools import islice

from ._queue import HEADER, Batch, Position


class MemoryQueue:
    """Holds events in memory; a position counts the events before it."""

    def __init__(self) -> None:
        self.added = self.finished = self.waiting_bytes = 0
        self.position: Position = (0, 0)
        self._events: deque[bytes] = deque()

    @property
    def waiting(self) -> int:
        return self.added - self.finished

    def append(self, event: bytes) -> None:
        self._events.append(event)
        self.added += 1
        self.waiting_bytes += HEADER + len(event)

    def read(self, position: Position, max_events: int, max_bytes: int) -> Batch | None:
        """Return the first events."""
        batch, size = Batch(), 0
        for event in islice(self._events, max_events):
            size += len(event)
            if batch.events and size > max_bytes:
                break
            batch.events.append(event)
            batch.ends.append((0, position[1] + len(batch.events)))
        batch.after = (0, position[1] + len(batch.events))
        return batch if batch.events else None

    def advance(self, position: Position, events: int, size: int) -> None:
        """Drop events that have a final verdict."""
        for _ in range(events):
            self._events.popleft()
