"""Records to envelopes and back: the refusals of `decode`, and headers that may be anything."""

import json

import pytest

from floodmark.contracts.envelope import Envelope, caused_by, decode, encode, originate, trace_id_of
from floodmark.contracts.examples import ALL_EXAMPLES
from floodmark.contracts.messages import SegmentAnnounced, SegmentChange, SegmentsChanged
from floodmark.contracts.topics import ALL_TOPICS, ANNOUNCEMENTS, DEADLETTER, RESULTS, SEGMENTS, TASKS, topic_named
from floodmark.core.errors import InvalidInput

MESSAGE = SegmentAnnounced(table="trips", action="add", path="part-0.parquet")
VALUE = MESSAGE.model_dump_json().encode()
TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE}-b7ad6b7169203331-01"
PLACE = "announcements.v1/3/17"


def read(value: bytes | None = VALUE, headers: list[tuple[str, bytes | None]] | None = None) -> Envelope:
    return decode("announcements.v1", value, headers, PLACE)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("value-missing", None),
        ("not-json", b""),
        ("not-json", b"{oops"),
        ("not-json", VALUE + b"}"),
        ("not-json", b"\xef\xbb\xbf" + VALUE),
        ("not-json", b'{"kind": "segment-announced.v1", "rows": ' + b"9" * 10_000 + b"}"),
        ("not-utf8", b'{"kind": "\xff"}'),
        ("too-deep", b"[" * 500_000),
        ("too-deep", b'{"kind":' * 100_000),
        ("too-large", b" " * (1024 * 1024 + 1)),
        ("schema", b"[]"),
        ("schema", b"null"),
        ("schema", b'{"kind": "segment-announced.v1"}'),
        ("unknown-kind", b"{}"),
        ("unknown-kind", b'{"kind": ["segment-announced.v1"]}'),
        ("unknown-kind", b'{"kind": "segment-announced.v2"}'),
        ("wrong-kind-for-topic", b'{"kind": "build-bucket.v1"}'),
    ],
)
def test_a_record_that_cannot_be_read_is_refused_by_a_named_rule(rule: str, value: bytes | None) -> None:
    """Whatever the bytes, the answer is InvalidInput with a stable rule and the record's place."""
    with pytest.raises(InvalidInput) as refusal:
        read(value)
    assert refusal.value.rule == rule
    assert PLACE in str(refusal.value)


def test_a_value_at_the_limit_is_read() -> None:
    """The limit of 1 MiB is inclusive."""
    assert read(VALUE + b" " * (1024 * 1024 - len(VALUE))).message == MESSAGE


def test_a_message_too_large_for_its_readers_is_not_sent() -> None:
    """What `decode` would refuse, `encode` refuses first."""
    change = SegmentChange(action="added", name="n" * 1_024, crc=1, ranges=None)
    message = SegmentsChanged(
        event_id="e", table="t", registry_version=1, registered_at_ms=0, changes=(change,) * 1_100
    )
    with pytest.raises(InvalidInput, match=r"segments\.v1 takes at most 1048576") as refusal:
        encode(originate(message, event_id="e", source="s", time_ms=0))
    assert refusal.value.rule == "too-large"


def test_an_unknown_topic_is_refused() -> None:
    """A topic this project does not know has no messages."""
    with pytest.raises(InvalidInput, match=r"unknown-topic: topic 'other' is none of announcements\.v1, "):
        decode("other", VALUE, None, "other/0/0")


def test_attributes_travel_in_the_headers() -> None:
    """CloudEvents 1.0 in binary mode: attributes as ce_ headers, the value is the message alone."""
    envelope = originate(MESSAGE, event_id="e-1", source="floodmark/test", time_ms=1_751_328_000_250, trace_id=TRACE)
    key, value, headers = encode(envelope)
    assert key == b"trips"
    assert json.loads(value)["kind"] == "segment-announced.v1"
    assert dict(headers) == {
        "ce_specversion": b"1.0",
        "ce_id": b"e-1",
        "ce_source": b"floodmark/test",
        "ce_type": b"segment-announced.v1",
        "ce_subject": b"trips",
        "ce_time": b"2025-07-01T00:00:00.250Z",
        "ce_traceparent": envelope.traceparent.encode(),
        "content-type": b"application/json",
    }
    assert decode("announcements.v1", value, headers, PLACE) == envelope


@pytest.mark.parametrize("headers", [None, []])
def test_a_record_without_headers_is_known_by_its_place(headers: list[tuple[str, bytes | None]] | None) -> None:
    """A person with kcat sends no headers; the id and, each time the same, the trace follow from the place."""
    envelope = read(VALUE, headers)
    assert (envelope.id, envelope.source, envelope.subject, envelope.time_ms) == (PLACE, "unknown", "trips", None)
    assert envelope.trace_id == read(VALUE, headers).trace_id
    assert envelope.trace_id != decode("announcements.v1", VALUE, headers, "announcements.v1/3/18").trace_id


@pytest.mark.parametrize("raw", [None, b"", b"\xff\xfe", b"a\nb", b"x" * 2_000])
@pytest.mark.parametrize("name", ["ce_id", "ce_source", "ce_subject", "ce_time", "ce_traceparent", "ce_specversion"])
def test_a_malformed_attribute_is_replaced(name: str, raw: bytes | None) -> None:
    """A bad header costs the header, never the message."""
    assert read(VALUE, [(name, raw)]) == read(VALUE)


