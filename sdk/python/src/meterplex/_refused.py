"""What the service did not count, and what it or a reader could not read: files that stay until someone looks at them."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from . import _owner
from ._events import Verdict, format_time
from ._queue import Damage


@dataclass(frozen=True)
class Rejected:
    """An event that the service did not count."""

    event: dict[str, Any]
    status: str
    code: str
    reason: str
    remedy: str
    at: str  # RFC 3339


class Refused:
    """The folders rejected and damaged of a client's directory; without one, rejected events in memory."""

    def __init__(self, folder: str | None) -> None:
        self._folder = folder
        self._guard = threading.RLock()  # of the memory
        self._memory: dict[str, bytes] = {}  # the content of rejected/
        self.memory_bytes = 0  # they count for the bound of the queue

    def _write(self, kind: str, files: dict[str, bytes]) -> None:
        folder = os.path.join(str(self._folder), kind)
        _owner.make_folder(folder)
        for name, content in files.items():
            _owner.write_synced(os.path.join(folder, name), content)
        _owner.sync_folder(folder)

    def reject(self, refused: list[tuple[bytes, Verdict]]) -> None:
        """Keep events that were not counted, synced."""
        files = {}
        for event, v in refused:
            rest = {"status": v.status, "code": v.code, "reason": v.reason, "remedy": v.remedy, "at": _now()}
            files[_name(v.event_id, event)] = b'{"event":' + event + b"," + json.dumps(rest, separators=(",", ":")).encode()[1:]
        if self._folder is not None:
            self._write("rejected", files)
            return
        with self._guard:
            for name, content in files.items():
                self._forget(name)
                self._memory[name] = content
                self.memory_bytes += len(content)

    def _forget(self, name: str) -> None:
        with self._guard:
            self.memory_bytes -= len(self._memory.pop(name, b""))

    def damage_event(self, event: bytes, event_id: str, problem: dict[str, Any]) -> None:
        """Keep an event that the service cannot read, with its problem; one that is no JSON as a text."""
        rest = json.dumps({"problem": problem, "at": _now()}, separators=(",", ":")).encode()
        try:
            json.loads(event.decode())
            shown = event
        except ValueError:
            shown = json.dumps(event.decode(errors="replace")).encode()
        self._write("damaged", {"event-" + _name(event_id, event): b'{"event":' + shown + b"," + rest[1:]})

    def damage(self, token: str, damage: Damage) -> None:
        """Keep bytes that are no record."""
        self._write("damaged", {f"{token}-{damage.segment}-{damage.offset}.bin": damage.bytes})

    def rejected(self) -> list[Rejected]:
        """Return the events that were not counted."""
        found = []
        for content in self._rejected_files("").values():
            try:
                entry = json.loads(content)
                found.append(Rejected(entry["event"], *(str(entry.get(name) or "") for name in ("status", "code", "reason", "remedy", "at"))))
            except (ValueError, KeyError, TypeError):
                continue
        return sorted(found, key=lambda r: r.at)

    def acknowledge(self, event_id: str) -> None:
        """Remove the entries of an event."""
        for name in self._rejected_files(_hash(event_id.encode(), 32) + "-"):
            if self._folder is None:
                self._forget(name)
                continue
            try:
                os.unlink(os.path.join(self._folder, "rejected", name))
            except FileNotFoundError:
                pass  # another process was faster

    def _rejected_files(self, prefix: str) -> dict[str, bytes]:
        if self._folder is None:
            with self._guard:
                return {name: content for name, content in self._memory.items() if name.startswith(prefix)}
        folder, found = os.path.join(self._folder, "rejected"), {}
        try:
            for name in sorted(os.listdir(folder)):
                if name.startswith(prefix) and name.endswith(".json"):
                    with open(os.path.join(folder, name), "rb") as file:
                        found[name] = file.read()
        except FileNotFoundError:
            pass
        return found


def _hash(data: bytes, digits: int) -> str:
    return hashlib.sha256(data).hexdigest()[:digits]


def _name(event_id: str, event: bytes) -> str:
    return f"{_hash(event_id.encode(), 32)}-{_hash(event, 16)}.json"


def _now() -> str:
    return format_time(datetime.now(timezone.utc))
