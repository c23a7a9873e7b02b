"""For any message: what is sent is what is read. For any bytes: a message or a refusal, never a crash."""

import json
from typing import Any, Literal, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from floodmark.contracts import messages as m
from floodmark.contracts.deadletter import refuse_record
from floodmark.contracts.envelope import Envelope, decode, encode, originate
from floodmark.contracts.examples import ALL_EXAMPLES
from floodmark.contracts.topics import ALL_TOPICS, topic_of
from floodmark.core.bounds import BUCKET_MAX_MS, INT64_MAX, INT64_MIN, TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.buckets import BucketGrid
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval

modes: st.SearchStrategy[m.Mode] = st.sampled_from(get_args(m.Mode))
lanes: st.SearchStrategy[m.Lane] = st.sampled_from(get_args(m.Lane))
outcomes: st.SearchStrategy[m.Outcome] = st.sampled_from(get_args(m.Outcome))
announced: st.SearchStrategy[Literal["add", "replace", "delete"]] = st.sampled_from(["add", "replace", "delete"])
changed: st.SearchStrategy[Literal["added", "replaced", "deleted"]] = st.sampled_from(["added", "replaced", "deleted"])
names = st.from_regex("[a-z][a-z0-9_]{0,62}", fullmatch=True)
ids = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=50)
reasons = st.text(st.characters(exclude_categories=["Cs"]), max_size=50)
printable = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=50)
paths = printable.filter(lambda path: not path.startswith("/") and ".." not in path.split("/"))
counts = st.integers(0, 2**53 - 1)
int64s = st.integers(INT64_MIN, INT64_MAX)
times = st.integers(TIME_MIN_MS, TIME_MAX_MS)
spans = st.tuples(times, times).filter(lambda pair: pair[0] != pair[1]).map(sorted)
windows = st.builds(
    lambda ms, width_ms: BucketGrid(width_ms).widened(Interval(ms, ms + 1)), times, st.integers(1, BUCKET_MAX_MS)
)
"""The bucket of any time, of any width that a view may have."""
attributes = st.text(min_size=1, max_size=100).filter(str.isprintable)
raw_headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=50)), max_size=5)


@st.composite
def metadata(draw: st.DrawFn) -> m.SegmentMetadata:
    start_ms, last_ms = draw(st.just([None, None]) | st.tuples(times, times).map(sorted))
    optional = {"rows": counts, "bytes": counts, "crc": int64s}
    return m.SegmentMetadata(
        start_ms=start_ms, last_ms=last_ms, **{name: draw(st.none() | values) for name, values in optional.items()}
    )


@st.composite
def announcements(draw: st.DrawFn) -> m.SegmentAnnounced:
    action = draw(announced)
    path, name = draw(paths), draw(st.none() | texts)
    by_name = action == "delete" and name is not None and draw(st.booleans())
    return m.SegmentAnnounced(
        table=draw(names),
        action=action,
        path=None if by_name else path,
        name=name,
        metadata=draw(st.none() | metadata()),
    )


@st.composite
def changes(draw: st.DrawFn) -> m.SegmentChange:
    action = draw(changed)
    ranges = st.lists(spans.map(lambda span: m.TimeRange(start_ms=span[0], end_ms=span[1])), min_size=1, max_size=2)
    return m.SegmentChange(
        action=action,
        name=draw(texts),
        crc=None if action == "deleted" else draw(int64s),
        ranges=draw(st.none() | ranges.map(tuple)),
    )


segments = st.builds(
    m.SegmentsChanged,
    event_id=ids,
    table=names,
    registry_version=counts,
    registered_at_ms=times,
    changes=st.lists(changes(), min_size=1, max_size=5).map(tuple),
)


@st.composite
def tasks(draw: st.DrawFn) -> m.BuildBucket:
    window = draw(windows)
    mode = draw(modes)
    count = 0 if mode == "DELETE" else draw(counts)
    return m.BuildBucket(
        task_id=draw(ids),
        view=draw(names),
        incarnation=draw(ids),
        bucket_start_ms=window.start_ms,
        bucket_end_ms=window.end_ms,
        mode=mode,
        lane=draw(lanes),
        fingerprint=m.SourceFingerprint(count=count, hash=draw(int64s) if count else m.EMPTY_HASH),
        slice_versions=draw(
            st.dictionaries(st.just("wide") | times.map(str), st.integers(0, 2**31 - 1), min_size=1, max_size=4)
        ),
        definition_hash=draw(ids),
        dispatched_at_ms=draw(times),
        dispatch_try=draw(st.integers(1, 100)),
    )


