"""The store as the ledger sees it: versioned nodes and one atomic write over several of them.

A lost race is an answer (`Conflicted`), not an exception. What may have happened (`OutcomeUnknown`) and what certainly
did not (`Unavailable`) are different errors. kazoo implements this port; so does a store in memory that tests drive.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a write may be.

    ZooKeeper drops the connection of a client that sends more than 1,048,575 bytes, and says nothing of the size. So
    every write is measured before it is sent, and the error names the node that is too large.
    """

    node_bytes: int = 990_000
    write_bytes: int = 1_000_000
    shard_bytes: int = 512 * 1024
    """What a commit may fill a shard with. The rest is room for marks, which must always be possible (INV-7): each
    bucket's cause takes less than 1,750 bytes."""


LIMITS = Limits()
NODE_BYTES_MAX, WRITE_BYTES_MAX = LIMITS.node_bytes, LIMITS.write_bytes
ANY_VERSION = -1
"""A check at this version asks only that the node exists."""


@dataclass(frozen=True, slots=True)
class Node:
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Check:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    path: str
    version: int = -1


Op = Check | Create | Set | Delete


@dataclass(frozen=True, slots=True)
class Committed:
    """Every operation happened. `versions` holds the new version of each Set and Create, None for the others."""

    versions: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Nothing happened: this operation's precondition did not hold."""

    op: Op


Answer = Committed | Conflicted | Unavailable | OutcomeUnknown


class Store(Protocol):
    """Reads raise Unavailable; writes raise Unavailable or OutcomeUnknown."""

    def read(self, path: str) -> Node | None: ...

    def read_many(self, paths: Sequence[str], /) -> list[Node | None]:
        """Several nodes in one go. Not a snapshot: each is current when it is read, in this order."""

    def read_current(self, path: str, /) -> Node | None:
        """As `read` after `sync`, in one round trip."""

    def children(self, path: str) -> list[str]:
        """Names below a node, in no order; empty when there is no such node."""

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted: ...

    def commit_many(self, writes: Sequence[Sequence[Op]], /) -> list[Answer]:
        """Several writes under way together, each atomic and answered by itself, in this order.

        Nothing is raised: an error stands in the place of the write that it is about.
        """

    def sync(self) -> None:
        """After this, reads see every write that was acknowledged to anyone before it."""


class WatchableStore(Store, Protocol):
    """A store that tells when something changes. A watch fires at most once, in another thread, and carries no data.

    Watches are hints: several changes may fire one, and one may fire late. All fire when the connection breaks, because
    from then on nothing is known; read again, with a new watch, once it is back.
    """

    def read_watched(self, paths: Sequence[str], on_change: Callable[[str], None], /) -> list[Node | None]:
        """As `read_many`; `on_change` is called with the path of a node that changed. Absent nodes are not watched."""

    def children_watched(self, path: str, on_change: Callable[[str], None], /) -> list[str]:
        """As `children`; `on_change` is called with this path when a child came or went."""


class TooLarge(InvalidInput):
    """A write that is larger than the store takes. With fewer things in it, it may fit: see `halving`."""

    def __init__(self, rule: str, path: str, size_bytes: int, said: str) -> None:
        super().__init__(rule, said)
        self.path = path
        """The node that is too large, or the largest of a write that is."""
        self.size_bytes = size_bytes


def check_sizes(ops: Sequence[Op], limits: Limits = LIMITS) -> None:
    """Refuse what the store would answer with a dropped connection."""
    total = 0
    for op in ops:
        size = len(op.data) if isinstance(op, Create | Set) else 0
        if size > limits.node_bytes:
            raise node_too_large(op.path, size, limits.node_bytes)
        total += size + len(op.path) + 64
    if total > limits.write_bytes:
        largest = max(ops, key=lambda op: len(op.data) if isinstance(op, Create | Set) else 0)
        said = (
            f"one write of {len(ops)} operations would have {total} bytes, at most {limits.write_bytes} are allowed; "
            f"the largest is {largest.path}"
        )
        raise TooLarge("write-too-large", largest.path, total, said)


def node_too_large(path: str, size_bytes: int, bytes_max: int) -> TooLarge:
    said = f"{path} would have {size_bytes} bytes, at most {bytes_max} are allowed"
    return TooLarge("node-too-large", path, size_bytes, said)
