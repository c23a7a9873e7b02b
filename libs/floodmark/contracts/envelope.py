"""A message with what is known about its sending: CloudEvents 1.0 attributes in Kafka headers, binary mode.

Headers help people and tracing; the value alone decides what a record means. So a record without headers is as good as
any (somebody used kcat), and a malformed header is replaced, never a reason to refuse the message.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from floodmark.contracts.messages import Message
from floodmark.contracts.parsing import parse
from floodmark.contracts.topics import topic_named, topic_of
from floodmark.core.bounds import TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.errors import InvalidInput

Headers = Iterable[tuple[str, bytes | None]]

UNKNOWN_SOURCE = "unknown"

_CONTENT_TYPE = "application/json"
_ATTRIBUTE_CHARS_MAX = 1_024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TRACE_ID = re.compile("(?!0{32})[0-9a-f]{32}")
# W3C Trace Context: any version but ff has these four fields, and ids of zeros mean none.
_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-((?!0{32})[0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


class Encoded(NamedTuple):
    """A record as Kafka takes it."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and its CloudEvents attributes. `time_ms` is None when the sender did not say."""

    message: Message
    id: str
    source: str
    subject: str
    time_ms: int | None
    trace_id: str

    def __post_init__(self) -> None:
        for name, value in (("id", self.id), ("source", self.source), ("subject", self.subject)):
            assert _is_attribute(value), f"{name} {value!r} of a {self.message.kind} cannot be a header"
        assert self.time_ms is None or _is_time(self.time_ms), f"time_ms {self.time_ms} of {self.id} is out of range"
        assert _TRACE_ID.fullmatch(self.trace_id), f"trace id {self.trace_id!r} of {self.id} is not 32 hex digits"

    @property
    def traceparent(self) -> str:
        """W3C trace context. The span is the sending of this event, so its id follows from the event's."""
        return f"00-{self.trace_id}-{_digest('span', self.id)[:16]}-01"


def originate(
    message: Message, *, event_id: str, source: str, time_ms: int | None, trace_id: str | None = None
) -> Envelope:
    """The first envelope of a trace, or the next one of a trace known from elsewhere."""
    return Envelope(
        message=message,
        id=event_id,
        source=source,
        subject=_subject(message),
        time_ms=time_ms,
        trace_id=trace_id or _digest("trace", event_id),
    )


def caused_by(cause: Envelope, message: Message, *, event_id: str, source: str, time_ms: int | None) -> Envelope:
    """The envelope of a message sent because of a received one: it carries the same trace."""
    return originate(message, event_id=event_id, source=source, time_ms=time_ms, trace_id=cause.trace_id)


def encode(envelope: Envelope) -> Encoded:
    """The record for this envelope. A value that its readers would refuse as too large is refused here already."""
    topic = topic_of(envelope.message)
    value = envelope.message.model_dump_json().encode()
    if len(value) > topic.value_bytes_max:
        limit = f"{topic.name} takes at most {topic.value_bytes_max}"
        raise InvalidInput("too-large", f"{envelope.message.kind} {envelope.id} has {len(value)} bytes, {limit}")
    headers = {
        "ce_specversion": "1.0",
        "ce_id": envelope.id,
        "ce_source": envelope.source,
        "ce_type": envelope.message.kind,
        "ce_subject": envelope.subject,
        "ce_traceparent": envelope.traceparent,
        "content-type": _CONTENT_TYPE,
    }
    if envelope.time_ms is not None:
        headers["ce_time"] = _rfc3339(envelope.time_ms)
    return Encoded(topic.key(envelope.message), value, tuple((name, text.encode()) for name, text in headers.items()))


def decode(
    topic: str,
    value: bytes | None,
    headers: Headers | None,
    fallback_id: str,
    fallback_time_ms: int | None = None,
) -> Envelope:
    """The envelope of a received record, or InvalidInput.

    `fallback_id` is its place, "topic/partition/offset": it names the record in a refusal, and it is the id of a
    record sent without one. `fallback_time_ms` is the time Kafka has for it.
    """
    message = parse(topic_named(topic), value, what=f"record {fallback_id}")
    attributes = _attributes(headers)
    time_ms = _time_ms(attributes.get("ce_time"))
    if time_ms is None and fallback_time_ms is not None and _is_time(fallback_time_ms):
        time_ms = fallback_time_ms
    return Envelope(
        message=message,
        id=attributes.get("ce_id", fallback_id),
        source=attributes.get("ce_source", UNKNOWN_SOURCE),
        subject=attributes.get("ce_subject") or _subject(message),
        time_ms=time_ms,
        trace_id=_trace_id(attributes, fallback_id),
    )


def trace_id_of(headers: Headers | None, fallback_id: str) -> str:
    """The trace of a record, also of one whose value cannot be decoded: its dead letter belongs to the same trace."""
    return _trace_id(_attributes(headers), fallback_id)


def _trace_id(attributes: dict[str, str], fallback_id: str) -> str:
    for name in ("ce_traceparent", "traceparent"):  # the second is what OpenTelemetry's Kafka clients write
        if match := _TRACEPARENT.fullmatch(attributes.get(name, "")):
            return match.group(1)
    return _digest("trace", attributes.get("ce_id", fallback_id))


def _attributes(headers: Headers | None) -> dict[str, str]:
    """The headers that are text; the last of several with one name counts, as in Kafka's own `lastHeader`."""
    attributes = {}
    for name, raw in headers or ():
        text = (raw or b"").decode("utf-8", errors="replace")
        if "\ufffd" not in text and _is_attribute(text):
            attributes[name] = text
    return attributes


def _subject(message: Message) -> str:
    return topic_of(message).key(message).decode()


def _is_attribute(text: str) -> bool:
    """CloudEvents attributes are not empty and have no control characters; the length is ours, to bound log lines."""
    return 0 < len(text) <= _ATTRIBUTE_CHARS_MAX and text.isprintable()


def _is_time(time_ms: int) -> bool:
    return TIME_MIN_MS <= time_ms < TIME_MAX_MS


def _rfc3339(time_ms: int) -> str:
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _time_ms(text: str | None) -> int | None:
    try:
        time = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    if time.tzinfo is None:  # whose noon is not known
        return None
    time_ms = (time - _EPOCH) // timedelta(milliseconds=1)
    return time_ms if _is_time(time_ms) else None


def _digest(purpose: str, text: str) -> str:
    return hashlib.sha256(f"floodmark {purpose} {text}".encode()).hexdigest()[:32]
