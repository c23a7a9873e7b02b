"""What each message refuses, and what its readers put up with."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from floodmark.contracts.deadletter import VALUE_KEPT_BYTES_MAX, refuse_record
from floodmark.contracts.envelope import decode, encode, originate
from floodmark.contracts.examples import ALL_EXAMPLES
from floodmark.contracts.fields import REASON_CHARS_MAX
from floodmark.contracts.messages import Message, SegmentAnnounced, SegmentMetadata
from floodmark.contracts.topics import ALL_TOPICS, DEADLETTER, topic_of
from floodmark.core.bounds import BUCKET_TIME_MAX_MS, BUCKET_TIME_MIN_MS
from floodmark.core.errors import InvalidInput
from floodmark.core.fingerprint import EMPTY_HASH
from floodmark.core.names import checked_name

Json = dict[str, Any]
EXAMPLES = {example.envelope.id: example.envelope.message for example in ALL_EXAMPLES}
ADD, DELETE = EXAMPLES["example-add"], EXAMPLES["example-delete-by-name"]
MOVED, TASK, DELETE_TASK = EXAMPLES["example-moved"], EXAMPLES["example-append"], EXAMPLES["example-delete-before-1970"]
COMMITTED, FROZEN = EXAMPLES["example-committed"], EXAMPLES["example-frozen"]
REFUSED = EXAMPLES["example-not-json"]


def wire(message: Message) -> Json:
    content: Json = json.loads(message.model_dump_json())
    return content


def read(message: Message, content: Json) -> Message:
    return decode(topic_of(message).name, json.dumps(content).encode(), None, "t/0/0").message


def put(*path: str | int, value: object) -> Callable[[Json], None]:
    def change(content: Any) -> None:
        for step in path[:-1]:
            content = content[step]
        content[path[-1]] = value

    return change


def drop(field: str) -> Callable[[Json], None]:
    def change(content: Json) -> None:
        del content[field]

    return change


REFUSALS = [
    (ADD, put("table", value="Trips"), "table: name: name 'Trips' must be a lower-case letter"),
    (ADD, put("table", value="trips\n"), "table: name: name 'trips\\n' must be"),
    (ADD, put("table", value="t" * 64), "must be a lower-case letter followed by at most 62"),
    (ADD, drop("table"), "table: Field required"),
    (ADD, put("action", value="upsert"), "action: Input should be 'add', 'replace' or 'delete', got 'upsert'"),
    (ADD, put("path", value=None), "path must be given with action 'add'"),
    (ADD, put("path", value="/data/a"), "path: must be relative to the table's location, or a URI"),
    (ADD, put("path", value="a/../../b"), "path: must not contain '..'"),
    (ADD, put("path", value="a\nb"), "path: must not contain control characters"),
    (ADD, put("name", value="a\0b"), "name: must not contain NUL"),
    (ADD, put("name", value="é" * 513), "name: must have at most 1024 bytes in UTF-8"),
    (ADD, put("name", value=""), "name: String should have at least 1 character"),
    (ADD, put("metadata", "last_ms", value=None), "metadata: start_ms and last_ms must be given together"),
    (ADD, put("metadata", "last_ms", value=0), "metadata: last_ms must not be before start_ms"),
    (ADD, put("metadata", "rows", value=-1), "metadata.rows: Input should be greater than or equal to 0, got -1"),
    (ADD, put("metadata", "rows", value="5"), "metadata.rows: Input should be a valid integer, got '5'"),
    (ADD, put("metadata", "rows", value=5.0), "metadata.rows: Input should be a valid integer"),
    (ADD, put("metadata", "rows", value=True), "metadata.rows: Input should be a valid integer, got True"),
    (ADD, put("metadata", "rows", value=2**53), "metadata.rows: Input should be less than or equal to"),
    (ADD, put("metadata", "crc", value="0x1f"), "metadata.crc: must be a signed 64-bit number as a decimal string"),
    (ADD, put("metadata", "crc", value="1_0"), "metadata.crc: must be a signed 64-bit number"),
    (ADD, put("metadata", "crc", value=str(2**63)), "metadata.crc: Input should be less than or equal to"),
    (ADD, put("metadata", "crc", value=str(-(2**63) - 1)), "metadata.crc: Input should be greater than or equal"),
    (ADD, put("metadata", "crc", value="0x1f"), "crc: must be a signed 64-bit number as a decimal string, got '0x1f'"),
    (ADD, put("metadata", "crc", value="5\n"), "crc: must be a signed 64-bit number as a decimal string, got '5\\n'"),
    (ADD, put("metadata", "crc", value=True), "metadata.crc: Input should be a valid integer, got True"),
    (ADD, put("metadata", "crc", value=5.0), "metadata.crc: Input should be a valid integer, got 5.0"),
    (ADD, put("metadata", "crc", value=2**63), f"metadata.crc: Input should be less than or equal to {2**63 - 1}, got"),
    (DELETE, drop("name"), "path or name must be given with action 'delete'"),
    (MOVED, put("changes", value=[]), "changes: Tuple should have at least 1 item"),
    (MOVED, put("changes", 0, "crc", value=None), "changes.0: crc must be null exactly when action is 'deleted'"),
    (MOVED, put("changes", 0, "action", value="deleted"), "changes.0: crc must be null exactly when"),
    (MOVED, put("changes", 0, "ranges", value=[]), "changes.0.ranges: Tuple should have at least 1 item"),
    (MOVED, put("changes", 0, "ranges", 0, "end_ms", value=0), "changes.0.ranges.0: end_ms must be after start_ms"),
    (MOVED, put("changes", 0, "ranges", 0, value={"start_ms": 5, "end_ms": 5}), "end_ms must be after start_ms"),
    (MOVED, put("registered_at_ms", value=253_402_300_800_001), "registered_at_ms: Input should be less than"),
    (MOVED, put("event_id", value="two words"), "event_id: String should match pattern"),
    (TASK, put("bucket_end_ms", value=0), "bucket_end_ms must be after bucket_start_ms"),
    (
        TASK,
        put("bucket_start_ms", value=BUCKET_TIME_MIN_MS - 1),
        "bucket_start_ms: Input should be greater than or equal",
    ),
    (TASK, put("bucket_end_ms", value=BUCKET_TIME_MAX_MS + 1), "bucket_end_ms: Input should be less than or equal"),
    (TASK, put("mode", value="append"), "mode: Input should be 'APPEND', 'OVERWRITE' or 'DELETE'"),
    (TASK, put("lane", value="fast"), "lane: Input should be 'live', 'repair' or 'backfill'"),
    (TASK, put("dispatch_try", value=0), "dispatch_try: Input should be greater than or equal to 1"),
    (TASK, put("slice_versions", value={}), "slice_versions: Dictionary should have at least 1 item"),
    (TASK, put("slice_versions", value={"narrow": 1}), "slice_versions.narrow.[key]: String should match pattern"),
    (TASK, put("slice_versions", value={"wide": -1}), "slice_versions.wide: Input should be greater than or equal"),
    (TASK, put("fingerprint", "count", value=0), f"fingerprint: hash must be {EMPTY_HASH} when count is 0"),
    (DELETE_TASK, put("fingerprint", "count", value=3), "fingerprint.count must be 0 with mode 'DELETE', got 3"),
    (COMMITTED, put("outcome", value="failed"), "error must be present exactly when outcome is frozen or failed"),
    (FROZEN, put("outcome", value="committed"), "error must be present exactly when outcome is frozen or failed"),
    (FROZEN, put("error", "object", value=""), "error.object: String should have at least 1 character"),
    (REFUSED, put("value", value="AAAA!"), "value: must be base64"),
    (REFUSED, put("offset", value=-1), "offset: Input should be greater than or equal to 0"),
]


@pytest.mark.parametrize(("message", "change", "complaint"), REFUSALS, ids=[row[2][:60] for row in REFUSALS])
def test_a_bad_value_is_refused_with_its_field_and_rule(
    message: Message, change: Callable[[Json], None], complaint: str
) -> None:
    """The refusal names the message's kind, the field and what would be right."""
    content = wire(message)
    assert read(message, content) == message
    change(content)
    with pytest.raises(InvalidInput) as refusal:
        read(message, content)
    assert refusal.value.rule == "schema"
    assert f"is no {message.kind}" in str(refusal.value)
    assert complaint in str(refusal.value)


