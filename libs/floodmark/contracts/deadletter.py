"""Turns a record that can never be handled into a dead letter. Whatever the record is like, this succeeds.

A record of ordinary size is kept whole. A compressed batch may carry values far above any limit, and a dead letter
that Kafka refuses would hold up its partition for ever: beyond these bounds bytes are left out, counted, and remain
at their place in the origin topic until its retention ends.
"""

from collections.abc import Iterable

from floodmark.contracts.fields import REASON_CHARS_MAX
from floodmark.contracts.messages import RecordRefused, RefusedHeader
from floodmark.contracts.topics import KIB, MIB
from floodmark.core.errors import InvalidInput

VALUE_KEPT_BYTES_MAX = 2 * MIB  # twice what any input topic takes
KEY_KEPT_BYTES_MAX = 64 * KIB
HEADERS_KEPT_BYTES_MAX = 64 * KIB

_HEADER_OVERHEAD_BYTES = 64  # a header without name and value still takes this much JSON


def refuse_record(
    refusal: InvalidInput,
    *,
    topic: str,
    partition: int,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[tuple[str, bytes | None]] | None,
    service: str,
    replica: str,
    refused_at_ms: int,
) -> RecordRefused:
    """The dead letter for one record and the rule it breaks."""
    kept_headers, dropped_bytes = _kept_headers(headers)
    dropped_bytes += max(len(key or b"") - KEY_KEPT_BYTES_MAX, 0) + max(len(value or b"") - VALUE_KEPT_BYTES_MAX, 0)
    return RecordRefused(
        topic=topic,
        partition=partition,
        offset=offset,
        key=None if key is None else key[:KEY_KEPT_BYTES_MAX],
        value=None if value is None else value[:VALUE_KEPT_BYTES_MAX],
        headers=kept_headers,
        dropped_bytes=dropped_bytes,
        rule=refusal.rule,
        reason=_encodable(str(refusal))[:REASON_CHARS_MAX],
        service=service,
        replica=replica,
        refused_at_ms=refused_at_ms,
    )


def _kept_headers(
    headers: Iterable[tuple[str, bytes | None]] | None,
) -> tuple[tuple[RefusedHeader, ...] | None, int]:
    """The headers that fit, each whole, and the size of those that do not."""
    if headers is None:
        return None, 0
    kept, kept_bytes, dropped_bytes = [], 0, 0
    for name, value in headers:
        size_bytes = len(name.encode("utf-8", errors="replace")) + len(value or b"")
        if kept_bytes + size_bytes + _HEADER_OVERHEAD_BYTES > HEADERS_KEPT_BYTES_MAX:
            dropped_bytes += size_bytes
            continue
        kept_bytes += size_bytes + _HEADER_OVERHEAD_BYTES
        kept.append(RefusedHeader(name=_encodable(name), value=value))
    return tuple(kept), dropped_bytes


def _encodable(text: str) -> str:
    """Text without lone surrogates, which no UTF-8 can hold."""
    return text.encode("utf-8", errors="replace").decode()
