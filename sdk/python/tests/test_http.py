"""Requests: connections that are kept, time limits, answers of any kind, certificates."""

from __future__ import annotations

import email.utils
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
from unittest import mock

from meterplex import _http
from meterplex._http import Http, NoAnswer

from .fake import Fake, answer


class Requests(unittest.TestCase):
    def setUp(self):
        self.fake = Fake()
        self.fake.then = lambda r: answer({"path": r.path})
        self.addCleanup(self.fake.close)
        self.http = Http(self.fake.url + "/prefix/api/v1/", "k", None)
        self.addCleanup(self.http.close)

    def get(self, http=None, timeout=10.0):
        return (http or self.http).request("GET", "/a?b=1", None, {}, timeout)

    def test_a_connection_is_kept_and_replaced_after_an_error(self):
        for _ in range(3):
            self.assertEqual(self.get().json(), {"path": "/prefix/a?b=1"})
        self.assertEqual(self.fake.connections, 1)
        self.fake.replies = [None]
        self.assertEqual(self.get().status, 200, "a kept connection that is closed says nothing about the service")
        self.assertEqual((self.fake.connections, len(self.fake.requests)), (2, 5))
        self.fake.replies = [lambda r: (200, {"Connection": "close"}, b"{}")]
        self.assertEqual(self.get().json(), {})
        self.get()
        self.assertEqual(self.fake.connections, 3)

    def test_an_attempt_has_a_time_limit_whatever_arrives(self):
        drip = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(drip.close)
        stop = threading.Event()
        self.addCleanup(stop.set)

        def serve():
            peer, _ = drip.accept()
            with peer:
                peer.sendall(b"HTTP/1.1 200 OK\r\n")
                while not stop.wait(0.01):
                    try:
                        peer.sendall(b"x" if time.monotonic() < begun + 10 else b"")
                    except OSError:
                        return

        begun = time.monotonic()
        threading.Thread(target=serve, daemon=True).start()
        with self.assertRaises(NoAnswer):
            self.get(Http(f"http://127.0.0.1:{drip.getsockname()[1]}", "k", None), 0.2)
        self.assertLess(time.monotonic() - begun, 5)

    def test_a_resolver_that_hangs_does_not_hang_a_request(self):
        go = threading.Event()
        self.addCleanup(go.set)
        with mock.patch.object(socket, "getaddrinfo", lambda *a, **k: go.wait(30) and []):
            begun = time.monotonic()
            with self.assertRaises(NoAnswer):
                self.get(Http("http://meterplex.example", "k", None), 0.1)
            self.assertLess(time.monotonic() - begun, 5)
        port = self.fake.server.server_port
        http = Http(f"http://localhost:{port}", "k", None)
        self.assertEqual(self.get(http).status, 200)
        http.close()

    def test_an_address_that_does_not_answer_holds_nothing_up(self):
        full = socket.create_server(("127.0.0.1", 0), backlog=0)  # it takes no more connections, and does not say so
        others = [socket.socket() for _ in range(8)]
        for sock in (full, *others):
            self.addCleanup(sock.close)
            sock.setblocking(False)
        for sock in others:
            sock.connect_ex(full.getsockname())
        silent, real = (socket.getaddrinfo("127.0.0.1", port)[0][:3] + ("", ("127.0.0.1", port)) for port in (full.getsockname()[1], self.fake.server.server_port))
        closed = (*real[:4], ("127.0.0.1", 1))
        with mock.patch.object(_http, "_resolve", lambda *a: [silent, silent, closed, real]), mock.patch.object(_http, "HEAD_START", 0.02):
            self.assertEqual(self.get(timeout=20).status, 200)
            self.http.close()
            self.assertEqual(self.get(timeout=0.4).status, 200, "also if there is little time")
        with mock.patch.object(_http, "_resolve", lambda *a: [silent]), self.assertRaises(NoAnswer) as caught:
            self.get(Http(self.fake.url, "k", None), timeout=0.05)
        self.assertIn("timed out", str(caught.exception))
        with mock.patch.object(_http, "_resolve", lambda *a: [closed]), self.assertRaises(NoAnswer) as caught:
            self.get(Http(self.fake.url, "k", None))
        self.assertIn("refused", str(caught.exception))

    def test_a_large_answer_is_no_answer(self):
        with mock.patch.object(_http, "MAX_ANSWER", 10), self.assertRaises(NoAnswer):
            self.get()

    def test_retry_after(self):
        for text, seconds in (("7", 7), ("99999", 3600), ("-1", 0), ("soon", 0), ("", 0), ("9" * 400, 3600)):
            self.assertEqual(_http.Answer(429, {"retry-after": text}, b"").retry_after(), seconds)
        for ahead, least, most in ((60, 58, 60), (-60, 0, 0), (10**6, 3600, 3600)):
            date = email.utils.formatdate(time.time() + ahead, usegmt=True)
            self.assertTrue(least <= _http.Answer(429, {"retry-after": date}, b"").retry_after() <= most, date)

    @unittest.skipUnless(shutil.which("openssl"), "SKIPPED, certificates were not tried: openssl not found")
    def test_certificates(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)

        def make(name):
            pem, key = os.path.join(folder, name + ".pem"), os.path.join(folder, name + ".key")
            subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=test",
                            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", pem], check=True, capture_output=True)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem, key)
            return pem, context

        (pem, context), (other, _) = make("a"), make("b")
        self.fake.server.socket = context.wrap_socket(self.fake.server.socket, server_side=True)
        url = self.fake.url.replace("http:", "https:")
        http = Http(url, "k", pem)
        for _ in range(2):
            self.assertEqual(self.get(http).status, 200)
        self.assertEqual(self.fake.connections, 1)
        http.close()
        for ca in (other, None):
            with self.assertRaises(NoAnswer) as caught:
                self.get(Http(url, "k", ca))
            self.assertIn("CERTIFICATE_VERIFY_FAILED", str(caught.exception))
        changed = os.path.join(folder, "changed.pem")
        shutil.copy(other, changed)
        http = Http(url, "k", changed)
        with self.assertRaises(NoAnswer):
            self.get(http)
        shutil.copy(pem, changed)
        self.assertEqual(self.get(http).status, 200, "the certificates are read again after an error")
        http.close()
