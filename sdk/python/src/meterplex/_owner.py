"""Who writes a queue: begin one, take over those of dead processes. sdk/queue.md describes the rules."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable

from ._queue import DiskQueue, Position

RENEW_SECONDS = 5.0
DEAD_SECONDS = 60.0
LOOK_SECONDS = 30.0

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

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
    except OSError as e:
        if e.errno != errno.EINVAL:  # a file system that syncs no folders
            raise
    finally:
        os.close(fd)


def make_folder(path: str) -> None:
    """Make a folder and its parents, durable."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_folder(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise
    try:
        sync_folder(parent)
    except PermissionError:
        pass  # a parent that may be written, but not read


def write_synced(path: str, content: bytes) -> None:
    """Write a file aside, sync and rename it. The caller syncs the folder."""
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        sync(fd)
    os.replace(path + ".tmp", path)


def _content(token: str, tenant: str) -> bytes:
    owner = {"version": 1, "token": token, "pid": os.getpid(), "host": socket.gethostname(), "tenant": tenant}
    return json.dumps(owner, separators=(",", ":")).encode()


def _replace_owner(folder: str, token: str, tenant: str) -> None:
    """Write the owner of a queue that was taken over. On a full disk the file is overwritten: the events must leave for the disk to have space."""
    path, content = os.path.join(folder, "owner"), _content(token, tenant)
    try:
        write_synced(path, content)
    except OSError as e:
        if e.errno not in DISK_FULL:
            raise
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
        finally:
            os.close(fd)


def begin(folder: str, tenant: str, end: Position) -> DiskQueue:
    """Begin a queue, which no other client sees without an owner."""
    token = secrets.token_hex(8)
    made, path = os.path.join(folder, "tmp-" + token), os.path.join(folder, "q-" + token)
    held.add(token)
    try:
        make_folder(folder)
        os.mkdir(made, 0o700)
        write_synced(os.path.join(made, "owner"), _content(token, tenant))
        os.rename(made, path)
        sync_folder(folder)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        shutil.rmtree(path, ignore_errors=True)
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
    """Let the next client take the queue over at once; remove it, if it may be, when it is empty. Nothing writes to it any more."""
    past = time.time() - 2 * DEAD_SECONDS
    try:
        if remove and queue.waiting == 0:
            queue.remove()
        else:
            os.utime(os.path.join(queue.path, "owner"), (past, past))
            if not queue.saved:
                queue.save(queue.position)
    except OSError:
        pass  # another client has it, or takes it over a little later
    held.discard(queue.token)


def take_over(folder: str, tenant: str, report: Callable[[str, str], object] | None = None) -> list[DiskQueue]:
    """Take over the queues of dead processes, the oldest first. report(code, detail) is called for each that cannot be."""
    taken = []
    for path in sorted(_dead(folder, tenant), key=_age, reverse=True):
        token = secrets.token_hex(8)
        own = os.path.join(folder, "q-" + token)
        held.add(token)
        try:
            os.rename(path, own)
            _replace_owner(own, token, tenant)
            sync_folder(folder)
            queue = DiskQueue(own)
            queue.count()
            taken.append(queue)
        except OSError as e:
            held.discard(token)  # another client was faster, or the next look takes it over
            if report is not None and not isinstance(e, FileNotFoundError):
                report("queue_failed", f"the queue {path} of an earlier client waits: {e}")
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
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return True
    except OSError:
        return False  # e.g. a queue of another user; or this process has too many open files
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
