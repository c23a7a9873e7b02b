"""How a Parquet file stores its columns: codec, encodings and encryption of each chunk, and which of them Spark reads.

The footer is read here and not by pyarrow, which ends the process when it is asked about a chunk that is encrypted.
It is a Thrift struct in the compact protocol: https://parquet.apache.org/docs/file-format/metadata/
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

_CODECS: Mapping[int, str] = {3: "LZO", 4: "BROTLI"}
_CODECS_READ = frozenset({0, 1, 2, 5, 6, 7})
"""None, Snappy, gzip, LZ4 as Hadoop has it, Zstandard, LZ4. Spark comes without the classes for LZO and Brotli."""
_ENCODINGS: Mapping[int, str] = {
    5: "DELTA_BINARY_PACKED", 6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY", 9: "BYTE_STREAM_SPLIT",
}  # fmt: skip
_EVERYWHERE = frozenset({0, 2, 3, 4, 8})
"""PLAIN, both names of a dictionary, and RLE and BIT_PACKED, which chunks list for their levels."""
_BY_PHYSICAL_TYPE: Mapping[int, frozenset[int]] = {
    1: frozenset({5, 9}),  # INT32
    2: frozenset({5, 9}),  # INT64
    4: frozenset({9}),  # FLOAT
    5: frozenset({9}),  # DOUBLE
    6: frozenset({6, 7}),  # BYTE_ARRAY
    7: frozenset({7, 9}),  # FIXED_LEN_BYTE_ARRAY
}
_NOT_SPLIT = frozenset({"uint32", "uint64"})
"""Spark's reader of BYTE_STREAM_SPLIT lacks the methods for these."""
_BYTE_STREAM_SPLIT = 9

T = TypeVar("T")

_LENGTH, _MAGIC = struct.Struct("<I"), b"PAR1"
_DEPTH_MAX = 32
_BYTES: Mapping[int, int] = {1: 1, 2: 1, 3: 1, 7: 8, 13: 16}
"""Kinds of values in the protocol that have a fixed length."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The values of one column in one group of rows."""

    leaf: int
    """Which of the columns that have values it is, in the order of the schema."""
    column: str
    """The outermost name: of the column that a nested one is in."""
    physical: int
    codec: int
    encodings: tuple[int, ...]
    encrypted: bool


def chunks_of(source: pa.NativeFile) -> Iterator[Chunk]:
    """All chunks of a file. ValueError when its footer makes no sense."""
    try:
        footer = _Compact(_footer(source)).struct()
    except IndexError:
        raise ValueError("its footer ends too early") from None
    for group in _as(list, footer.get(4)):
        for leaf, chunk in enumerate(_as(list, _fields(group).get(1))):
            yield _chunk(leaf, _fields(chunk))


def unread_as(chunk: Chunk, kind: str) -> str | None:
    """What of a chunk Spark does not read, given its column's type; None when it reads it."""
    if chunk.encrypted:
        return "is encrypted"
    if chunk.codec not in _CODECS_READ:
        return f"is compressed with {_CODECS.get(chunk.codec, f'codec {chunk.codec}')}"
    read = _EVERYWHERE | _BY_PHYSICAL_TYPE.get(chunk.physical, frozenset())
    if kind in _NOT_SPLIT:
        read -= {_BYTE_STREAM_SPLIT}
    other = next((e for e in chunk.encodings if e not in read), None)
    return None if other is None else f"is {kind} in {_ENCODINGS.get(other, f'encoding {other}')}"


def _chunk(leaf: int, fields: Mapping[int, Any]) -> Chunk:
    if 8 in fields or 9 in fields:
        return Chunk(leaf, _encrypted_column(fields), 0, 0, (), encrypted=True)
    about = _fields(fields.get(3))
    encodings = tuple(_as(int, encoding) for encoding in _as(list, about.get(2)))
    physical, codec = _as(int, about.get(1)), _as(int, about.get(4))
    return Chunk(leaf, _outermost(about.get(3)), physical, codec, encodings, encrypted=False)


