"""Deletes the files of views that were dropped or replaced, by the notes their drops have left (INV-11).

    files listed --> holds read --> what stands at the location --> said in the note that it begins --> deleted

SUBTLE: the order of looks is what makes it safe, as in collecting.py. Files are listed before it is asked what stands
at their location: a view that is created there after that question writes files that are not in the list. Of a view
that is imported there, whose files are old ones, see `floodmark.ledger.dropped`.

Attempts of the dropped view may still be writing. They hold its table since before the drop: an attempt that takes its
hold later looks at its view once more after that, and finds it gone. So the note stays until every hold of that time
has gone; files that are written until then are found by a later round.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from floodmark.catalog.definitions import Header, standing_at
from floodmark.catalog.leftovers import attempt_files, judged_dropped
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.garbage import AttemptFile, Terms, Verdict, Why, settled
from floodmark.core.ports import Clock
from floodmark.core.tables import ViewHeader, ViewStatus
from floodmark.ledger.dropped import DroppedView
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.lake import Lake
from floodmark.parquet.locations import place_of
from floodmark_janitor.books import Books

log = structlog.get_logger()

ABSENT_KEPT_MS = 7 * 86_400_000
"""A location that is not there may be a disk that is not mounted, or one that nothing was ever written to."""


@dataclass(frozen=True, slots=True)
class Clearer:
    ledger: Ledger
    clock: Clock
    terms: Terms
    books: Books

    def clear(self, incarnation: str) -> int:
        """Go on with one note. Returns how many files were deleted."""
        dropped = self.ledger.dropped.note(incarnation)
        if dropped is None:
            return 0
        files = attempt_files(dropped.location)
        self.ledger.holds.remove_expired(dropped.table)
        self.ledger.store.sync()  # a server that lags would show neither a hold nor a view that are there already
        holds = self.ledger.holds.all(dropped.table)
        here = standing_at(self.ledger, dropped.location)
        now_ms = self.clock.now_ms()
        verdicts = judged_dropped(dropped, files, holds=holds, now_ms=now_ms, terms=self.terms)
        self.books.kept("dropped view", dropped.view, (v.why for v in verdicts if here or v.why is not Why.GARBAGE))
        if not settled(dropped.dropped_at_ms, holds=holds, now_ms=now_ms, terms=self.terms):
            return 0
        if here:
            self._leave(dropped, here)
            return 0
        if not files:
            self._forget(dropped, now_ms)
            return 0
        return self._delete_all(dropped, [v for v in verdicts if v.why is Why.GARBAGE])

    def _leave(self, dropped: DroppedView, here: Sequence[Header]) -> None:
        """A view that stands right there looks after every file of its location, those of its predecessors too.

        With anything else there it is not ours to tell whose files they are: they stay, and the note with them.
        """
        views = [header for header in here if isinstance(header, ViewHeader)]
        for header in views:
            if header.incarnation == dropped.incarnation:  # whoever dropped it did not come to the end
                self.ledger.views.finish_drop(dropped.view, dropped.incarnation)
        if any(header.status is ViewStatus.DROPPING for header in views):
            return  # going, or an import that is not whole yet
        place = place_of(dropped.location)
        if len(views) < len(here) or any(place_of(header.definition.location) != place for header in views):
            others = ", ".join(sorted(header.definition.name for header in here))
            raise InvalidInput("location-overlap", f"{dropped.location} is shared with {others}")
        self.ledger.dropped.forget(dropped)

    def _forget(self, dropped: DroppedView, now_ms: int) -> None:
        if Lake(dropped.location).is_there() or now_ms - dropped.dropped_at_ms > ABSENT_KEPT_MS:
            self.ledger.dropped.forget(dropped)
            log.info("dropped_view_cleared", view=dropped.view, location=dropped.location)

    def _delete_all(self, dropped: DroppedView, garbage: Sequence[Verdict]) -> int:
        if not garbage:
            return 0
        begun = dropped if dropped.clearing else self.ledger.dropped.begin(dropped)
        if begun is None:
            return 0  # somebody imports a view there: the next round looks again
        lake = Lake(dropped.location)
        return sum(self._delete(lake, begun, verdict.file) for verdict in garbage)

    def _delete(self, lake: Lake, dropped: DroppedView, file: AttemptFile) -> bool:
        try:
            there = lake.delete(file.path)
            lake.prune(str(file.start_ms))
        except (InvalidInput, Unavailable) as error:
            log.warning("file_not_deleted", view=dropped.view, path=file.path, error=str(error))
            return False
        if there:
            self.books.deleted("dropped view", dropped.view, file.bytes)
            log.info(
                "file_deleted",
                view=dropped.view,
                location=dropped.location,
                bucket_ms=file.start_ms,
                attempt_id=file.attempt_id,
                path=file.path,
                bytes=file.bytes,
                unnamed_since_ms=dropped.dropped_at_ms,
                why="its view was dropped, and no hold can see it",
            )
        return there
