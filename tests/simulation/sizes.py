"""A store that takes little at once, so that what is rare with real sizes happens in every run.

A write that makes more than so many buckets VALID, or changes more than so many segments, is too large: the ledger is
told before it is sent, as it is of bytes, and has to halve it. One bucket and one segment always fit. Slices are cut
into parts after a few segments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.core.buckets import Entry, State
from floodmark.core.segments import Segment
from floodmark.core.tables import ViewHeader
from floodmark.ledger import codec, paths
from floodmark.ledger.store import LIMITS, Create, Limits, Node, Op, Set, TooLarge, check_sizes
from tests.support.memory_store import MemoryStore

_check_bytes = check_sizes


@dataclass(frozen=True, slots=True)
class SmallWrites:
    store: MemoryStore
    items_max: int | None
    """None: only bytes count, as in production."""

    def check(self, ops: Sequence[Op], limits: Limits = LIMITS) -> None:
        _check_bytes(ops, limits)
        if self.items_max is None or (items := self._items(ops)) <= self.items_max:
            return
        said = f"one write would change {items} buckets and segments, at most {self.items_max} are allowed"
        raise TooLarge("write-too-large", ops[0].path, items, said)

    def _items(self, ops: Sequence[Op]) -> int:
        nodes, buckets = self.store.nodes, 0
        old: dict[str, Segment] = {}
        new: dict[str, Segment] = {}
        for op in ops:
            if not isinstance(op, Set | Create) or not _fits(op, nodes.get(op.path)):
                continue
            before = nodes[op.path].data if op.path in nodes else None
            match op.path.removeprefix(paths.ROOT + "/").split("/"):
                case ["views", view, "shards", _]:
                    buckets += self._made_valid(view, before, op.data)
                case ["tables", _, "slices", _, *_]:
                    old |= _listed(before)
                    new |= _listed(op.data)
        return buckets + sum(old.get(name) != new.get(name) for name in old.keys() | new.keys())

    def _made_valid(self, view: str, before: bytes | None, after: bytes) -> int:
        node = self.store.nodes.get(paths.view(view))
        if node is None:
            return 0  # dropped meanwhile: its fence is gone as well
        header = codec.decode_view(node.data, what=view)
        known = _entries(header, before)
        # What is settled without a build is written as one entry and a count, however many buckets it is.
        changed = [e for start, e in _entries(header, after).items() if known.get(start) != e and e.attempt_id]
        return sum(e.state is State.VALID for e in changed)


def _fits(op: Set | Create, node: Node | None) -> bool:
    """Whether it can succeed at all: one that will be refused anyway is not judged by what it would have changed."""
    if isinstance(op, Create):
        return node is None
    return node is not None and op.version in (-1, node.version)


def _entries(header: ViewHeader, data: bytes | None) -> dict[int, Entry]:
    if data is None:
        return {}
    return dict(codec.decode_shard(data, header.definition.grid, what="shard").entries)


def _listed(data: bytes | None) -> dict[str, Segment]:
    return {} if data is None else {s.name: s for s in codec.decode_slice_node(data, what="slice").segments}