def _encrypted_column(fields: Mapping[int, Any]) -> str:
    """With a key of its own it is named beside the key; with that of its footer its metadata is readable here."""
    with_its_key = _fields(fields.get(8, {})).get(2)
    return _outermost(_fields(fields.get(3, {})).get(3) if with_its_key is None else _fields(with_its_key).get(1))


def _outermost(path: Any) -> str:
    return _text(next(iter(_as(list, path)), None))


def _fields(value: Any) -> dict[int, Any]:
    return _as(dict, value)


def _text(value: Any) -> str:
    return _as(bytes, value).decode(errors="replace")


def _as(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind):
        raise ValueError(f"its footer has a {type(value).__name__} for a {kind.__name__}")  # noqa: TRY004 - the file is
    return value


def _footer(source: pa.NativeFile) -> bytes:
    size = source.size()
    tail = _LENGTH.size + len(_MAGIC)
    source.seek(max(0, size - tail))
    end = source.read(tail)
    if len(end) < tail or end[_LENGTH.size :] != _MAGIC:
        raise ValueError("it does not end as a Parquet file does")
    (length,) = _LENGTH.unpack_from(end)
    if length > size - tail:
        raise ValueError("its footer is longer than it is")
    source.seek(size - tail - length)
    return bytes(source.read(length))


class _Compact:
    """Thrift's compact protocol: a struct is a mapping from the number of a field to its value.

    A footer has some forty values for each chunk, and a file may have thousands of chunks: what is most frequent is
    read in place. An IndexError says that there is nothing left to read.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int = 0) -> dict[int, Any]:
        data, at, number = self._data, self._at, 0
        fields: dict[int, Any] = {}
        while head := data[at]:
            at += 1
            kind, step = head & 15, head >> 4
            if step:
                number += step
            else:
                self._at = at
                number, at = self._zigzag(), self._at
            if kind <= 2:
                fields[number] = kind == 1
            elif kind <= 6 and (byte := data[at]) < 128:
                at += 1
                fields[number] = byte >> 1 ^ -(byte & 1) if kind > 3 else byte
            elif kind == 8 and (byte := data[at]) < 128:
                self._at = at + 1
                fields[number], at = self._bytes(byte), self._at
            else:
                self._at = at
                fields[number], at = self._value(kind, depth), self._at
        self._at = at + 1
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise ValueError("its footer is nested too deeply")
        if kind in _BYTES:
            return self._bytes(_BYTES[kind])
        if kind in (4, 5, 6):
            return self._zigzag()
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            return self._list(depth + 1)
        if kind == 11:
            return self._map(depth + 1)
        if kind == 12:
            return self.struct(depth + 1)
        raise ValueError(f"its footer has a value of type {kind}")

    def _list(self, depth: int) -> list[Any]:
        head = self._data[self._at]
        self._at += 1
        size, kind = head >> 4, head & 15
        if size == 15:  # the size did not fit into four bits
            size = self._varint()
        self._check_there(size)
        return [self._value(kind, depth) for _ in range(size)]

    def _map(self, depth: int) -> list[Any]:
        """Nothing that is wanted is in one."""
        size = self._varint()
        self._check_there(size)
        (kinds,) = self._bytes(1) if size else (0,)
        return [(self._value(kinds >> 4, depth), self._value(kinds & 15, depth)) for _ in range(size)]

    def _bytes(self, length: int) -> bytes:
        self._check_there(length)
        self._at += length
        return self._data[self._at - length : self._at]

    def _check_there(self, length: int) -> None:
        """Everything takes a byte at least, so nobody is made to read more values than there are bytes."""
        if length > len(self._data) - self._at:
            raise ValueError("its footer ends too early")

    def _varint(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 127) << shift
            if byte < 128:  # the highest bit says that there is more
                return value
            shift += 7
        raise ValueError("its footer has a number that is too long")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
