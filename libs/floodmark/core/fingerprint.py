"""The fingerprint of a window's source: what a bucket was built from, in one number and a count.

The only function that computes it (INV-15). It must equal Guava's `farmHashFingerprint64` over the same bytes, so that
any JVM process can check it: golden vectors in tests/data and a test against the Guava that ships with Spark.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import farmhash

from floodmark.core.bounds import INT64_MAX, INT64_MIN
from floodmark.core.errors import InvalidInput


class Named(Protocol):
    """All that a fingerprint sees of a segment."""

    @property
    def name(self) -> str: ...

    @property
    def crc(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fingerprint:
    count: int
    hash: int

    def __post_init__(self) -> None:
        if self.count < 0 or not INT64_MIN <= self.hash <= INT64_MAX:
            raise InvalidInput("fingerprint", f"({self.count}, {self.hash}) is not a count and a signed 64-bit number")
        if self.count == 0 and self.hash != EMPTY_HASH:
            raise InvalidInput("fingerprint", f"(0, {self.hash}): empty is always (0, {EMPTY_HASH})")

    @property
    def is_empty(self) -> bool:
        return self.count == 0


EMPTY_HASH = -7286425919675154353  # FarmHash64 of zero bytes
EMPTY = Fingerprint(0, EMPTY_HASH)


def fingerprint(segments: Iterable[Named]) -> Fingerprint:
    """The fingerprint of these segments, in whatever order they come."""
    # Java compares strings by UTF-16 code unit; big-endian bytes compare the same way.
    ordered = sorted(segments, key=lambda s: s.name.encode("utf-16-be", "surrogatepass"))
    encoded = b"".join(
        s.name.encode("utf-8") + b"\x00" + s.crc.to_bytes(8, "little", signed=True) + b"\n" for s in ordered
    )
    unsigned = farmhash.fingerprint64(encoded)  # never hash64, which differs by platform
    return Fingerprint(len(ordered), unsigned - 2**64 if unsigned > INT64_MAX else unsigned)