@st.composite
def results(draw: st.DrawFn) -> m.BucketBuilt:
    outcome = draw(outcomes)
    errors = st.builds(m.BuildError, rule=ids, message=reasons, object=texts)
    return m.BucketBuilt(
        task_id=draw(ids),
        attempt_id=draw(ids),
        view=draw(names),
        incarnation=draw(ids),
        bucket_start_ms=draw(windows).start_ms,
        mode=draw(modes),
        outcome=outcome,
        reason=draw(st.none() | reasons),
        rows_read=draw(counts),
        rows_written=draw(counts),
        bytes_written=draw(counts),
        duration_ms=draw(counts),
        error=draw(errors) if outcome in ("frozen", "failed") else None,
    )


refusals = st.builds(
    refuse_record,
    st.builds(InvalidInput, ids, reasons),
    topic=ids,
    partition=counts,
    offset=counts,
    key=st.none() | st.binary(max_size=50),
    value=st.none() | st.binary(max_size=200),
    headers=st.none() | raw_headers,
    service=ids,
    replica=ids,
    refused_at_ms=times,
)

any_message = st.one_of(announcements(), segments, tasks(), results(), refusals)
VALIDATORS = {
    model.kind_name(): Draft202012Validator(model.model_json_schema(mode="serialization"))
    for topic in ALL_TOPICS
    for model in topic.models
}


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    return originate(
        draw(any_message),
        event_id=draw(attributes),
        source=draw(attributes),
        time_ms=draw(st.none() | st.integers(TIME_MIN_MS, TIME_MAX_MS - 1)),
        trace_id=draw(st.none() | st.integers(1, 2**128 - 1).map("{:032x}".format)),
    )


@given(envelopes())
def test_what_is_encoded_decodes_to_the_same_envelope(envelope: Envelope) -> None:
    """Message and attributes survive the wire exactly, whatever they hold."""
    record = encode(envelope)
    assert decode(topic_of(envelope.message).name, record.value, record.headers, "t/0/0") == envelope


@given(any_message)
def test_what_is_encoded_matches_the_published_schema(message: m.Message) -> None:
    """No message this project can send surprises a reader who relies on the JSON Schema."""
    VALIDATORS[message.kind].validate(json.loads(message.model_dump_json()))


@given(any_message, raw_headers | st.lists(st.tuples(st.sampled_from(["ce_id", "ce_time"]), st.binary(max_size=40))))
def test_no_header_loses_a_message(message: m.Message, headers: list[tuple[str, bytes | None]]) -> None:
    """Headers may hold anything: the message is read, and the envelope can be sent again."""
    topic = topic_of(message).name
    envelope = decode(topic, message.model_dump_json().encode(), headers, f"{topic}/0/0")
    assert envelope.message == message
    assert decode(topic, *encode(envelope)[1:], f"{topic}/0/1") == envelope


def refused_or_read(topic: str, value: bytes) -> m.Message | None:
    try:
        return decode(topic, value, None, f"{topic}/0/0").message
    except InvalidInput:
        return None


@given(st.sampled_from(ALL_TOPICS), st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(topic: Any, value: bytes) -> None:
    """Random bytes carry no kind, so each is an InvalidInput and nothing else."""
    assert refused_or_read(topic.name, value) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.sampled_from([10**400, "1e5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize("example", ALL_EXAMPLES, ids=lambda example: example.envelope.id)
@given(data=st.data())
def test_any_value_in_any_field_is_read_or_refused(example: Any, data: st.DataObject) -> None:
    """One field replaced by any JSON: whatever is still read can be sent again and means the same."""
    message = example.envelope.message
    content = json.loads(message.model_dump_json())
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(json_values)
    found = refused_or_read(topic_of(message).name, json.dumps(content).encode())
    if found is not None:
        assert refused_or_read(topic_of(message).name, found.model_dump_json().encode()) == found
