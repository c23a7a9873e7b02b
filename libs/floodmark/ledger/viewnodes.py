"""Reading the nodes of a view, with a memory of what was last seen.

SUBTLE: what is remembered may support a write, because the write checks the versions it was decided on. It never
supports "nothing to write": a bucket remembered as STALE may be VALID by now, and skipping its mark would lose a
change. So whoever decides not to write looks again (`trusting=False`) before saying so.
"""

from collections import OrderedDict
from dataclasses import dataclass

from floodmark.core.buckets import EMPTY_SHARD, Shard
from floodmark.core.errors import InvalidInput
from floodmark.core.tables import ViewHeader, ViewStatus
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Check, Create, Op, Set, Store

SHARDS_REMEMBERED_MAX = 256


@dataclass(frozen=True, slots=True)
class SeenHeader:
    header: ViewHeader
    version: int


@dataclass(frozen=True, slots=True)
class SeenShard:
    """A shard and the version of its node; None when there is no node yet."""

    shard: Shard
    version: int | None


class Memory:
    """The newest nodes seen by this process, across operations."""

    def __init__(self) -> None:
        self._headers: dict[str, SeenHeader] = {}
        self._shards: OrderedDict[tuple[str, str, int], SeenShard] = OrderedDict()

    def header(self, view: str) -> SeenHeader | None:
        return self._headers.get(view)

    def shard(self, view: str, incarnation: str, number: int) -> SeenShard | None:
        return self._shards.get((view, incarnation, number))

    def keep_header(self, view: str, seen: SeenHeader) -> None:
        self._headers[view] = seen

    def keep_shard(self, view: str, incarnation: str, number: int, seen: SeenShard) -> None:
        self._shards[view, incarnation, number] = seen
        while len(self._shards) > SHARDS_REMEMBERED_MAX:
            self._shards.popitem(last=False)

    def forget(self, view: str) -> None:
        self._headers.pop(view, None)
        for key in [key for key in list(self._shards) if key[0] == view]:
            self._shards.pop(key, None)


class Look:
    """What one attempt sees of one view. Each node is read at most once, the header before the shards.

    `seen` is its header, from a caller who has just read it.
    """

    def __init__(
        self, store: Store, memory: Memory, view: str, *, trusting: bool, seen: SeenHeader | None = None
    ) -> None:
        self._store = store
        self._memory = memory
        self._view = view
        self._trusting = trusting
        self._shards: dict[int, SeenShard] = {}
        self.remembered = False
        """Whether anything came from memory instead of from the store."""
        self._seen = seen or self._look_at_header()

    @property
    def header(self) -> ViewHeader | None:
        return self._seen.header if self._seen else None

    def active(self, incarnation: str | None = None) -> ViewHeader | None:
        """The header, unless the view is gone, going, or no longer this incarnation (INV-13)."""
        header = self.header
        if header is None or header.status is ViewStatus.DROPPING or incarnation not in (None, header.incarnation):
            return None
        return header

    @property
    def _active(self) -> SeenHeader:
        assert self._seen is not None, f"view {self._view} has no header"
        return self._seen

    def shards(self, numbers: list[int]) -> dict[int, SeenShard]:
        incarnation = self._active.header.incarnation
        unseen = []
        for number in numbers:
            if number in self._shards:
                continue
            if self._trusting and (known := self._memory.shard(self._view, incarnation, number)):
                self._shards[number] = known
                self.remembered = True
            else:
                unseen.append(number)
        if unseen:
            self._read(unseen)
        return {n: self._shards[n] for n in numbers}

    def _read(self, numbers: list[int]) -> None:
        header = self._active.header
        shard_paths = [paths.shard(self._view, n) for n in numbers]
        nodes = self._store.read_many(shard_paths)
        for number, path, node in zip(numbers, shard_paths, nodes, strict=True):
            if node is None:
                seen = SeenShard(EMPTY_SHARD, None)
            else:
                seen = SeenShard(codec.decode_shard(node.data, header.definition.grid, what=path), node.version)
            self._shards[number] = seen
            self._memory.keep_shard(self._view, header.incarnation, number, seen)

    def shard(self, number: int) -> Shard:
        return self.shards([number])[number].shard

    # -- operations on what was seen -------------------------------------------------------------------------------

    def check_fence(self) -> Op:
        """Fails once this incarnation is dropped (INV-13)."""
        return Check(paths.fence(self._view, self._active.header.incarnation), 0)

    def check_header(self) -> Op:
        return Check(paths.view(self._view), self._active.version)

    def set_header(self, header: ViewHeader) -> Op:
        return Set(paths.view(self._view), codec.encode_view(header), self._active.version)

    def check_shard(self, number: int) -> Op:
        seen = self._shards[number]
        path = paths.shard(self._view, number)
        if seen.version is None:
            # Absence cannot be checked; creating the node in the same write asserts it.
            return Create(path, codec.encode_shard(EMPTY_SHARD, self._active.header.definition.grid))
        return Check(path, seen.version)

    def size_of(self, shard: Shard) -> int:
        """How many bytes a shard takes."""
        return len(codec.encode_shard(shard, self._active.header.definition.grid))

    def set_shard(self, number: int, shard: Shard) -> Create | Set:
        seen = self._shards[number]
        data = codec.encode_shard(shard, self._active.header.definition.grid)
        path = paths.shard(self._view, number)
        return Create(path, data) if seen.version is None else Set(path, data, seen.version)

    def _look_at_header(self) -> SeenHeader | None:
        if self._trusting and (known := self._memory.header(self._view)):
            self.remembered = True
            return known
        seen = read_header(self._store, self._view)
        if seen:
            self._memory.keep_header(self._view, seen)
        else:
            self._memory.forget(self._view)
        return seen


def read_header(store: Store, view: str, *, current: bool = False) -> SeenHeader | None:
    """`current`: not older than any write that was acknowledged before, whatever the server."""
    path = paths.view(view)
    node = store.read_current(path) if current else store.read(path)
    return None if node is None else SeenHeader(codec.decode_view(node.data, what=path), node.version)


def require_header(store: Store, view: str, *, current: bool = False) -> SeenHeader:
    seen = read_header(store, view, current=current)
    if seen is None:
        raise InvalidInput("unknown-view", f"there is no view {view!r}")
    return seen
