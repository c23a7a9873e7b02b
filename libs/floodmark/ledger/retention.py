r"""Retention: removes segments from the registry, and in the same write condemns their files.

    registered --retire--> condemned --file deleted--> --forget--> gone
                               \--spare: another file lies there now--> may be registered again

Every step may be repeated, by anyone, after a crash anywhere.
"""

from collections.abc import Collection
from dataclasses import replace

from floodmark.core.garbage import past_retention
from floodmark.core.ports import new_id
from floodmark.core.registry import Remove
from floodmark.core.segments import Segment
from floodmark.ledger import condemned, paths
from floodmark.ledger.condemned import Condemnation, CondemnedFile, read_condemned
from floodmark.ledger.engine import Budgets, Done, Engine, Write
from floodmark.ledger.halving import halved
from floodmark.ledger.registry import Registered, Registry, Snapshot
from floodmark.ledger.store import Create, Delete, Op, Set, TooLarge


class Retention:
    def __init__(self, engine: Engine, budgets: Budgets, registry: Registry) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets
        self._registry = registry

    def retire(self, table: str, *, before_ms: int, batch_max: int, generation: int = 0) -> Registered | None:
        """Remove the oldest segments whose data all lies before this time; None when there are none.

        `generation` is that of the table whose retention this is: one of the same name may have come since.
        """

        def alone(_: int, error: TooLarge) -> Registered | None:
            if not self._split_oldest(table, before_ms, generation):
                raise error
            return self._retire(table, before_ms, 1, generation)

        writes = halved(
            range(batch_max), lambda part: self._retire(table, before_ms, len(part), generation), alone=alone
        )
        return next(writes)  # the rest is left to the next call

    def _split_oldest(self, table: str, before_ms: int, generation: int) -> bool:
        """Cut the slices of the next segment to go that were full before there were parts."""
        snapshot = self._registry.snapshot(table)
        due = past_retention(snapshot.by_name.values(), before_ms=before_ms)
        is_same = snapshot.header.definition.generation == generation
        return bool(due) and is_same and self._registry.split_oversized(table, Remove(due[0].name))

    def _retire(self, table: str, before_ms: int, batch_max: int, generation: int) -> Registered | None:
        sent: list[Registered] = []

        def attempt() -> Done[Registered | None] | Write[Registered | None]:
            if sent and self._landed(table, sent[-1]):
                return Done(sent[-1])
            # What is too old is decided in here: a segment replaced meanwhile by a younger one stays.
            snapshot = self._registry.snapshot(table)
            if snapshot.header.definition.generation != generation:
                return Done(None)
            due = past_retention(snapshot.by_name.values(), before_ms=before_ms)[:batch_max]
            if not due:
                return Done(None)
            write = self._removal(table, snapshot, due)
            sent.append(write.result)
            return Write(write.ops, write.result, write.on_committed, write.from_memory)

        return self._engine.run(f"retire segments of {table}", self._budgets.critical, attempt).result

    def _removal(self, table: str, snapshot: Snapshot, due: list[Segment]) -> Write[Registered]:
        trace_id = new_id(self._engine.randomness).replace("-", "")
        names = dict.fromkeys(s.name for s in due)
        write = self._registry.removal(table, snapshot, names, trace_id=trace_id)
        event = write.result.event
        assert event is not None, "removing a registered segment is a change"
        needed = {s.path for s in snapshot.by_name.values() if s.name not in names}
        files = tuple(CondemnedFile(s.path, s.bytes, s.stamp) for s in due if s.path not in needed)
        made = Condemnation(table, event.version, event.event_id, event.registered_at_ms, files)
        parent = paths.condemned(table)
        parents: list[Op] = [] if self._store.read(parent) else [Create(parent, b"")]  # a table may be older than this
        node = Create(paths.condemned_at(table, event.version), condemned.encode(made))
        return replace(write, ops=[*write.ops, *parents, node])

    def _landed(self, table: str, registered: Registered) -> bool:
        """Whether it was our own write whose answer was lost: the event's id tells."""
        node = self._store.read(paths.condemned_at(table, registered.version))
        if node is None or registered.event is None:
            return False
        return condemned.decode(table, registered.version, node).event_id == registered.event.event_id

    def condemned(self, table: str) -> list[Condemnation]:
        """What waits to be deleted, oldest first."""
        return read_condemned(self._store, table)

    def condemned_paths(self, table: str) -> set[str]:
        return {file.path for found in self.condemned(table) for file in found.files}

    def spare(self, found: Condemnation, spared: Collection[CondemnedFile]) -> None:
        """Take files off the list. Whoever changed it meanwhile wins; the next look decides again."""
        rest = replace(found, files=tuple(f for f in found.files if f not in spared))
        path = paths.condemned_at(found.table, found.version)
        self._store.commit([Set(path, condemned.encode(rest), found.node_version)])

    def forget(self, found: Condemnation) -> None:
        """Its files are gone."""
        self._store.commit([Delete(paths.condemned_at(found.table, found.version), found.node_version)])
