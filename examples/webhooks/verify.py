"""Verify a Meterplex webhook (Standard Webhooks). Standard library only."""

import base64
import hashlib
import hmac
import sys
import time


def verify(secret: str, headers: dict, body: bytes, now: float, tolerance: int = 300) -> bool:
    """Report whether a request is signed with the secret and at most tolerance seconds old."""
    sent = headers.get("webhook-timestamp", "")
    if not sent.isascii() or not sent.isdigit() or abs(now - int(sent)) > tolerance:
        return False
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = headers.get("webhook-id", "").encode() + b"." + sent.encode() + b"." + body
    want = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return any(hmac.compare_digest(want.encode(), got.encode()) for got in headers.get("webhook-signature", "").split(" "))


if __name__ == "__main__":  # verify.py SECRET ID TIMESTAMP SIGNATURE < body
    secret, identifier, timestamp, signature = sys.argv[1:5]
    given = {"webhook-id": identifier, "webhook-timestamp": timestamp, "webhook-signature": signature}
    accepted = verify(secret, given, sys.stdin.buffer.read(), float(sys.argv[5]) if len(sys.argv) > 5 else time.time())
    print("accepted" if accepted else "refused")
