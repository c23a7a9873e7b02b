"""Takes data past its retention out of the registry, and deletes its files once no reader can have listed them.

Only tables with the property `retention` are looked at. A file goes in three steps, each in a pass of its own accord:

    its segment is removed and its path condemned, in one write
    the file is deleted, when every hold from before that write has gone
    a later pass finds no condemned file there any more, and takes them off the list

The last step waits for a later pass on purpose. A registrar that had read the file before it was deleted may still be
about to register it; as long as the path is condemned, that is refused.
"""

from collections.abc import Collection
from dataclasses import dataclass

import structlog

from floodmark.catalog.definitions import retention_ms
from floodmark.catalog.leftovers import is_same
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.garbage import seeing
from floodmark.core.ports import Clock
from floodmark.core.tables import TableDefinition
from floodmark.ledger.condemned import Condemnation, CondemnedFile
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.lake import Lake, LakeFile
from floodmark_janitor.books import Books

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Retirer:
    ledger: Ledger
    clock: Clock
    batch_max: int
    books: Books

    def sweep(self, definition: TableDefinition) -> None:
        kept_ms = retention_ms(definition)
        if kept_ms is None:
            return
        self._retire(definition, before_ms=self.clock.now_ms() - kept_ms)
        self._delete_condemned(definition)

    def _retire(self, definition: TableDefinition, *, before_ms: int) -> None:
        table, generation = definition.name, definition.generation
        while retired := self.ledger.retention.retire(
            table, before_ms=before_ms, batch_max=self.batch_max, generation=generation
        ):
            assert retired.event is not None, "what was retired has changed the registry"
            self.books.retired(table, len(retired.changes))
            log.info(
                "segments_retired",
                table=table,
                segments=len(retired.changes),
                registry_version=retired.version,
                event_id=retired.event.event_id,
                trace_id=retired.event.trace_id,
                before_ms=before_ms,
            )

    def _delete_condemned(self, definition: TableDefinition) -> None:
        table, lake = definition.name, Lake(definition.location)
        condemned = self.ledger.retention.condemned(table)
        if not condemned or not lake.is_there():  # a disk that is not mounted has none of the files, and all of them
            return
        self.ledger.store.sync()
        holds = self.ledger.holds.all(table)
        snapshot = self.ledger.registry.snapshot(table)
        if snapshot.header.definition.generation != definition.generation:
            return  # what is condemned may be another table's, whose files lie elsewhere
        registered = {s.path for s in snapshot.by_name.values()}
        kept = 0
        for condemnation in condemned:
            held = bool(seeing(holds, condemnation.version))
            kept += self._carry_out(lake, condemnation, registered, held=held)
        self.books.kept("table", table, ["held"] * kept)

    def _carry_out(self, lake: Lake, condemnation: Condemnation, registered: Collection[str], *, held: bool) -> int:
        """Delete what may go. Returns how many files are kept because someone may read them."""
        looks = {f: self._look(lake, condemnation, f) for f in condemnation.files}
        there = {f: found for f, found in looks.items() if isinstance(found, LakeFile)}
        # In doubt it is kept: what lies there now is not what was condemned, and may be registered again.
        spared = [f for f, found in there.items() if f.path in registered or not is_same(found, f)]
        if spared:
            self.ledger.retention.spare(condemnation, spared)
            for file in spared:
                log.warning("condemned_file_spared", table=condemnation.table, path=file.path)
        elif not any(looks.values()):
            self.ledger.retention.forget(condemnation)
        if held:
            return len(there) - len(spared)
        for file in there:
            if file not in spared:
                self._delete(lake, condemnation, file)
        return 0

    def _look(self, lake: Lake, condemnation: Condemnation, file: CondemnedFile) -> LakeFile | InvalidInput | None:
        try:
            return lake.file(file.path)
        except InvalidInput as error:  # it may be there, and may not be ours: neither deleted nor taken for gone
            log.warning("file_not_deleted", table=condemnation.table, path=file.path, error=str(error))
            return error

    def _delete(self, lake: Lake, condemnation: Condemnation, file: CondemnedFile) -> None:
        """SUBTLE: between the look and this, a producer may put another file in its place. No lake can rule it out; the
        moment is short, and a producer that writes where it wrote before its retention ended is rare.
        """
        table = condemnation.table
        try:
            there = lake.delete(file.path)
        except (InvalidInput, Unavailable) as error:
            log.warning("file_not_deleted", table=table, path=file.path, error=str(error))
            return
        if there:
            self.books.deleted("table", table, file.bytes)
            log.info(
                "file_deleted",
                table=table,
                path=file.path,
                bytes=file.bytes,
                registry_version=condemnation.version,
                why="past its retention, and no hold can see it",
            )
