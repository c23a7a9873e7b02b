"""Two ways to read `segments-changed.v1`, one contract: whatever the quick way takes, the model takes for the same."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.contracts.changes import changes_of, read_changes, read_quickly
from floodmark.contracts.examples import ALL_EXAMPLES
from floodmark.contracts.messages import SegmentsChanged
from floodmark.contracts.parsing import parse
from floodmark.contracts.topics import SEGMENTS
from floodmark.core.bounds import INT64_MAX, INT64_MIN, SEGMENT_NAME_BYTES_MAX, TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.errors import InvalidInput
from tests.property.test_contracts_roundtrip import json_values, segments

EVENTS = [e.envelope.message for e in ALL_EXAMPLES if isinstance(e.envelope.message, SegmentsChanged)]
TRACE = "0af7651916cd43dd8448eb211c80319c"

# Just inside and just outside of each rule, and what one JSON reader takes for a number or a text and another does not.
NEAR_MISSES: list[Any] = [
    *(0, -0.0, 1.0, 1e3, True, 2**53 - 1, 2**53, INT64_MAX, INT64_MAX + 1, 10**400, float("nan"), float("inf")),
    *(TIME_MIN_MS, TIME_MIN_MS - 1, TIME_MAX_MS, TIME_MAX_MS + 1, None, [], {}, [{}], [[]]),
    *("0", "-0", "007", "+7", " 7", "7 ", "7\n", "1_0", "1.0", "0x7", "\u0667", "", str(INT64_MAX), str(INT64_MIN)),
    *(
        str(INT64_MAX + 1),
        str(INT64_MIN - 1),
        "9" * 20,
        "9" * 5_000,
        "trips",
        "trips\n",
        "Trips",
        "_t",
        "t" * 63,
        "t" * 64,
    ),
    *("a b", "a\n", "\x7f", "~", "!", "é", "\0", "a\0b", "x" * 256, "x" * 257, "\U0001f40d" * 256, "\U0001f40d" * 257),
    *("é" * 512, "x" * SEGMENT_NAME_BYTES_MAX, "x" * (SEGMENT_NAME_BYTES_MAX + 1), "\ud800", TRACE, TRACE.upper()),
    *(TRACE[1:], f"{TRACE}0", f"{TRACE}\n", f" {TRACE[1:]}", "g" + TRACE[1:], "added", "replaced", "deleted", "ADDED"),
    *("segments-changed.v1", "segments-changed.v2"),
]


def by_the_model(value: bytes) -> SegmentsChanged | InvalidInput:
    try:
        message = parse(SEGMENTS, value, what="it")
    except InvalidInput as error:
        return error
    assert isinstance(message, SegmentsChanged)
    return message


def agree(value: bytes) -> bool:
    """Whether the quick way took it; it must not if the model does not, and whoever asks gets what the model says."""
    quick, model = read_quickly(value), by_the_model(value)
    if isinstance(model, InvalidInput):
        assert quick is None, f"{value!r} must be refused: {model}"
        with pytest.raises(InvalidInput) as refusal:
            read_changes(value, what="it")
        assert (refusal.value.rule, str(refusal.value)) == (model.rule, str(model))
        return False
    assert read_changes(value, what="it") == changes_of(model)
    return quick is not None


def places(content: Any) -> list[tuple[Any, Any]]:
    """Every container with a key into it, at any depth."""
    if not isinstance(content, dict | list):
        return []
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    return [*((content, key) for key in keys), *(place for key in keys for place in places(content[key]))]


def written(content: Any) -> bytes:
    return json.dumps(content).encode()


@st.composite
def contents(draw: st.DrawFn) -> Any:
    return json.loads(draw(st.sampled_from(EVENTS) | segments).model_dump_json())


@given(segments)
def test_what_this_project_sends_is_read_the_quick_way(event: SegmentsChanged) -> None:
    """Whatever is in it, up to names of a length that hardly any file has."""
    assert agree(event.model_dump_json().encode())


@given(contents(), st.data())
def test_one_field_replaced_at_any_depth_is_read_alike(content: Any, data: st.DataObject) -> None:
    container, key = data.draw(st.sampled_from(places(content)))
    container[key] = data.draw(st.sampled_from(NEAR_MISSES) | json_values)
    agree(written(content))


@given(contents(), st.data())
def test_a_field_left_out_added_or_given_twice_is_read_alike(content: Any, data: st.DataObject) -> None:
    container, key = data.draw(st.sampled_from([place for place in places(content) if isinstance(place[0], dict)]))
    other = json.dumps(data.draw(st.sampled_from(NEAR_MISSES)))
    if data.draw(st.booleans()):
        del container[key]
    else:
        container["placeholder"] = 0
    name = data.draw(st.sampled_from([str(key), "later"]))
    agree(written(content).replace(b'"placeholder": 0', f"{json.dumps(name)}: {other}".encode()))


@given(contents(), st.data())
def test_a_byte_changed_anywhere_is_read_alike(content: Any, data: st.DataObject) -> None:
    """Broken JSON, broken UTF-8, white space, escapes."""
    value = bytearray(written(content))
    at = data.draw(st.integers(0, len(value) - 1))
    put = data.draw(st.binary(max_size=3) | st.sampled_from([b"\\u0000", b"\\ud800", b" ", b"\n"]))
    value[at : at + data.draw(st.integers(0, 2))] = put
    agree(bytes(value))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.event_id)
@pytest.mark.parametrize("near_miss", NEAR_MISSES, ids=lambda value: repr(value)[:30])
def test_every_near_miss_in_every_field_is_read_alike(event: SegmentsChanged, near_miss: Any) -> None:
    """Not left to chance."""
    for n in range(len(places(json.loads(event.model_dump_json())))):
        content = json.loads(event.model_dump_json())
        container, key = places(content)[n]
        container[key] = near_miss
        agree(written(content))


@pytest.mark.parametrize("value", [None, b"", b"x" * (SEGMENTS.value_bytes_max + 1), b"[" * 100_000, b"\xff"])
def test_no_value_and_hostile_values_are_refused_by_the_models_words(value: bytes | None) -> None:
    with pytest.raises(InvalidInput) as refusal:
        read_changes(value, what="it")
    with pytest.raises(InvalidInput) as model:
        parse(SEGMENTS, value, what="it")
    assert str(refusal.value) == str(model.value)


def test_a_field_of_a_later_version_does_not_keep_an_event_from_being_read() -> None:
    """Readers ignore fields they do not know."""
    content = json.loads(EVENTS[0].model_dump_json())
    content["later"] = content["changes"][0]["later"] = {"a": [1]}
    assert read_changes(written(content), what="it") == changes_of(EVENTS[0])
