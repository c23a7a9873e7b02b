"""`segments-changed.v1` as the one service reads it that hears all of them, in a quarter of the time its model takes.

The model in messages.py is the contract; this is a narrower door to the same room. What passes here passes there and
means the same (`tests/property/test_changes.py`). What does not, because it is wrong or merely unusual, such as a field
of a later version, is read through the model, which takes it or says what is wrong with it.
"""

from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from floodmark.contracts.fields import CHANGES_MAX, COUNT_MAX, ID_CHARS_MAX
from floodmark.contracts.messages import Message, SegmentChange, SegmentsChanged
from floodmark.contracts.parsing import parse
from floodmark.contracts.topics import SEGMENTS
from floodmark.core.bounds import INT64_MAX, INT64_MIN, SEGMENT_NAME_BYTES_MAX, TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.names import is_name

_TimeMs = Annotated[int, Meta(ge=TIME_MIN_MS, le=TIME_MAX_MS)]
_Count = Annotated[int, Meta(ge=0, le=COUNT_MAX)]
_Id = Annotated[str, Meta(min_length=1, max_length=ID_CHARS_MAX)]
_SegmentName = Annotated[str, Meta(min_length=1, max_length=SEGMENT_NAME_BYTES_MAX // 4)]  # a character is 4 at most
_TraceId = Annotated[str, Meta(min_length=32, max_length=32)]

_HEX_DIGITS = "0123456789abcdef"
_is_name = lru_cache(is_name)  # there are far more events than tables


class Range(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """The half-open range `[start_ms, end_ms)`."""

    start_ms: _TimeMs
    end_ms: _TimeMs


class Change(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One segment; no ranges means any time."""

    action: Literal["added", "replaced", "deleted"]
    name: _SegmentName
    crc: str | None
    ranges: Annotated[tuple[Range, ...], Meta(min_length=1, max_length=2)] | None
    trace_id: _TraceId | None = None


class Changes(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One event. Its fields are described in messages.py."""

    kind: Literal["segments-changed.v1"]
    event_id: _Id
    table: str
    registry_version: _Count
    registered_at_ms: _TimeMs
    changes: Annotated[tuple[Change, ...], Meta(min_length=1, max_length=CHANGES_MAX)]


_decode = msgspec.json.Decoder(Changes).decode


def read_changes(value: bytes | None, *, what: object) -> Changes:
    """The event in `value`, or InvalidInput. `what` names its origin for the refusal."""
    return read_quickly(value) or changes_of(parse(SEGMENTS, value, what=what))


def read_quickly(value: bytes | None) -> Changes | None:
    """The event when it is plainly one, as nearly all are."""
    if value is None or len(value) > SEGMENTS.value_bytes_max:
        return None
    try:
        event = _decode(value)
        return event if _is_sound(event) else None
    except (msgspec.MsgspecError, ValueError):  # not this event, not UTF-8, or a CRC that is no number
        return None


def changes_of(message: Message) -> Changes:
    """An event that was read through its model, as everyone here knows it."""
    assert isinstance(message, SegmentsChanged), f"{message} came through the segments topic"
    return Changes(
        kind=message.kind,
        event_id=message.event_id,
        table=message.table,
        registry_version=message.registry_version,
        registered_at_ms=message.registered_at_ms,
        changes=tuple(_change_of(change) for change in message.changes),
    )


def _change_of(change: SegmentChange) -> Change:
    return Change(
        action=change.action,
        name=change.name,
        crc=None if change.crc is None else str(change.crc),
        ranges=None if change.ranges is None else tuple(Range(r.start_ms, r.end_ms) for r in change.ranges),
        trace_id=change.trace_id,
    )


def _is_sound(event: Changes) -> bool:
    """The rules that a type does not say, in calls that look at a whole text at once: patterns take thrice as long."""
    event_id = event.event_id
    if not (event_id.isascii() and event_id.isprintable() and " " not in event_id and _is_name(event.table)):
        return False
    for change in event.changes:
        crc, trace_id = change.crc, change.trace_id
        if (crc is None) != (change.action == "deleted") or "\0" in change.name:
            return False
        if crc is not None and not (INT64_MIN <= (number := int(crc)) <= INT64_MAX and str(number) == crc):
            return False
        if trace_id is not None and trace_id.strip(_HEX_DIGITS):
            return False
        for span in change.ranges or ():
            if span.end_ms <= span.start_ms:
                return False
    return True
