"""Reads registry slices whole, however many parts they have, as of one moment.

SUBTLE: a slice's own node and its parts are different nodes, and a change may come in between:

    reader      reads the slice: parts 1 and 2, written at versions 7 and 9
    registrar   moves a segment from part 2 to part 1, at version 10
    reader      reads part 1, with the segment, and part 2, without it; or the other way round, and misses it

So a part counts only at the version that the slice names. Any other means that the slice has changed too, in the same
write, and is read again. What was read at that version before need not be read again.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floodmark.core.errors import Unavailable
from floodmark.core.segments import Part, Slice
from floodmark.ledger import codec, paths
from floodmark.ledger.codec import SliceNode
from floodmark.ledger.store import Node, Store

PARTS_REMEMBERED_MAX = 1_024
READS_MAX = 32


@dataclass(frozen=True, slots=True)
class SeenSlice:
    """A slice, the version of its node, and the registry version of its last change."""

    listed: Slice
    node_version: int
    at: int


class Slices:
    """Reads slices, with a memory of the parts last seen. Used by several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._parts: OrderedDict[tuple[str, str, int], Part] = OrderedDict()

    def read(
        self, table: str, keys: Sequence[str], *, known: Mapping[str, Slice] | None = None
    ) -> dict[str, SeenSlice]:
        """These slices, without those that are absent. `known` is what the caller has of them."""
        seen: dict[str, SeenSlice] = {}
        open_ = list(keys)
        for _ in range(READS_MAX):
            nodes = self._store.read_many([paths.slice_(table, key) for key in open_])
            found = {key: node for key, node in zip(open_, nodes, strict=True) if node is not None}
            seen |= self._whole(table, found, known or {})
            open_ = [key for key in found if key not in seen]
            if not open_:
                return seen
        raise Unavailable(f"slices {', '.join(open_[:3])} of {table} changed during each of {READS_MAX} reads")

    def _whole(self, table: str, nodes: Mapping[str, Node], known: Mapping[str, Slice]) -> dict[str, SeenSlice]:
        """Those of these slices whose parts are what they say."""
        decoded = {key: codec.decode_slice_node(n.data, what=paths.slice_(table, key)) for key, n in nodes.items()}
        parts = self._parts_of(table, {key: d.parts for key, d in decoded.items() if d.parts is not None}, known)
        seen = {}
        for key, found in decoded.items():
            listed = _listed(found, {number: parts.get((key, number)) for number in found.parts or ()})
            if listed is not None:
                seen[key] = SeenSlice(listed, nodes[key].version, found.at)
        return seen

    def _parts_of(
        self, table: str, wanted: Mapping[str, Mapping[int, int]], known: Mapping[str, Slice]
    ) -> dict[tuple[str, int], Part]:
        """These parts, each as it was last seen if that is the version asked for, else as it is now."""
        parts: dict[tuple[str, int], Part] = {}
        unread: list[tuple[str, int]] = []
        for key, versions in wanted.items():
            own = known[key].parts if key in known else {}
            for number, at in versions.items():
                part = own.get(number) or self._remembered(table, key, number)
                if part is not None and part.at == at:
                    parts[key, number] = part
                else:
                    unread.append((key, number))
        for (key, number), node in zip(
            unread, self._store.read_many([paths.part(table, *u) for u in unread]), strict=True
        ):
            if node is not None:
                found = codec.decode_slice_node(node.data, what=paths.part(table, key, number))
                parts[key, number] = Part({s.name: s for s in found.segments}, found.at)
        self._remember(table, {place: parts[place] for place in unread if place in parts})
        return parts

    def _remembered(self, table: str, key: str, number: int) -> Part | None:
        with self._lock:
            return self._parts.get((table, key, number))

    def _remember(self, table: str, parts: Mapping[tuple[str, int], Part]) -> None:
        with self._lock:
            for (key, number), part in parts.items():
                self._parts[table, key, number] = part
                self._parts.move_to_end((table, key, number))
            while len(self._parts) > PARTS_REMEMBERED_MAX:
                self._parts.popitem(last=False)


def _listed(node: SliceNode, parts: Mapping[int, Part | None]) -> Slice | None:
    """The slice, or None when a part is not what its node says."""
    if node.parts is None:
        return Slice.of(node.segments, at=node.at)
    whole = {number: part for number, part in parts.items() if part is not None and part.at == node.parts[number]}
    return Slice(whole) if len(whole) == len(node.parts) else None
