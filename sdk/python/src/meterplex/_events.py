"""The event: its rules, its canonical JSON, its id, and the verdict on it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, TypedDict

from .errors import InvalidEvent, MeterplexError

MAX_AMOUNT = 9007199254740991
MAX_METADATA = 4096  # bytes of canonical JSON
MAX_LEVELS = 5


class _Required(TypedDict):
    feature: str


class Event(_Required, total=False):
    """A usage event, with the names of the API."""

    amount: int
    eventId: str
    timestamp: str | datetime
    metadata: Mapping[str, Any] | None
    type: str
    correctionRef: str


@dataclass(frozen=True)
class Verdict:
    """The service's verdict on an event. status is "accepted", "duplicate", "conflict", "rejected", or one of a later service."""

    event_id: str
    status: str
    code: str = ""
    reason: str = ""
    remedy: str = ""
    position: str = ""
    pointer: str = ""

    @property
    def counted(self) -> bool:
        """Whether the event is counted, now or before."""
        return self.status in ("accepted", "duplicate")


_MEMBERS = frozenset({"feature", "amount", "eventId", "timestamp", "metadata", "type", "correctionRef"})
_ID = re.compile(r"[!-~]{1,255}")
_FEATURE = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII)
_DECIMAL = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)


def complete(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event with an eventId and a timestamp: a random UUIDv7 and now, unless it has them."""
    now = time.time_ns()
    made = dict(event)
    if made.get("eventId") is None:
        made["eventId"] = uuid7(now)
    if made.get("timestamp") is None:
        made["timestamp"] = datetime.fromtimestamp(now // 1_000_000_000, timezone.utc) + timedelta(microseconds=now % 1_000_000_000 // 1000)
    return made


def canonical(event: Mapping[str, Any]) -> bytes:
    """Return the event as RFC 8785 writes it. Raises InvalidEvent with the service's code."""
    unknown = event.keys() - _MEMBERS
    if unknown:
        raise InvalidEvent("unknown_member", f"the member {min(map(str, unknown))!r} is not known; names are case-sensitive")
    kind = event.get("type")
    if kind not in (None, "usage", "correction", "retraction"):
        raise InvalidEvent("type_invalid", 'type must be "usage", "correction" or "retraction"')
    kind = kind or "usage"
    event_id = _text(event, "eventId", _ID, "event_id_invalid")
    feature = _text(event, "feature", _FEATURE, "feature_invalid")
    amount = _amount(event.get("amount"), kind)
    at = format_time(parse_time(_sent(event, "timestamp")))
    metadata = _metadata(event.get("metadata"))
    ref = event.get("correctionRef")
    if kind == "usage" and ref is not None:
        raise InvalidEvent("correction_ref_invalid", "correctionRef is for corrections and retractions only")
    if kind != "usage":
        ref = _text(event, "correctionRef", _ID, "correction_ref_invalid")
        if ref == event_id:
            raise InvalidEvent("correction_ref_invalid", "correctionRef is the event's own eventId")
    parts = [] if amount is None else [f'"amount":{amount}']
    if ref is not None:
        parts.append(f'"correctionRef":{_quote(ref)}')
    parts += [f'"eventId":{_quote(event_id)}', f'"feature":"{feature}"']
    if metadata:
        parts.append(f'"metadata":{metadata}')
    parts.append(f'"timestamp":"{at}"')
    if kind != "usage":
        parts.append(f'"type":"{kind}"')
    return ("{" + ",".join(parts) + "}").encode()


def _sent(event: Mapping[str, Any], member: str) -> Any:
    value = event.get(member)
    if value is None:
        raise InvalidEvent("member_missing", f"{member} is missing; it is required")
    return value


def _text(event: Mapping[str, Any], member: str, form: re.Pattern[str], code: str) -> str:
    value = _sent(event, member)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidEvent(code, f"{member} must be a string that matches ^{form.pattern}$, not {value!r:.300}")
    return value


def check_feature(feature: str) -> str:
    return _text({"feature": feature}, "feature", _FEATURE, "feature_invalid")


def check_id(member: str, value: str) -> str:
    return _text({member: value}, member, _ID, "event_id_invalid" if member == "eventId" else "reservation_id_invalid")


def check_amount(value: Any, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_AMOUNT:
        raise InvalidEvent("amount_invalid", f"amount must be an int from {least} to {MAX_AMOUNT}, not {value!r:.100}")
    return int(value)


def _amount(value: Any, kind: str) -> int | None:
    if kind == "retraction":
        if value is not None:
            raise InvalidEvent("amount_invalid", "a retraction has no amount: it takes back the whole amount")
        return None
    if value is None:
        raise InvalidEvent("member_missing", "amount is missing; it is required")
    return check_amount(value, 0 if kind == "correction" else 1)


def parse_time(value: Any) -> datetime:
    """Read a time, cut to microseconds, in UTC."""
    try:
        if isinstance(value, datetime):
            if value.utcoffset() is None:
                raise InvalidEvent("timestamp_invalid", f"the datetime {value} has no time zone; use datetime.now(timezone.utc)")
            return value.astimezone(timezone.utc)
        found = _TIME.fullmatch(value) if isinstance(value, str) else None
        if found:
            parts = found.groups()
            year, month, day, hour, minute, second = map(int, parts[:6])
            ahead = timedelta(hours=int(parts[8] or 0), minutes=int(parts[9] or 0))
            if int(parts[8] or 0) < 24 and int(parts[9] or 0) < 60:
                at = datetime(year, month, day, hour, minute, second, int((parts[6] or "")[:6].ljust(6, "0")), timezone.utc)
                return at + ahead if parts[7] == "-" else at - ahead
    except (ValueError, OverflowError) as e:
        if isinstance(e, MeterplexError):
            raise
    raise InvalidEvent("timestamp_invalid", f"Invalid time {value!r:.100}: expected RFC 3339, e.g. 2026-05-01T12:00:00Z")


def format_time(at: datetime) -> str:
    """Write a time in UTC with Z, without trailing zeros of the fraction."""
    text = at.replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if "." in text else text) + "Z"


def _metadata(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, Mapping):
        raise InvalidEvent("metadata_invalid", "metadata must be a mapping")
    text = _canonical(value, 1) if value else ""
    if len(text.encode()) > MAX_METADATA:
        raise InvalidEvent("metadata_too_large", f"metadata has more than {MAX_METADATA} bytes in canonical form")
    return text


def plain_metadata(value: Mapping[str, Any] | None) -> Any:
    """Return metadata as its canonical JSON is read, None if there is none."""
    text = _metadata(value)
    return json.loads(text) if text else None


def _canonical(value: Any, level: int) -> str:
    """Write a value of metadata as RFC 8785 requires, or refuse what is not kept exactly."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _quote(value)
    if isinstance(value, (int, float)):
        return _number(value)
    if level > MAX_LEVELS and isinstance(value, (Mapping, list, tuple)):
        raise InvalidEvent("metadata_invalid", f"metadata has more than {MAX_LEVELS} levels of objects and arrays")
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([_canonical(v, level + 1) for v in value]) + "]"
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        names = sorted(value, key=lambda k: k.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join([f"{_quote(k)}:{_canonical(value[k], level + 1)}" for k in names]) + "}"
    raise InvalidEvent("metadata_invalid", f"metadata may hold None, bool, str, int, float, list and dict, not {type(value).__name__}")


def _quote(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidEvent("metadata_invalid", "metadata has half of a surrogate pair") from None
    if "\0" in text:
        raise InvalidEvent("metadata_invalid", "metadata has U+0000, which cannot be stored")
    return json.dumps(text, ensure_ascii=False)


def _number(value: int | float) -> str:
    """Write a number as ECMAScript does; refuse an integer that a double does not keep."""
    try:
        text = _double(float(value))
        if isinstance(value, float) or Decimal(text) == value:
            return text
    except (OverflowError, ValueError):
        pass
    raise InvalidEvent("metadata_invalid", f"the number {value!r:.50} is not kept exactly by JSON; send it as a string")


def _double(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        raise ValueError
    if value == 0:
        return "0"
    sign, numerals, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits, minus = "".join(map(str, numerals)), "-" * sign
    point = len(digits) + exponent  # value = 0.digits × 10^point
    if 0 < point <= 21:
        whole = digits[:point].ljust(point, "0")
        return minus + whole + ("." + digits[point:] if digits[point:] else "")
    if -6 < point <= 0:
        return f"{minus}0.{'0' * -point}{digits}"
    fraction = "." + digits[1:] if digits[1:] else ""
    return f"{minus}{digits[0]}{fraction}e{'+' if point > 0 else '-'}{abs(point - 1)}"


def uuid7(now_ns: int | None = None) -> str:
    """Return a random UUIDv7."""
    stamp = (time.time_ns() if now_ns is None else now_ns) // 1_000_000
    value = int.from_bytes((stamp & (1 << 48) - 1).to_bytes(6, "big") + os.urandom(10), "big")
    value = value & ~(0xF << 76) & ~(0x3 << 62) | 0x7 << 76 | 0x2 << 62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def event_id(tenant: str, feature: str, resource: str, occurred_at: str | datetime) -> str:
    """Return the same id for the same use of a resource, whoever computes it: 32 hex digits.

    occurred_at is an aware datetime or RFC 3339. A part that is empty or contains "|" raises MeterplexError.
    """
    for name, part in (("tenant", tenant), ("feature", feature), ("resource", resource)):
        if not part or "|" in part:
            raise MeterplexError("invalid_argument", f'{name} is {part!r}: it must not be empty, nor contain "|": two events could get one id')
    at = parse_time(occurred_at).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return hashlib.sha256("|".join((tenant, feature, resource, at)).encode()).hexdigest()[:32]


def amount(decimal: str | int | Decimal, unit: str = "", scale: int = 0) -> int:
    """Return decimal × 10^scale as an int: amount("1.5", "GB", 3) is 1500.

    InvalidEvent (amount_invalid) if that is not exact, not positive, or above 9007199254740991. unit is for the message only.
    """
    text = format(decimal, "f") if isinstance(decimal, Decimal) else str(decimal) if type(decimal) is int else decimal
    found = _DECIMAL.fullmatch(text) if isinstance(text, str) else None
    if found and 0 <= scale <= 100:
        fraction = (found[2] or "").rstrip("0")
        digits = (found[1] + fraction.ljust(scale, "0")).lstrip("0")
        if len(fraction) <= scale and 0 < len(digits) <= 16 and int(digits) <= MAX_AMOUNT:
            return int(digits)
    raise InvalidEvent("amount_invalid", f"{decimal!r:.100} {unit} at scale {scale} is not an integer from 1 to {MAX_AMOUNT}")
