"""What lies at the locations of views and tables and may go: looked at, and told with what it waits for.

The janitor deletes by these looks; `floodmark janitor --dry-run` prints them. Nothing is written or deleted here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.catalog.definitions import Definition, everything_located, retention_ms, sharing, standing_at
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.garbage import (
    AttemptFile,
    HoldTaken,
    Sighting,
    Terms,
    Verdict,
    Why,
    attempt_file,
    judge,
    past_retention,
    seeing,
)
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader, ViewStatus
from floodmark.ledger.condemned import CondemnedFile
from floodmark.ledger.dropped import DroppedView
from floodmark.ledger.holds import Hold
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.lake import Lake, LakeFile


def view_header(ledger: Ledger, view: str) -> ViewHeader | None:
    """None when there is no such view, or its entries are not to be relied on: it is being dropped, or imported."""
    try:
        header = ledger.views.header(view)
    except InvalidInput as error:
        if error.rule == "unknown-view":
            return None
        raise
    return None if header.status is ViewStatus.DROPPING else header


def attempt_files(location: str) -> list[AttemptFile]:
    """The files that attempts have written for a view. Whatever else lies there is not looked at."""
    lake = Lake(location)
    if not lake.is_there():
        return []  # nothing was built yet
    dated = ((f, f.modified_at_ms) for f in lake.files("*.parquet"))
    found = (attempt_file(f.path, size=f.bytes, modified_at_ms=at_ms) for f, at_ms in dated if at_ms is not None)
    return [file for file in found if file is not None]


def named_files(ledger: Ledger, header: ViewHeader) -> frozenset[str] | None:
    """The files that the entries of this incarnation name; None when it is gone.

    The header is read again after the entries: entries read while the view was dropped or imported are not all of them.
    """
    view = header.definition.name
    try:
        state = ledger.views.state(view)
    except InvalidInput as error:
        if error.rule == "unknown-view":
            return None
        raise
    after = view_header(ledger, view)
    if after is None or after.incarnation != header.incarnation:
        return None
    return frozenset(file.name for entry in state.entries.values() for file in entry.files)


def is_same(file: LakeFile, condemned: CondemnedFile) -> bool:
    """Whether this is the file that was condemned, and not one that was put in its place since."""
    return file.stamp == condemned.stamp if condemned.stamp else file.bytes == condemned.bytes


def judged_dropped(
    dropped: DroppedView, files: Sequence[AttemptFile], *, holds: Sequence[HoldTaken], now_ms: int, terms: Terms
) -> list[Verdict]:
    """What becomes of the files of a dropped view. Its fence went in the write that dropped it, and with it the last
    moment at which any of them could be named."""
    since = Sighting(dropped.dropped_at_ms, dropped.dropped_at_ms)
    return [judge(file, since, holds=holds, now_ms=now_ms, terms=terms) for file in files]


# -- a dry run -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Finding:
    """One candidate: what would become of it, and why."""

    owner: str
    """`view NAME`, `table NAME` or `dropped view NAME`."""
    path: str
    bytes: int
    verdict: str
    """`delete`, `remove from the registry`, or `keep`."""
    reason: str
    unnamed_since_ms: int | None = None
    grace_left_ms: int = 0
    held_by: tuple[str, ...] = ()


def findings(ledger: Ledger, *, now_ms: int, terms: Terms) -> list[Finding]:
    """What one pass would do. First-seen times are not known here: the age of a file stands in for them."""
    known = everything_located(ledger)
    found: list[Finding] = []
    for located in known:
        definition = located.definition
        if neighbour := sharing(located, known):
            reason = f"shares its location with {neighbour.name}"
            found.append(Finding(_owner(definition), definition.location, 0, "keep", reason))
            continue
        try:
            holds = _live(ledger.holds.all(_table(definition)), now_ms)
            if isinstance(definition, ViewDefinition):
                found += _view_findings(ledger, definition, holds, now_ms, terms)
            else:
                found += _table_findings(ledger, definition, holds, now_ms)
        except (InvalidInput, Unavailable) as error:
            found.append(Finding(_owner(definition), definition.location, 0, "keep", str(error)))
    for incarnation in ledger.dropped.incarnations():
        try:
            found += _dropped_findings(ledger, incarnation, now_ms, terms)
        except (InvalidInput, Unavailable) as error:
            found.append(Finding(f"dropped view {incarnation}", "", 0, "keep", str(error)))
    return found


def _dropped_findings(ledger: Ledger, incarnation: str, now_ms: int, terms: Terms) -> list[Finding]:
    dropped = ledger.dropped.note(incarnation)
    if dropped is None or standing_at(ledger, dropped.location):  # then what lies there is found with what stands there
        return []
    files = attempt_files(dropped.location)
    holds = _live(ledger.holds.all(dropped.table), now_ms)
    verdicts = judged_dropped(dropped, files, holds=holds, now_ms=now_ms, terms=terms)
    return [_finding(f"dropped view {dropped.view}", verdict) for verdict in verdicts]


def _view_findings(
    ledger: Ledger, definition: ViewDefinition, holds: Sequence[Hold], now_ms: int, terms: Terms
) -> list[Finding]:
    header = view_header(ledger, definition.name)
    files = attempt_files(definition.location)
    named = None if header is None else named_files(ledger, header)
    if named is None:
        return []
    found = []
    for file in files:
        sighting = None if file.path in named else Sighting(file.modified_at_ms, file.modified_at_ms)
        verdict = judge(file, sighting, holds=holds, now_ms=now_ms, terms=terms)
        if verdict.why is not Why.NAMED:
            found.append(_finding(_owner(definition), verdict))
    return found


def _finding(owner: str, verdict: Verdict) -> Finding:
    return Finding(
        owner,
        verdict.file.path,
        verdict.file.bytes,
        "delete" if verdict.why is Why.GARBAGE else "keep",
        _REASONS[verdict.why],
        verdict.since_ms,
        verdict.wait_ms,
        _readers(verdict.holds),
    )


_REASONS = {
    Why.GARBAGE: "no entry names it",
    Why.GRACE: "no entry names it, but it is young",
    Why.HELD: "no entry names it, but someone may read or commit it",
}


def _table_findings(ledger: Ledger, definition: TableDefinition, holds: Sequence[Hold], now_ms: int) -> list[Finding]:
    kept_ms = retention_ms(definition)
    if kept_ms is None:
        return []
    owner, lake = _owner(definition), Lake(definition.location)
    snapshot = ledger.registry.snapshot(definition.name)
    due = past_retention(snapshot.by_name.values(), before_ms=now_ms - kept_ms)
    found = [Finding(owner, s.path, s.bytes, "remove from the registry", "past its retention") for s in due]
    for condemnation in ledger.retention.condemned(definition.name):
        readers = _readers(seeing(holds, condemnation.version))
        for file in condemnation.files:
            there = lake.file(file.path)
            if there is None:
                continue
            if not is_same(there, file):
                found.append(Finding(owner, file.path, there.bytes, "keep", "another file took its place"))
            else:
                verdict, reason = ("keep", "someone may read it") if readers else ("delete", "past its retention")
                found.append(Finding(owner, file.path, there.bytes, verdict, reason, held_by=readers))
    return found


def _table(definition: Definition) -> str:
    return definition.table if isinstance(definition, ViewDefinition) else definition.name


def _owner(definition: Definition) -> str:
    return f"{'view' if isinstance(definition, ViewDefinition) else 'table'} {definition.name}"


def _live(holds: Sequence[Hold], now_ms: int) -> list[Hold]:
    """A pass removes those that ran out before it looks."""
    return [h for h in holds if h.expires_at_ms > now_ms]


def _readers(holds: Sequence[HoldTaken]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(h.reader for h in holds))
