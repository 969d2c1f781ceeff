"""Requests to the service: connections that are kept, a limit for each attempt, answers of bounded size."""

from __future__ import annotations

import email.utils
import errno
import http.client
import io
import ipaddress
import json
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from .errors import MeterplexError

VERSION = "0.1.0"
MAX_ANSWER = 64 << 20
MAX_IDLE = 8  # connections
HEAD_START = 0.25  # seconds of an address before the next one is tried beside it

#: What getaddrinfo returns: family, type, protocol, canonical name, address.
Address = tuple[int, int, int, str, Any]


class NoAnswer(Exception):
    """The service did not answer: no connection, a cut one, or a time limit."""


@dataclass
class Answer:
    """An answer, of the service or of something between."""

    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def media_type(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    def json(self) -> Any:
        """Return the decoded body, with exact integers; None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def problem(self) -> dict[str, Any] | None:
        """Return the service's problem, which has a code; None: the answer is not the service's."""
        found = self.json() if self.media_type == "application/problem+json" and self.status >= 400 else None
        return found if isinstance(found, dict) and isinstance(found.get("code"), str) else None

    def retry_after(self) -> float:
        """Return the least wait in seconds that the answer asks for, at most an hour."""
        text = self.headers.get("retry-after", "")
        if text.isascii() and text.isdigit():
            return float(min(int(text[:9]), 3600))
        try:
            return min(max(email.utils.parsedate_to_datetime(text).timestamp() - time.time(), 0.0), 3600.0)
        except (ValueError, OverflowError):
            return 0.0


class _Reader(io.RawIOBase):
    """Reads a socket until a deadline, whatever the number of reads."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock, self._deadline = sock, deadline
        self._raw = sock.makefile("rb", buffering=0)  # keeps the socket open if the connection is closed

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left)
        return self._raw.readinto(buffer) or 0

    def close(self) -> None:
        self._raw.close()
        super().close()

    def makefile(self, *args: Any, **kwargs: Any) -> io.BufferedReader:
        return io.BufferedReader(self)


