"""The files of a queue: sdk/queue.md describes them. This module knows no owner, no writer and no sender."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

MAGIC = b"MPXQ0001"
SEGMENT_BYTES = 4 << 20
MAX_EVENT = 65536
HEADER = 8  # bytes before the event of a record: length and checksum
ROOM = HEADER + MAX_EVENT

#: A place in a queue: segment, offset.
Position = tuple[int, int]


def _tables() -> list[list[int]]:
    first = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ 0x82F63B78 if n & 1 else n >> 1
        first.append(n)
    tables = [first]
    for _ in range(3):
        tables.append([first[n & 255] ^ n >> 8 for n in tables[-1]])
    return tables


_T0, _T1, _T2, _T3 = _tables()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) of data, four bytes a step."""
    crc, whole = 0xFFFFFFFF, len(data) // 4
    t0, t1, t2, t3 = _T0, _T1, _T2, _T3
    for word in struct.unpack_from(f"<{whole}I", data):
        word ^= crc
        crc = t3[word & 255] ^ t2[word >> 8 & 255] ^ t1[word >> 16 & 255] ^ t0[word >> 24]
    for byte in data[4 * whole :]:
        crc = t0[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def record(event: bytes) -> bytes:
    """Return the record of an event: length, checksum, event."""
    length = len(event).to_bytes(4, "little")
    return length + crc32c(length + event).to_bytes(4, "little") + event


def _record_end(data: bytes, at: int) -> int:
    """Return the end of the complete record that begins at a place; 0: none begins there."""
    length = int.from_bytes(data[at : at + 4], "little")
    end = at + HEADER + length
    if not 2 <= length <= MAX_EVENT or end > len(data):
        return 0
    checksum = int.from_bytes(data[at + 4 : at + HEADER], "little")
    return end if crc32c(data[at : at + 4] + data[at + HEADER : end]) == checksum else 0


def _next_record(data: bytes, at: int) -> int:
    """Return the first place from `at` on at which a complete record begins; len(data): none."""
    while (top := data.find(b"\0", at + 3)) >= 0:  # the top byte of each length is 0
        if _record_end(data, top - 3):
            return top - 3
        at = top - 2
    return len(data)


def _is_torn(data: bytes, at: int) -> bool:
    """Report whether the rest of a last segment can be the rest of a write: it is cut short, or zeros."""
    length = int.from_bytes(data[at : at + 4], "little")
    return len(data) - at < HEADER or 2 <= length <= MAX_EVENT and at + HEADER + length > len(data) or not data[at:].strip(b"\0")


@dataclass
class Damage:
    """Bytes at which no record begins. Without bytes: the segment is missing."""

    segment: int
    offset: int
    bytes: bytes


@dataclass
class Batch:
    """Events of one segment in order, each with the place behind it."""

    events: list[bytes] = field(default_factory=list)
    ends: list[Position] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    after: Position = (0, 0)
    torn: bool = False

    def part(self, start: int, end: int) -> Batch:
        """Return some of the events."""
        after = self.after if end == len(self.events) else self.ends[end - 1]
        return Batch(self.events[start:end], self.ends[start:end], [], after)


def read_segment(file: BinaryIO, segment: int, offset: int, limit: int, last: bool, max_events: int, max_bytes: int) -> Batch:
    """Read a batch from a segment, from an offset to at most limit. last: nothing is behind this segment."""
    if offset <= len(MAGIC):
        offset = 0
    file.seek(offset)
    data = file.read(max(0, min(limit - offset, max_bytes + 2 * ROOM)))
    whole = offset + len(data) >= limit
    at = len(MAGIC) if offset == 0 and data.startswith(MAGIC) else 0
    batch, size = Batch(), 0
    while at < len(data) and len(batch.events) < max_events:
        end = _record_end(data, at)
        if end:
            size += end - at - HEADER
            if batch.events and size > max_bytes:
                break
            batch.events.append(data[at + HEADER : end])
            batch.ends.append((segment, offset + end))
            at = end
            continue
        if not whole:
            if len(data) - at < ROOM:
                break  # the record may go on behind the piece
            data += file.read(limit - offset - len(data))
            whole = True
        found = _next_record(data, at)
        if last and found == len(data) and _is_torn(data, at):
            batch.torn = True
            break
        batch.damages.append(Damage(segment, offset + at, data[at:found]))
        at = found
    batch.after = (segment, offset + at)
    return batch


class DiskQueue:
    """One folder of a queue. The writer of this process sets end; in a queue that was taken over it is None, and all files are read."""

    def __init__(self, path: str, end: Position | None = None) -> None:
        self.path = path
        self.end = end
        self.added = self.finished = self.waiting_bytes = 0
        self.position = self._cursor()
        self.saved = True  # the cursor on the disk is the position

    @property
    def token(self) -> str:
        return os.path.basename(self.path)[len("q-") :]

    @property
    def waiting(self) -> int:
        return self.added - self.finished

    def segment(self, number: int) -> str:
        """Return the path of a segment."""
        return os.path.join(self.path, f"{number:08d}.seg")

    def segments(self) -> list[int]:
        """Return the numbers of the segments, in order."""
        return sorted(int(name[:8]) for name in os.listdir(self.path) if name.endswith(".seg") and len(name) == 12 and name[:8].isdecimal())

    def _cursor(self) -> Position:
        """Return the first place without a final verdict."""
        found = self.segments() if self.end is None else [1]
        first = found[0] if found else 1
        try:
            with open(os.path.join(self.path, "cursor"), "rb") as file:
                cursor = json.load(file)
            segment, offset = int(cursor["segment"]), int(cursor["offset"])
            if segment >= first and offset >= len(MAGIC):
                return segment, offset
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return first, len(MAGIC)

    def count(self) -> None:
        """Count what waits in a queue that was taken over, by the lengths of the records."""
        for number in self.segments():
            if number < self.position[0]:
                continue
            with open(self.segment(number), "rb") as file:
                data = file.read()
            at = self.position[1] if number == self.position[0] else len(MAGIC)
            while at + HEADER <= len(data):
                length = int.from_bytes(data[at : at + 4], "little")
                if not 2 <= length <= MAX_EVENT or at + HEADER + length > len(data):
                    at = _next_record(data, at + 1)
                    continue
                at += HEADER + length
                self.added += 1
                self.waiting_bytes += HEADER + length

    def read(self, position: Position, max_events: int, max_bytes: int) -> Batch | None:
        """Return the events from a position on, of one segment; None: no more.

        FileNotFoundError: another client has taken the queue over.
        """
        end, missing = self.end, []
        while True:
            numbers = [n for n in self.segments() if n >= position[0] and (end is None or n <= end[0])]
            if not numbers:
                return None
            if numbers[0] != position[0]:
                missing += [Damage(n, 0, b"") for n in range(position[0], numbers[0])]
                position = numbers[0], len(MAGIC)
            own_last = end is not None and position[0] == end[0]
            with open(self.segment(position[0]), "rb") as file:
                limit = end[1] if end is not None and own_last else os.fstat(file.fileno()).st_size
                batch = read_segment(file, position[0], position[1], limit, end is None and len(numbers) == 1, max_events, max_bytes)
            if batch.torn:
                os.truncate(self.segment(position[0]), batch.after[1])
            if batch.after[1] >= limit and len(numbers) > 1:
                batch.after = position[0] + 1, len(MAGIC)
            if batch.events or batch.damages or missing:
                batch.damages[:0] = missing
                return batch
            if batch.after[0] == position[0]:
                return None
            position = batch.after

    def advance(self, position: Position, events: int) -> None:
        """Move the cursor behind events that have a final verdict, and delete the segments before it."""
        try:
            self.save(position)
        finally:  # also on a full disk: this makes space
            for number in self.segments():
                if number < position[0]:
                    os.unlink(self.segment(number))

    def save(self, position: Position) -> None:
        """Write the cursor. With an older one the events behind it are sent again after a crash, and count once."""
        self.saved = False
        text = json.dumps({"segment": position[0], "offset": position[1]}, separators=(",", ":"))
        cursor = os.path.join(self.path, "cursor")
        with open(os.open(cursor + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        os.replace(cursor + ".tmp", cursor)
        self.saved = True

    def remove(self) -> None:
        """Delete the queue, which holds no event."""
        for name in os.listdir(self.path):
            os.unlink(os.path.join(self.path, name))
        os.rmdir(self.path)