@pytest.mark.parametrize("message", EXAMPLES.values(), ids=EXAMPLES)
def test_a_message_that_does_not_say_its_kind_is_refused(message: Message) -> None:
    """However well the rest fits: in Python the kind is filled in, on the wire it must be said."""
    content = wire(message)
    del content["kind"]
    with pytest.raises(InvalidInput, match="has kind None") as refusal:
        read(message, content)
    assert refusal.value.rule == "unknown-kind"


@pytest.mark.parametrize("example", ALL_EXAMPLES, ids=lambda example: example.envelope.id)
def test_readers_ignore_fields_they_do_not_know(example: Any) -> None:
    """A newer sender may add fields, at every level, and older readers go on."""

    def with_extras(content: Any) -> Any:
        if isinstance(content, list):
            return [with_extras(item) for item in content]
        if isinstance(content, dict):
            grown = {name: with_extras(item) for name, item in content.items()}
            return grown if "wide" in content or "-86400000" in content else grown | {"added_later": {"deep": [1]}}
        return content

    message = example.envelope.message
    assert read(message, with_extras(wire(message))) == message


def test_every_message_has_examples() -> None:
    """A kind without a golden example could break unseen."""
    shown = {type(message) for message in EXAMPLES.values()}
    assert shown == {model for topic in ALL_TOPICS for model in topic.models}