@pytest.mark.parametrize(
    "text", ["yesterday", "2025-07-01T00:00:00", "2025-02-30T00:00:00Z", "0001-01-01T00:00:00+14:00", "1751328000"]
)
def test_a_time_that_says_no_instant_is_replaced(text: str) -> None:
    """Without a zone or outside years 1 to 9999 there is no instant; Kafka's own time stands in when there is one."""
    headers = [("ce_time", text.encode())]
    assert read(VALUE, [*headers]).time_ms is None
    assert decode("announcements.v1", VALUE, headers, PLACE, fallback_time_ms=5).time_ms == 5
    assert decode("announcements.v1", VALUE, headers, PLACE, fallback_time_ms=2**62).time_ms is None


def test_a_time_in_any_zone_is_the_same_instant() -> None:
    """RFC 3339 allows any offset."""
    assert read(VALUE, [("ce_time", b"2025-07-01T02:00:00.250+02:00")]).time_ms == 1_751_328_000_250


@pytest.mark.parametrize("name", ["ce_traceparent", "traceparent"])
def test_a_trace_is_carried_on(name: str) -> None:
    """Both CloudEvents' header and the one OpenTelemetry writes are understood."""
    assert read(VALUE, [(name, TRACEPARENT.encode())]).trace_id == TRACE
    assert trace_id_of([(name, TRACEPARENT.encode())], PLACE) == TRACE


@pytest.mark.parametrize(
    "traceparent",
    [
        f"ff-{TRACE}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-b7ad6b7169203331-01",
        f"00-{TRACE}-b7ad6b7169203331",
        TRACE,
    ],
)
def test_a_malformed_traceparent_is_replaced(traceparent: str) -> None:
    """The new trace follows from the event's id, so that a second reading finds the same one."""
    headers: list[tuple[str, bytes | None]] = [("ce_id", b"e-1"), ("ce_traceparent", traceparent.encode())]
    assert read(VALUE, headers).trace_id == read(VALUE, [("ce_id", b"e-1")]).trace_id


def test_an_event_sent_twice_without_a_trace_is_one_trace() -> None:
    """The trace follows from the event's own id when it has one, wherever the copies lie."""
    first, second = (decode("announcements.v1", VALUE, [("ce_id", b"e-1")], place) for place in (PLACE, "t/0/1"))
    assert first.trace_id == second.trace_id


def test_the_last_of_repeated_headers_counts() -> None:
    """As in Kafka's own lastHeader: whoever forwards a record appends."""
    assert read(VALUE, [("ce_id", b"old"), ("ce_id", b"new")]).id == "new"


def test_a_caused_message_belongs_to_the_same_trace_as_its_cause() -> None:
    """One trace id from announcement to result; each sending is a span of its own."""
    cause = read(VALUE, [("ce_traceparent", TRACEPARENT.encode())])
    change = SegmentChange(action="added", name="n", crc=1, ranges=None)
    message = SegmentsChanged(event_id="e", table="t", registry_version=1, registered_at_ms=0, changes=(change,))
    effect = caused_by(cause, message, event_id="e-2", source="floodmark/ingester", time_ms=7)
    assert (effect.trace_id, effect.subject) == (TRACE, "t")
    assert effect.traceparent.startswith(f"00-{TRACE}-")
    assert effect.traceparent != cause.traceparent


def test_an_envelope_that_could_not_be_sent_is_a_bug() -> None:
    """Our own ids, times and traces are asserted, not replaced."""
    with pytest.raises(AssertionError, match="trace id 'abc' of e is not 32 hex digits"):
        originate(MESSAGE, event_id="e", source="s", time_ms=0, trace_id="abc")
    with pytest.raises(AssertionError, match=r"id 'a\\nb' of a segment-announced\.v1 cannot be a header"):
        originate(MESSAGE, event_id="a\nb", source="s", time_ms=0)
    with pytest.raises(AssertionError, match="is out of range"):
        originate(MESSAGE, event_id="e", source="s", time_ms=2**60)


def test_keys_bring_together_what_belongs_together() -> None:
    """The key chooses the partition: a table's changes, a bucket's tasks, a view's results, a topic's refusals."""
    keys = {e.envelope.id: encode(e.envelope).key for e in ALL_EXAMPLES}
    assert keys["example-add"] == b"trips"
    assert keys["example-moved"] == b"trips"
    assert keys["example-append"] == b"trips_hourly/1751328000000"
    assert keys["example-committed"] == b"trips_hourly"
    assert keys["example-not-json"] == b"announcements.v1"


def test_a_topic_keys_only_its_own_messages() -> None:
    """A message on the wrong topic is our bug."""
    with pytest.raises(AssertionError, match=r"segment-announced\.v1 does not travel on tasks\.v1"):
        TASKS.key(MESSAGE)


def test_topics_have_explicit_partitions_and_retention() -> None:
    """Nothing is left to the broker's defaults."""
    day_ms = 24 * 60 * 60 * 1000
    shapes = {topic.name: (topic.partitions, topic.retention_ms // day_ms) for topic in ALL_TOPICS}
    assert shapes == {
        "announcements.v1": (6, 7),
        "segments.v1": (6, 7),
        "tasks.v1": (12, 7),
        "results.v1": (6, 7),
        "deadletter.v1": (1, 30),
    }
    assert ALL_TOPICS == (ANNOUNCEMENTS, SEGMENTS, TASKS, RESULTS, DEADLETTER)
    assert topic_named("deadletter.v1").config == {
        "cleanup.policy": "delete",
        "retention.ms": "2592000000",
        "max.message.bytes": str(4 * 1024 * 1024 + 64 * 1024),
    }
