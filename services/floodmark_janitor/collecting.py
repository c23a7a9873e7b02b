"""Deletes the files of views that no entry names and nobody can read or commit any more.

SUBTLE: the order of looks is what makes it safe. Files are listed first, then holds are read, then entries.

Files before entries: a file committed after the entries were read would be listed and look unnamed.

Holds before entries: a worker checks in the write of its commit that its hold's node still stands. The other way round

    janitor  reads the entries: F is in none
    worker   commits F, and lets its hold go
    janitor  reads the holds: there is none, so nobody can commit F: deletes a file that an entry names

Every node counts, run out or not. A hold that ran out is removed first, and only its removal ends its power:

    janitor  reads the holds: that of the worker ran out a second ago, so it is taken not to count
    janitor  reads the entries: F is in none
    worker   was held up, and commits F: its hold's node is still there, so the check in its commit succeeds
    janitor  deletes a file that an entry names

When the node is gone before the entries are read, a commit is either in these entries or can never happen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from floodmark.catalog.leftovers import attempt_files, named_files, view_header
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.garbage import AttemptFile, Sighting, Terms, Verdict, Why, judge, sighted
from floodmark.core.ports import Clock
from floodmark.core.tables import ViewHeader
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.lake import Lake
from floodmark.parquet.locations import place_of
from floodmark_janitor.books import Books

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Memory:
    """What was unnamed at the last look, of one incarnation of a view."""

    incarnation: str = ""
    sightings: dict[str, Sighting] = field(default_factory=dict)


@dataclass(slots=True)
class Collector:
    """Looks at one view at a time. What it remembers only delays: a restart begins every grace period anew."""

    ledger: Ledger
    clock: Clock
    terms: Terms
    books: Books
    _memories: dict[str, _Memory] = field(default_factory=dict)

    def collect(self, view: str) -> int:
        """Delete the garbage of a view. Returns how many files that were."""
        header = view_header(self.ledger, view)
        files = [] if header is None else attempt_files(header.definition.location)
        if header is None or not files:
            self._memories.pop(view, None)
            self.books.kept("view", view, ())
            return 0
        verdicts = self._judge(header, files)
        if any(v.why is Why.GARBAGE for v in verdicts):
            verdicts = self._judge(header, files)  # once more, right before deleting
        self.books.kept("view", view, (v.why for v in verdicts if v.why not in (Why.GARBAGE, Why.NAMED)))
        return sum(self._delete(header, v) for v in verdicts if v.why is Why.GARBAGE)

    def forget_all_but(self, views: Sequence[str]) -> None:
        for gone in self._memories.keys() - set(views):
            del self._memories[gone]

    def _judge(self, header: ViewHeader, files: Sequence[AttemptFile]) -> list[Verdict]:
        """Look at holds, entries and the clock, in this order, and decide."""
        view, table = header.definition.name, header.definition.table
        self.ledger.holds.remove_expired(table)
        self.ledger.store.sync()  # a server that lags would not show a hold whose files are there already
        holds = [hold for name in {table, *self._tables_before(header)} for hold in self.ledger.holds.all(name)]
        named = named_files(self.ledger, header)
        if named is None:
            return []
        now_ms = self.clock.now_ms()
        memory = self._memories.get(view, _Memory())
        before = memory.sightings if memory.incarnation == header.incarnation else {}
        seen = sighted(before, files, named=named, holds=holds, now_ms=now_ms, terms=self.terms)
        self._memories[view] = _Memory(header.incarnation, seen)
        return [judge(f, seen.get(f.path), holds=holds, now_ms=now_ms, terms=self.terms) for f in files]

    def _tables_before(self, header: ViewHeader) -> set[str]:
        """The tables of views that stood here before and were dropped: their readers hold those, and not ours."""
        notes = (self.ledger.dropped.note(incarnation) for incarnation in self.ledger.dropped.incarnations())
        place = place_of(header.definition.location)
        return {note.table for note in notes if note is not None and place_of(note.location) == place}

    def _delete(self, header: ViewHeader, verdict: Verdict) -> bool:
        view, file = header.definition.name, verdict.file
        lake = Lake(header.definition.location)
        try:
            there = lake.delete(file.path)
            lake.prune(str(file.start_ms))
        except (InvalidInput, Unavailable) as error:
            log.warning("file_not_deleted", view=view, path=file.path, error=str(error))
            return False
        if there:
            self.books.deleted("view", view, file.bytes)
            log.info(
                "file_deleted",
                view=view,
                bucket_ms=file.start_ms,
                attempt_id=file.attempt_id,
                path=file.path,
                bytes=file.bytes,
                unnamed_since_ms=verdict.since_ms,
                why="no entry names it and no hold can see it",
            )
        return there