def test_sixty_four_bit_numbers_are_strings_on_the_wire_and_ints_in_python() -> None:
    """JSON tools round numbers above 2**53, so a CRC is written as a decimal string; a number is read as well."""
    metadata = SegmentMetadata(crc=-(2**63))
    assert json.loads(metadata.model_dump_json())["crc"] == "-9223372036854775808"
    content = wire(ADD)
    content["metadata"]["crc"] = 2**63 - 1
    message = read(ADD, content)
    assert isinstance(message, SegmentAnnounced)
    assert message.metadata is not None
    assert message.metadata.crc == 2**63 - 1


def test_a_message_cannot_be_changed() -> None:
    """Messages are values: neither a field nor a mapping inside can be assigned."""
    with pytest.raises(ValidationError, match="frozen"):
        TASK.view = "other"  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        TASK.slice_versions["wide"] = 9  # type: ignore[attr-defined]


def test_a_refusal_stays_short_however_much_is_wrong() -> None:
    """A refusal goes into a log line, so the sender cannot make it long."""
    content = wire(MOVED)
    content["changes"] = [{"action": "x" * 1_000}] * 500
    with pytest.raises(InvalidInput, match="and 1995 more") as refusal:
        read(MOVED, content)
    assert len(str(refusal.value)) < 1_500


def test_a_list_of_bad_items_is_not_called_too_short() -> None:
    """The refusal names the bad item alone; only a list sent empty is too short."""
    content = wire(MOVED)
    content["changes"][0]["crc"] = "x"
    with pytest.raises(InvalidInput, match=r"changes\.0\.crc: must be a signed") as refusal:
        read(MOVED, content)
    assert "at least 1 item" not in str(refusal.value)


def test_a_name_is_refused_by_the_rule_for_names() -> None:
    """The core's rule stands alone: it names what is called so, and the offender."""
    assert checked_name("a" + "_" * 62) == "a" + "_" * 62
    with pytest.raises(InvalidInput, match="name: view '9lives' must be a lower-case letter") as refusal:
        checked_name("9lives", what="view")
    assert refusal.value.rule == "name"


def refused(**changes: Any) -> Any:
    record: Json = {
        "refusal": InvalidInput("not-json", "record t/0/1 is not JSON"),
        "key": b"k",
        "value": b"\x00v",
        "headers": [("a", b"1"), ("a", None)],
    }
    return refuse_record(
        **(record | changes),
        topic="t",
        partition=0,
        offset=1,
        service="ingester",
        replica="r0",
        refused_at_ms=5,
    )


def test_a_dead_letter_keeps_the_original_bytes_and_the_rule() -> None:
    """Key, value and headers come back byte for byte, repeated headers included."""
    letter = refused()
    assert (letter.key, letter.value, letter.dropped_bytes) == (b"k", b"\x00v", 0)
    assert [(header.name, header.value) for header in letter.headers] == [("a", b"1"), ("a", None)]
    assert (letter.rule, letter.reason) == ("not-json", "not-json: record t/0/1 is not JSON")
    assert wire(letter)["value"] == "AHY="


def test_a_dead_letter_says_absent_apart_from_empty() -> None:
    """A tombstone is not an empty value."""
    assert refused(key=None, value=None, headers=None).value is None
    assert refused(value=b"").value == b""


def test_a_dead_letter_always_fits_its_topic() -> None:
    """However large the record, its dead letter can be sent; what was left out is counted."""
    headers = [("\x01" * 1_000, b"v" * 1_000)] * 500 + [("", None)] * 100_000
    letter = refused(key=b"k" * 1_000_000, value=b"v" * 10_000_000, headers=headers)
    encoded = encode(originate(letter, event_id="e", source="s", time_ms=0))
    assert len(encoded.value) <= DEADLETTER.value_bytes_max
    assert decode(DEADLETTER.name, encoded.value, encoded.headers, "d/0/0").message == letter
    kept = len(letter.key) + len(letter.value) + sum(len(h.name) + len(h.value or b"") for h in letter.headers)
    assert kept + letter.dropped_bytes == 1_000_000 + 10_000_000 + 500 * 2_000
    assert len(letter.value) == VALUE_KEPT_BYTES_MAX


def test_a_dead_letter_cuts_a_long_reason() -> None:
    """A reason may quote the record; it must not be what makes the dead letter impossible."""
    assert len(refused(refusal=InvalidInput("schema", "x" * 10_000)).reason) == REASON_CHARS_MAX


def test_a_dead_letter_survives_text_that_is_no_utf8() -> None:
    """A lone surrogate in a header's name is replaced: the record must still be put away."""
    letter = refused(headers=[("\ud800", b"1")])
    assert letter.headers[0].name == "?"
    assert read(letter, wire(letter)) == letter
