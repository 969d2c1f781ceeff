"""What the tests of the client share."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import unittest
from typing import Any

from meterplex import Client

from .fake import Fake

KEY = "mp_test_secret"
EVENT = {"feature": "api_calls", "amount": 1, "timestamp": "2026-11-29T10:00:00Z"}


MEMORY = "/dev/shm"  # a sync takes no time there; the tests replace those that they look at


def folder() -> str:
    """Make a folder for a test."""
    return tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


def event(id: str, **members: Any) -> Any:
    return {**EVENT, "eventId": id, **members}


class ClientTest(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.close)
        root = folder()
        self.addCleanup(shutil.rmtree, root, True)
        self.dir = os.path.join(root, "queue")
        self.verdicts: list[Any] = []
        self.errors: list[tuple[str, str]] = []
        self.reported = threading.Condition()

    def client(self, **options: Any) -> Client:
        options = {"max_age": 0.01, "on_verdict": lambda e, v: self.verdicts.append((e, v)), "on_error": self._on_error, **options}
        url, folder = options.pop("url", self.fake.url), options.pop("dir", self.dir)
        client = Client(url, KEY, folder, **options)
        self.addCleanup(client.close, 0)
        return client

    def _on_error(self, code: str, detail: str) -> None:
        with self.reported:
            self.errors.append((code, detail))
            self.reported.notify_all()

    def wait_error(self, code: str) -> str:
        """Wait until an error is reported, and return its detail."""
        with self.reported:
            self.assertTrue(self.reported.wait_for(lambda: any(c == code for c, _ in self.errors), 20), self.errors)
            return next(d for c, d in self.errors if c == code)

    def queues(self) -> list[str]:
        """The folders of queues in the directory."""
        return sorted(name for name in os.listdir(self.dir) if name.startswith("q-")) if os.path.isdir(self.dir) else []

    def files(self, *path: str) -> list[str]:
        folder = os.path.join(self.dir, *path)
        return sorted(os.listdir(folder)) if os.path.isdir(folder) else []
