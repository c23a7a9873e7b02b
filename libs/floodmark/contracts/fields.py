"""The value types that messages are made of: each one bounded, and read the same way by every JSON tool."""

import base64
import binascii
from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetPydanticSchema,
    PlainSerializer,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import core_schema

from floodmark.core.bounds import (
    BUCKET_TIME_MAX_MS,
    BUCKET_TIME_MIN_MS,
    INT64_MAX,
    INT64_MIN,
    SEGMENT_NAME_BYTES_MAX,
    TIME_MAX_MS,
    TIME_MIN_MS,
)
from floodmark.core.names import NAME_PATTERN

REASON_CHARS_MAX = 4_096
SLICES_MAX = 10_000
CHANGES_MAX = 10_000
ID_CHARS_MAX = 256
COUNT_MAX = 2**53 - 1  # the largest number that JSON tools which read numbers as doubles keep exact
_ZK_VERSION_MAX = 2**31 - 1
_DECIMAL = "^-?(0|[1-9][0-9]{0,18})$"


def _bytes_from_base64(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"must be base64: {error}") from error


def _base64_from_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def _without_control_characters(value: str) -> str:
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
        raise ValueError("must not contain control characters")
    return value


def _checked_segment_name(value: str) -> str:
    if "\0" in value:  # ends the name inside a fingerprint
        raise ValueError("must not contain NUL")
    if len(value.encode()) > SEGMENT_NAME_BYTES_MAX:
        raise ValueError(f"must have at most {SEGMENT_NAME_BYTES_MAX} bytes in UTF-8")
    return value


def _checked_path(value: str) -> str:
    if value.startswith("/"):
        raise ValueError("must be relative to the table's location, or a URI such as file:///data/part-0.parquet")
    if ".." in value.split("/"):
        raise ValueError("must not contain '..'")
    return value


NAME = f"^{NAME_PATTERN}$"
Name = Annotated[str, StringConstraints(pattern=NAME)]

# A CRC or a hash uses all 64 bits, and many JSON tools round numbers above 2**53: on the wire it is a string.
# In pydantic's own terms, because a function of ours in the middle took a fifth of the time of reading an event.
INT64 = "int64"
_INT64 = core_schema.chain_schema(
    [
        core_schema.union_schema(
            [core_schema.str_schema(strict=True, pattern=_DECIMAL), core_schema.int_schema(strict=True)],
            mode="left_to_right",
            custom_error_type=INT64,
            custom_error_message="must be a signed 64-bit number as a decimal string",
        ),
        core_schema.int_schema(strict=False, ge=INT64_MIN, le=INT64_MAX),
    ]
)
Int64 = Annotated[
    int,
    GetPydanticSchema(lambda _source, _handler: _INT64),
    PlainSerializer(str, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": _DECIMAL, "description": "signed 64-bit number"}),
]

RawBytes = Annotated[
    bytes,
    BeforeValidator(_bytes_from_base64),
    PlainSerializer(_base64_from_bytes, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64"}),
]

TimeMs = Annotated[int, Field(ge=TIME_MIN_MS, le=TIME_MAX_MS)]
# Where a bucket begins or ends, which need not be a time that any row can have.
BucketTimeMs = Annotated[int, Field(ge=BUCKET_TIME_MIN_MS, le=BUCKET_TIME_MAX_MS)]
Count = Annotated[int, Field(ge=0, le=COUNT_MAX)]
Positive = Annotated[int, Field(ge=1, le=COUNT_MAX)]

Id = Annotated[str, StringConstraints(pattern=f"^[!-~]{{1,{ID_CHARS_MAX}}}$")]
TraceId = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
Reason = Annotated[str, StringConstraints(max_length=REASON_CHARS_MAX)]
ObjectName = Annotated[str, StringConstraints(min_length=1, max_length=REASON_CHARS_MAX)]

# Any text the registry can hold: an event that could not name its segment could never be published.
SegmentName = Annotated[
    str,
    StringConstraints(min_length=1, max_length=SEGMENT_NAME_BYTES_MAX),
    AfterValidator(_checked_segment_name),
]
SegmentPath = Annotated[
    str,
    StringConstraints(min_length=1, max_length=4_096),
    AfterValidator(_without_control_characters),
    AfterValidator(_checked_path),
]

SliceKey = Annotated[str, StringConstraints(pattern="^(wide|0|-?[1-9][0-9]{0,18})(@[1-9][0-9]{0,9})?$")]
SliceVersion = Annotated[int, Field(ge=0, le=_ZK_VERSION_MAX)]
SliceVersions = Annotated[
    Mapping[SliceKey, SliceVersion],
    Field(min_length=1, max_length=SLICES_MAX),
    AfterValidator(MappingProxyType),
    PlainSerializer(dict, return_type=dict[SliceKey, SliceVersion]),
]
