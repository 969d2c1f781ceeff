"""Who writes a queue: begin one, take over those of dead processes. sdk/queue.md describes the rules."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
import time

from ._queue import DiskQueue, Position

RENEW_SECONDS = 5.0
DEAD_SECONDS = 60.0
LOOK_SECONDS = 30.0

_QUEUE = re.compile(r"q-([0-9a-f]{16})")

#: Tokens of the queues that clients of this process hold. A child of fork begins with none.
held: set[str] = set()


def sync(fd: int) -> None:
    """Wait until a file is on the disk."""
    if sys.platform == "darwin":
        import fcntl

        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def sync_folder(path: str) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_synced(path: str, content: bytes) -> None:
    """Write a file aside, sync and rename it. The caller syncs the folder."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        sync(fd)
    os.replace(path + ".tmp", path)


def _write_owner(folder: str, token: str, tenant: str) -> None:
    owner = {"version": 1, "token": token, "pid": os.getpid(), "host": socket.gethostname(), "tenant": tenant}
    write_synced(os.path.join(folder, "owner"), json.dumps(owner, separators=(",", ":")).encode())


def begin(folder: str, tenant: str, end: Position) -> DiskQueue:
    """Begin a queue, which no other client sees without an owner."""
    token = secrets.token_hex(8)
    made, path = os.path.join(folder, "tmp-" + token), os.path.join(folder, "q-" + token)
    held.add(token)
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        os.mkdir(made, 0o700)
        _write_owner(made, token, tenant)
        os.rename(made, path)
        sync_folder(folder)
    except BaseException:
        held.discard(token)
        raise
    return DiskQueue(path, end)


def is_owner(queue: DiskQueue) -> bool:
    """Report whether the queue still belongs to this client."""
    try:
        fd = os.open(queue.path + "/owner", os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return False
    try:
        return b'"token":"%s"' % queue.token.encode() in os.read(fd, 4096)
    finally:
        os.close(fd)


def renew(queue: DiskQueue) -> None:
    """Show that the owner lives. FileNotFoundError: the queue was taken over."""
    os.utime(os.path.join(queue.path, "owner"))


def release(queue: DiskQueue, remove: bool) -> None:
    """Let the next client take the queue over at once; remove it, if it may be, when it is empty."""
    held.discard(queue.token)
    try:
        if remove and queue.waiting == 0:
            queue.remove()
        else:
            past = time.time() - 120
            os.utime(os.path.join(queue.path, "owner"), (past, past))
    except FileNotFoundError:
        pass  # another client has it


def take_over(folder: str, tenant: str) -> list[DiskQueue]:
    """Take over the queues of dead processes, the oldest first."""
    taken = []
    for path in sorted(_dead(folder, tenant), key=_age, reverse=True):
        token = secrets.token_hex(8)
        own = os.path.join(folder, "q-" + token)
        held.add(token)
        try:
            os.rename(path, own)
            _write_owner(own, token, tenant)
            sync_folder(folder)
            queue = DiskQueue(own)
            queue.count()
            taken.append(queue)
        except OSError:
            held.discard(token)  # another client was faster, or takes it over later
    return taken


def _dead(folder: str, tenant: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = ((os.path.join(folder, name), _QUEUE.fullmatch(name)) for name in names)
    return [path for path, match in found if match and match[1] not in held and _is_dead(path, match[1], tenant)]


def _is_dead(path: str, token: str, tenant: str) -> bool:
    try:
        with open(os.path.join(path, "owner"), "rb") as file:
            owner = json.load(file)
        pid, host, other = int(owner["pid"]), owner["host"], owner["tenant"]
    except PermissionError:
        return False  # a queue of another user
    except (OSError, ValueError, KeyError, TypeError):
        return True
    if other and other != tenant:
        return False
    # A process of this host; if it is this one, no client of it holds the token.
    gone = host == socket.gethostname() and (pid == os.getpid() or not _exists(pid))
    return gone or _age(path) > DEAD_SECONDS


def _age(path: str) -> float:
    try:
        return time.time() - os.stat(os.path.join(path, "owner")).st_mtime
    except OSError:
        return DEAD_SECONDS


def _exists(pid: int) -> bool:
    if os.name == "nt":
        return True  # os.kill would end it
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    return True