class Http:
    """Sends requests to one service with one key. Connections are kept; after an error a new one is made."""

    def __init__(self, url: str, key: str, ca: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
            raise MeterplexError("invalid_argument", f"url is {url!r}: expected e.g. https://meterplex.example.com")
        self._tls, self._host = parts.scheme == "https", parts.hostname
        self._port = parts.port or (443 if self._tls else 80)
        self._path, self._ca = parts.path.rstrip("/").removesuffix("/api/v1"), ca
        self._context: ssl.SSLContext | None = None
        self._guard = threading.RLock()
        self._idle: list[http.client.HTTPConnection] = []
        self._ended = False
        self._busy: set[http.client.HTTPConnection | None] = set()
        self.set_key(key)
        if self._tls:
            self._tls_context()

    def set_key(self, key: str) -> None:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise MeterplexError("invalid_argument", "the key must be printable ASCII without spaces")
        self._key = key

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout: float) -> Answer:
        """Send a request and return its answer, whatever its status. NoAnswer: there is none within the timeout (seconds)."""
        deadline = time.monotonic() + timeout
        headers = {"Authorization": "Bearer " + self._key, "User-Agent": "meterplex-python/" + VERSION, "Accept": "application/json", **headers}
        while True:
            with self._guard:
                if self._ended:
                    raise MeterplexError("closed", "the client is closed")
                connection = self._idle.pop() if self._idle else None
            kept = connection is not None
            try:
                if connection is None:
                    connection = self._connect(deadline)
                with self._guard:
                    self._busy.add(connection)
                    if self._ended:
                        raise ConnectionAbortedError("the client is closed")
                return self._exchange(connection, method, self._path + path, body, headers, deadline)
            except (OSError, http.client.HTTPException, ValueError) as e:
                if connection is not None:
                    connection.close()
                if isinstance(e, ssl.SSLError):
                    self._context = None  # the certificates may have changed
                if not kept or time.monotonic() >= deadline:
                    raise NoAnswer(f"{type(e).__name__}: {e}") from e
            finally:
                with self._guard:
                    self._busy -= {connection}

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None, headers: dict[str, str], deadline: float
    ) -> Answer:
        connection.sock.settimeout(_left(deadline))
        connection.response_class = partial(_response, deadline)  # type: ignore[assignment]
        try:
            connection.request(method, path, body, headers)
        except BrokenPipeError:
            pass  # the service may have answered before it read the body
        response = connection.getresponse()
        content = response.read(MAX_ANSWER + 1)
        if len(content) > MAX_ANSWER:
            raise ValueError(f"the answer has more than {MAX_ANSWER} bytes")
        if response.length:
            raise http.client.IncompleteRead(content, response.length)
        answer = Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, content)
        with self._guard:
            if connection.sock is not None and len(self._idle) < MAX_IDLE and not self._ended:
                self._idle.append(connection)
                return answer
        connection.close()
        return answer

    def _connect(self, deadline: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self._host, self._port)
        connection.default_port = 443 if self._tls else 80
        addresses = _resolve(self._host, self._port, _left(deadline))
        while True:
            sock = self._dial(addresses, deadline)
            try:
                sock.settimeout(_left(deadline))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.sock = self._tls_context().wrap_socket(sock, server_hostname=self._host) if self._tls else sock
                return connection
            except BaseException as e:
                sock.close()
                if not addresses or not isinstance(e, OSError) or isinstance(e, ssl.SSLCertVerificationError):
                    raise

    def _dial(self, addresses: list[Address], deadline: float) -> socket.socket:
        """Connect to the address that answers first, and take it from the list, and those that refuse.

        Each address is tried a short time after the one before, beside it: a network may drop the packets to one of them.
        """
        waiting, error = list(addresses), OSError(errno.ETIMEDOUT, "timed out")
        tried: dict[socket.socket, Address] = {}
        try:
            with selectors.DefaultSelector() as selector:
                while (waiting or tried) and time.monotonic() < deadline and not self._ended:
                    if waiting:
                        address = waiting.pop(0)
                        try:
                            tried[_begin(address, selector)] = address
                        except OSError as e:
                            addresses.remove(address)
                            error = e
                            continue
                    for key, _ in selector.select(min(HEAD_START, _left(deadline) / (1 + len(waiting)))):
                        selector.unregister(key.fileobj)
                        sock: socket.socket = key.data
                        addresses.remove(tried.pop(sock))
                        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                        if code == 0:
                            return sock
                        error = OSError(code, os.strerror(code))
                        sock.close()
            raise error
        finally:
            for other in tried:
                other.close()

    def _tls_context(self) -> ssl.SSLContext:
        context = self._context
        if context is None:
            context = self._context = ssl.create_default_context(cafile=self._ca)
        return context

    def abort(self) -> None:
        """End all requests in progress, and keep no connection any more."""
        with self._guard:
            self._ended = True
            for connection in list(self._busy):
                sock: socket.socket | None = connection.sock if connection else None
                try:
                    if sock is not None:
                        sock.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass
        self.close()

    def close(self) -> None:
        """Close the connections that no request uses."""
        with self._guard:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def forget(self) -> None:
        """Give up all connections in a child of fork: they belong to its parent."""
        self._guard = threading.RLock()
        self._busy = set()
        self.close()


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.001)


def _response(deadline: float, sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:
    return http.client.HTTPResponse(_Reader(sock, deadline), *args, **kwargs)  # type: ignore[arg-type]


def _begin(address: Address, selector: selectors.BaseSelector) -> socket.socket:
    """Begin to connect."""
    sock = socket.socket(*address[:3])
    try:
        sock.setblocking(False)
        code = sock.connect_ex(address[4])
        if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            raise OSError(code, os.strerror(code))
        selector.register(sock, selectors.EVENT_WRITE, sock)
        return sock
    except BaseException:
        sock.close()
        raise


def _resolve(host: str, port: int, timeout: float) -> list[Address]:
    """Return the addresses of a host. The resolver of the system knows no time limit, so it runs beside."""
    try:
        ipaddress.ip_address(host)
        return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST))
    except ValueError:
        pass
    found: list[Address] = []
    errors: list[OSError] = []

    def look_up() -> None:
        try:
            found.extend(dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))
        except OSError as e:
            errors.append(e)

    _beside(look_up, timeout)
    if errors:
        raise errors[0]
    return list(found)


def _beside(work: Callable[[], None], timeout: float) -> None:
    thread = threading.Thread(target=work, name="meterplex-resolve", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends
        return work()
    thread.join(timeout)
