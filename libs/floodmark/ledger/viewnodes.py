"""Reading the nodes of a view, with a memory of what was last seen.

SUBTLE: what is remembered may support a write, because the write checks the versions it was decided on. It never
supports "nothing to write": a bucket remembered as STALE may be VALID by now, and skipping its mark would lose a
change. So whoever decides not to write looks again (`trusting=False`) before saying so.

A shard is a node, or in a run, or VACANT. The content of the node above the shards has the runs, and guards all three:

    a shard's node is made      check the runs, or set them if it was in one; touch the node of the fences
    runs are set                at the version they were read; over VACANT shards, check that nobody touched

So makers of nodes are in nobody's way but that of whoever makes runs, which is rare.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.core.buckets import EMPTY_SHARD, BucketGrid, Entry, Shard
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import Runs
from floodmark.core.tables import ViewHeader, ViewStatus
from floodmark.ledger import codec, paths
from floodmark.ledger.store import ANY_VERSION, Check, Create, Node, Op, Set, Store

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


@dataclass(frozen=True, slots=True)
class SeenRuns:
    runs: Runs
    version: int


@dataclass(frozen=True, slots=True)
class Presence:
    """Which shards have a node, and what to check for no other to have come."""

    numbers: frozenset[int]
    check: Op

    @property
    def shards(self) -> IntervalSet:
        return IntervalSet.of(Interval(n, n + 1) for n in self.numbers)


class Memory:
    """The newest nodes seen by this process, across operations."""

    def __init__(self) -> None:
        self._headers: dict[str, SeenHeader] = {}
        self._shards: OrderedDict[tuple[str, str, int], SeenShard] = OrderedDict()
        self._runs: dict[tuple[str, str], SeenRuns] = {}

    def header(self, view: str) -> SeenHeader | None:
        return self._headers.get(view)

    def shard(self, view: str, incarnation: str, number: int) -> SeenShard | None:
        return self._shards.get((view, incarnation, number))

    def runs(self, view: str, incarnation: str) -> SeenRuns | None:
        return self._runs.get((view, incarnation))

    def keep_runs(self, view: str, incarnation: str, seen: SeenRuns) -> None:
        self._runs[view, incarnation] = seen

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
        for name, incarnation in [key for key in list(self._runs) if key[0] == view]:
            self._runs.pop((name, incarnation), None)


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
        self._seen_runs: SeenRuns | None = None
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
        """What these shards hold, whether it has a node, lies in a run or is VACANT."""
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
        return {n: self._with_run(n, self._shards[n]) for n in numbers}

    def shard(self, number: int) -> Shard:
        return self.shards([number])[number].shard

    @property
    def runs(self) -> Runs:
        return self._runs_seen.runs

    @property
    def _runs_seen(self) -> SeenRuns:
        known = self._memory.runs(self._view, self._active.header.incarnation) if self._trusting else None
        if self._seen_runs is None and known is not None:
            self._seen_runs, self.remembered = known, True
        if self._seen_runs is None:
            self._read([])
        assert self._seen_runs is not None
        return self._seen_runs

    def presence(self) -> Presence:
        """Which shards have a node. Of a new look only: the runs are read after it began and before the nodes."""
        path = paths.touched(self._view)
        node = self._store.read(path)
        assert self._runs_seen is not None
        numbers = frozenset(int(name) for name in self._store.children(paths.shards(self._view)))
        return Presence(numbers, Check(path, -2 if node is None else node.version))

    def _with_run(self, number: int, seen: SeenShard) -> SeenShard:
        if seen.version is not None or (run := self.runs.at(number)) is None:
            return seen
        return SeenShard(run.shard(number, self._active.header.definition.grid), None)

    def _read(self, numbers: list[int]) -> None:
        """SUBTLE: the runs first. A shard that leaves its run for a node in between is then seen twice, not nowhere."""
        header = self._active.header
        wanted = [paths.runs(self._view)] if self._seen_runs is None else []
        shard_paths = [paths.shard(self._view, n) for n in numbers]
        nodes = self._store.read_many([*wanted, *shard_paths])
        if wanted:
            self._keep_runs(nodes.pop(0))
        for number, path, node in zip(numbers, shard_paths, nodes, strict=True):
            if node is None:
                seen = SeenShard(EMPTY_SHARD, None)
            else:
                seen = SeenShard(codec.decode_shard(node.data, header.definition.grid, what=path), node.version)
            self._shards[number] = seen
            self._memory.keep_shard(self._view, header.incarnation, number, seen)

    def _keep_runs(self, node: Node | None) -> None:
        """A view without this node is one that is being taken down: nothing of it can be written."""
        path = paths.runs(self._view)
        version, data = (-2, b"") if node is None else (node.version, node.data)
        self._seen_runs = SeenRuns(codec.decode_runs(data, what=path), version)
        self._memory.keep_runs(self._view, self._active.header.incarnation, self._seen_runs)

    # -- operations on what was seen -------------------------------------------------------------------------------

    def check_fence(self) -> Op:
        """Fails once this incarnation is dropped (INV-13)."""
        return Check(paths.fence(self._view, self._active.header.incarnation), 0)

    def check_header(self) -> Op:
        return Check(paths.view(self._view), self._active.version)

    def set_header(self, header: ViewHeader) -> Op:
        return Set(paths.view(self._view), codec.encode_view(header), self._active.version)

    def set_shards(
        self, shards: Mapping[int, Shard], *, checked: Iterable[int] = (), relying_on_runs: bool = False
    ) -> list[Op]:
        """Write these shards, and check others that were looked into, so that all of them are as they were seen."""
        ops = [self._set_shard(number, shard) for number, shard in sorted(shards.items())]
        absent = [n for n in shards if self._shards[n].version is None]
        for number in sorted(set(checked) - shards.keys()):
            version = self._shards[number].version
            if version is not None:
                ops.append(Check(paths.shard(self._view, number), version))
            elif self.runs.at(number) is not None:
                relying_on_runs = True
            else:
                # Absence cannot be checked; creating the node in the same write asserts it.
                ops.append(self._set_shard(number, EMPTY_SHARD))
                absent.append(number)
        return ops + self._guard(absent, relying_on_runs=relying_on_runs)

    def size_of(self, shard: Shard) -> int:
        """How many bytes a shard takes."""
        return len(codec.encode_shard(shard, self._active.header.definition.grid))

    def settle(self, runs: Runs, written: Mapping[int, Shard], *, checked: Iterable[int]) -> list[Op]:
        """Write these runs, and shards that left them or lie beside them, and check others that were looked into."""
        ops: list[Op] = [self.set_runs(runs)]
        for number in sorted({*written, *checked}):
            version = self._shards[number].version
            if number in written or (version is None and runs.at(number) is None):
                ops.append(self._set_shard(number, written.get(number, EMPTY_SHARD)))
            elif version is not None:
                ops.append(Check(paths.shard(self._view, number), version))
        return ops

    def set_runs(self, runs: Runs) -> Op:
        return Set(paths.runs(self._view), codec.encode_runs(runs), self._runs_seen.version)

    def _guard(self, made: Sequence[int], *, relying_on_runs: bool) -> list[Op]:
        """What keeps shards whose nodes are made out of runs, and runs that were relied on as they are."""
        taken = IntervalSet.of(Interval(n, n + 1) for n in made if self.runs.at(n) is not None) if made else None
        if taken:
            return [self.set_runs(self.runs.without(taken))]
        check = [Check(paths.runs(self._view), self._runs_seen.version)] if made or relying_on_runs else []
        return [*check, Set(paths.touched(self._view), b"", ANY_VERSION)] if made else list[Op](check)

    def _set_shard(self, number: int, shard: Shard) -> Op:
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


@dataclass(slots=True)
class Walk:
    """Goes from bucket to bucket as a write would leave them, and remembers what it looked into."""

    look: Look
    grid: BucketGrid
    written: Mapping[int, Shard]
    runs: Runs | None = None
    """As the write would leave them; None when it leaves them as they are, but for the shards that it writes."""
    visited: set[int] = field(default_factory=set)
    through_runs: bool = False

    def entry_at(self, start_ms: int) -> Entry | None:
        number = self.grid.shard_of(start_ms)
        self.visited.add(number)
        shard = self.written[number] if number in self.written else self.look.shard(number)
        return shard.get(start_ms)

    def stretch_end(self, start_ms: int) -> int:
        """The end of the run this bucket is in, or of its part before a shard that is written."""
        number = self.grid.shard_of(start_ms)
        if number in self.written or self.look.shards([number])[number].version is not None:
            return start_ms
        run = (self.look.runs if self.runs is None else self.runs).at(number)
        if run is None or not run.entry.ever_valid:
            return start_ms
        self.through_runs = True
        return self.grid.shard_start(min((n for n in self.written if number < n < run.end), default=run.end))


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
