"""Every view as it was last seen, kept up to date by watches, beside the queries: none of them waits for it.

    look()      reads the nodes that changed; once a second, and whenever a service likes
    of(table)   the views of a table, as values; reads nothing

A picture may be late. That costs speed and nothing else: whether a bucket's files may be read is decided against the
registry, which each query reads anew (`routing.py`).
"""

import queue
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

import structlog

from floodmark.core.buckets import Shard
from floodmark.core.dispatch import Progress
from floodmark.core.errors import InvalidInput
from floodmark.core.intervals import Interval, IntervalSet
from floodmark.core.runs import NO_RUNS, Runs
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader, ViewStatus
from floodmark.ledger import codec, paths
from floodmark.ledger.dispatch import decode_records
from floodmark.ledger.store import Node, WatchableStore
from floodmark.query.routing import Router
from floodmark.query.shapes import ViewShape
from floodmark.query.snapshots import ViewSnapshot
from floodmark.sql.definition import Definition, analyze
from floodmark.sql.meaning import is_outdated

log = structlog.get_logger()


@dataclass(slots=True)
class _Seen:
    header: ViewHeader
    shape: ViewShape | None = None
    refusal: str = ""
    """Why the definition cannot be analysed."""
    runs: Runs = NO_RUNS
    shards: dict[int, Shard] = field(default_factory=dict)
    quarantined: dict[int, dict[int, str]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    """Of the nodes read, by path."""
    router: Router = field(default_factory=Router)

    def snapshot(self) -> ViewSnapshot:
        given_up = {s: error for shard in self.quarantined.values() for s, error in shard.items()}
        shards = dict(self.shards)
        runs = self.runs.without(IntervalSet.of(Interval(n, n + 1) for n in shards)) if self.runs else self.runs
        return ViewSnapshot(
            self.header, self.shape, shards, given_up, refusal=self.refusal, router=self.router, runs=runs
        )


class Pictures:
    def __init__(self, store: WatchableStore) -> None:
        self._store = store
        self._changed: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._lock = threading.Lock()
        """Of whoever looks. Who plans takes what was last published."""
        self._started = False
        self._tables: dict[str, TableDefinition] = {}
        self._headers: dict[str, ViewHeader] = {}
        self._seen: dict[str, _Seen] = {}
        self._dirty: set[str] = set()
        """Tables of which a view changed since they were published."""
        self._published: dict[str, tuple[ViewSnapshot, ...]] = {}

    def of(self, table: str) -> tuple[ViewSnapshot, ...]:
        return self._published.get(table, ())

    def table_of(self, view: str) -> str | None:
        """The table of a view, if there is such a view."""
        with self._lock:
            self._look()
            header = self._headers.get(view)
        return header.definition.table if header is not None else None

    def attend(self, definition: TableDefinition) -> None:
        """Read every view of a table, now, whatever is known of them. From here on they are looked after.

        What changed is found by node versions, so this costs reading and not decoding.
        """
        with self._lock:
            if self._tables.get(definition.name) != definition:
                # Its columns have become known: what its views mean is found out again.
                self._seen = {n: s for n, s in self._seen.items() if s.header.definition.table != definition.name}
                self._tables[definition.name] = definition
            self._look()
            for name, header in list(self._headers.items()):
                if header.definition.table == definition.name:
                    self._read_again(name)
            self._publish()

    def look(self) -> None:
        """Read what changed."""
        with self._lock:
            self._look()
            self._publish()

    # -- reading what changed ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._started:
            self._look_at_views()
            self._started = True
        changed = set()
        while not self._changed.empty():
            changed.add(self._changed.get_nowait())
        try:
            self._look_at(changed)
        except BaseException:
            for path in changed:
                self._changed.put(path)  # their watches are spent: nobody would tell us again
            raise

    def _look_at(self, changed: Iterable[str]) -> None:
        nodes = []
        for path in sorted(changed):
            parts = path.removeprefix(paths.ROOT + "/").split("/")
            match parts:
                case ["views"]:
                    self._look_at_views()
                case ["views", view]:
                    self._look_at_view(view)
                case ["views", view, "shards" | "dispatch"]:
                    nodes += self._new_nodes(view, path)
                case ["views", _, "shards" | "dispatch", _]:
                    nodes.append(path)
        self._read(nodes)

    def _look_at_views(self) -> None:
        names = set(self._store.children_watched(paths.VIEWS, self._changed.put))
        for gone in self._headers.keys() - names:
            self._forget(gone)
        for name in sorted(names - self._headers.keys()):
            self._look_at_view(name)

    def _look_at_view(self, view: str) -> None:
        (node,) = self._store.read_watched([paths.view(view)], self._changed.put)
        header = self._decoded(view, node)
        if header is None or header.status is ViewStatus.DROPPING:
            self._forget(view)
            return
        before = self._headers.get(view)
        if before is not None and before.incarnation != header.incarnation:
            self._forget(view)  # replaced in one write, perhaps by a view of another table
        self._headers[view] = header
        self._dirty.add(header.definition.table)
        seen = self._seen.get(view)
        if seen is not None:
            seen.header = header
        elif header.definition.table in self._tables:
            self._begin(view, header)

    def _forget(self, view: str) -> None:
        header = self._headers.pop(view, None)
        self._seen.pop(view, None)
        if header is not None:
            self._dirty.add(header.definition.table)

    @staticmethod
    def _decoded(view: str, node: Node | None) -> ViewHeader | None:
        try:
            return None if node is None else codec.decode_view(node.data, what=paths.view(view))
        except InvalidInput as error:
            log.error("view_not_readable", view=view, error=str(error))  # noqa: TRY400 - the sentence says it all
            return None

    def _begin(self, view: str, header: ViewHeader) -> None:
        seen = self._seen[view] = _Seen(header)
        table = self._tables[header.definition.table]
        try:
            definition = _definition(header.definition, table)
            seen.shape = ViewShape(definition, dict(table.columns))
        except InvalidInput as error:
            seen.refusal = str(error)
        self._read([*self._new_nodes(view, paths.shards(view)), *self._new_nodes(view, paths.dispatch(view))])

    def _new_nodes(self, view: str, parent: str) -> list[str]:
        seen = self._seen.get(view)
        if seen is None:
            return []
        if parent == paths.shards(view):
            self._read([parent])  # the runs; before the nodes: what leaves a run in between is seen twice, not nowhere
        found = (f"{parent}/{name}" for name in self._store.children_watched(parent, self._changed.put))
        return [path for path in found if path not in seen.versions]

    def _read_again(self, view: str) -> None:
        """Everything of a view that is not as it was last read. Without new watches: the old ones still stand."""
        seen, header = self._seen.get(view), self._headers[view]
        if seen is None:
            self._begin(view, header)
            return
        parents = (paths.shards(view), paths.dispatch(view))
        listed = [
            paths.runs(view),
            *(f"{parent}/{name}" for parent in parents for name in self._store.children(parent)),
        ]
        nodes = self._store.read_many(listed)
        moved = [p for p, node in zip(listed, nodes, strict=True) if node and seen.versions.get(p) != node.version]
        gone = seen.versions.keys() - set(listed)
        self._read([*moved, *gone])

    def _read(self, wanted: Iterable[str]) -> None:
        known = [path for path in wanted if path.split("/")[3] in self._seen]
        nodes = self._store.read_watched(known, self._changed.put) if known else []
        reborn = self._reborn({path.split("/")[3] for path in known})
        for path, node in zip(known, nodes, strict=True):
            _, _, _, view, kind, *number = path.split("/")
            if view in reborn:
                continue
            if number:
                self._keep(self._seen[view], kind, int(number[0]), path, node)
            else:
                self._keep_runs(self._seen[view], path, node)
        for view in reborn:
            self._forget(view)
            self._changed.put(paths.view(view))

    def _reborn(self, views: Iterable[str]) -> set[str]:
        """Views that are another incarnation by now than the one whose nodes were just meant to be read.

        SUBTLE: the nodes of two incarnations have the same names. A view is dropped and made anew in another place:

            here    reads the header of the old one
            peer    drops it, creates the new one, and a worker fills its first shard
            here    reads that shard: entries of the new one, and looks for their files where the old ones lay

        A header that is still the same after the shards were read was the same while they were.
        """
        names = sorted(views)
        nodes = self._store.read_many([paths.view(name) for name in names]) if names else []
        headers = {name: self._decoded(name, node) for name, node in zip(names, nodes, strict=True)}
        return {n for n, h in headers.items() if h is None or h.incarnation != self._seen[n].header.incarnation}

    def _keep(self, seen: _Seen, kind: str, number: int, path: str, node: Node | None) -> None:
        """A node that cannot be read is as one that is not there: its buckets are read from the base table."""
        self._dirty.add(seen.header.definition.table)
        seen.versions.pop(path, None)
        kept: dict[int, Shard] | dict[int, dict[int, str]] = seen.shards if kind == "shards" else seen.quarantined
        kept.pop(number, None)
        if node is None:
            return
        seen.versions[path] = node.version
        try:
            if kind == "shards":
                seen.shards[number] = codec.decode_shard(node.data, seen.header.definition.grid, what=path)
            else:
                records = decode_records(node.data, what=path)
                given_up = {s: r.error for s, r in records.items() if r.progress is Progress.QUARANTINED}
                seen.quarantined[number] = given_up
        except InvalidInput as error:
            log.error("view_not_readable", path=path, error=str(error))  # noqa: TRY400 - the sentence says it all

    def _keep_runs(self, seen: _Seen, path: str, node: Node | None) -> None:
        self._dirty.add(seen.header.definition.table)
        seen.versions.pop(path, None)
        seen.runs = NO_RUNS
        if node is None:
            return
        seen.versions[path] = node.version
        try:
            seen.runs = codec.decode_runs(node.data, what=path)
        except InvalidInput as error:
            log.error("view_not_readable", path=path, error=str(error))  # noqa: TRY400 - the sentence says it all

    def _publish(self) -> None:
        for table in self._dirty:
            views = [seen for _, seen in sorted(self._seen.items()) if seen.header.definition.table == table]
            self._published[table] = tuple(seen.snapshot() for seen in views)
        self._dirty.clear()


def _definition(view: ViewDefinition, table: TableDefinition) -> Definition:
    definition = analyze(
        view.select,
        table=table.name,
        time_column=table.time_column,
        bucket_ms=view.bucket_ms,
        columns=dict(table.columns),
    )
    if is_outdated(view):
        raise InvalidInput(
            "outdated",
            f"view {view.name} was defined by an earlier version, which understood its query otherwise; "
            "the consistency service will have it built again",
        )
    return definition
