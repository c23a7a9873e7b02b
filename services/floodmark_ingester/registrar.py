"""Registers files: looks into each, then brings a whole batch into the registry in few writes.

A file is registered under one name. Whoever announces it without a name means the one it has.

SUBTLE: looking takes time, and another ingester may look later and write earlier. So an older look must not win, in
whatever order the two are written. Two things are checked within each attempt of the write:

    the registry   what was registered of this segment when the look began is what is registered now
    the files      each file still looks as it did, and one that is to be forgotten for being gone is still gone

The first alone misses a file that was registered and forgotten in between; the second alone misses a later word of the
producer about the same files. What has been overtaken is tried again by whoever still has to: it is looked at again.
"""

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from floodmark.contracts.messages import SegmentMetadata
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.registry import OVERTAKEN, Change, Command, CommandsRefused, Contents, Draft, Put, Remove, Seen
from floodmark.core.segments import INSPECTION, Segment
from floodmark.core.tables import TableDefinition
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.inspection import Inspected, check_columns, inspect
from floodmark.parquet.lake import Lake, is_hidden

log = structlog.get_logger()

PRESENT = "file-present"
TIMES_NOT_TOLD = ("time-calendar", "time-range")
"""The rules of files that can be read, but not where in time their rows lie."""
FILE_NAME = "file-name"
"""The rule of a name that somebody on the way to an answer cannot take."""
Trouble = InvalidInput | Unavailable | OutcomeUnknown
"""Why a request was not carried out: refuse it, or try again."""


@dataclass(frozen=True, slots=True)
class Request:
    """One file to register or forget."""

    table: str
    action: Literal["add", "replace", "delete"]
    path: str | None
    name: str | None
    metadata: SegmentMetadata | None
    trace_id: str
    only_if_absent: bool = False


@dataclass(frozen=True, slots=True)
class _Look:
    """What looking at a request's file brought: its path below the location, and its content unless it is to go."""

    path: str | None
    content: Inspected | None


@dataclass(frozen=True, slots=True)
class _TimesNotTold:
    """What looking at a file brought whose times Spark reads otherwise than its footer can tell."""

    path: str
    stamp: str
    error: InvalidInput


@dataclass(slots=True)
class _Batch:
    """Commands for one write, none naming a segment twice, and which requests each answers."""

    commands: dict[str, Command] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """The segment that each request is about, by the request's position."""


@dataclass(frozen=True, slots=True)
class _Check:
    """Whether a batch of commands still holds: asked within each attempt of its write."""

    lake: Lake
    commands: Mapping[str, Command]
    only_if_absent: Set[str]
    """The segments that are to be forgotten only if their files are not there."""

    def confirm(self, definition: TableDefinition, changes: Sequence[Change]) -> None:
        refused = {name: error for change in changes for name, error in self._gone(change)}
        puts = {c.name: c.new for c in changes if c.new is not None}
        now = self.lake.files_at([segment.path for segment in puts.values()])
        for (name, segment), file in zip(puts.items(), now, strict=True):
            if file is None or file.stamp != segment.stamp:
                refused[name] = InvalidInput(OVERTAKEN, f"{segment.path} was changed or removed since it was read")
            elif error := _misfit(definition, self.commands[name], segment.path):
                refused[name] = error
        if refused:
            raise CommandsRefused(refused)

    def _gone(self, change: Change) -> Iterator[tuple[str, InvalidInput]]:
        old = change.old
        if change.action == "deleted" and change.name in self.only_if_absent and old and self.lake.has(old.path):
            yield change.name, InvalidInput(PRESENT, f"{old.path} is there again")


@dataclass(slots=True)
class Registrar:
    ledger: Ledger
    pool: Executor
    """Looks into several files at once."""
    after_change: Callable[[str], object]
    """Called with the table when its registry changed: there are events to publish."""
    _lakes: dict[str, Lake] = field(default_factory=dict)

    def register(self, requests: Sequence[Request]) -> list[Trouble | None]:
        """Carry out each request, or say why not. One bad request does not take the others down."""
        outcomes: list[Trouble | None] = [None] * len(requests)
        by_table: dict[str, list[int]] = {}
        for n, request in enumerate(requests):
            by_table.setdefault(request.table, []).append(n)
        for table, mine in by_table.items():
            for n, outcome in zip(mine, self._register(table, [requests[n] for n in mine]), strict=True):
                outcomes[n] = outcome
        return outcomes

    def _register(self, table: str, requests: Sequence[Request]) -> list[Trouble | None]:
        try:
            before = self.ledger.registry.snapshot(table)
            definition = before.header.definition
            looks = list(self.pool.map(lambda r: self._look(definition, r), requests))
            commands = _commands(before.contents, requests, looks)
            lake = self._lake(definition)
        except (InvalidInput, Unavailable) as error:
            return [error] * len(requests)
        outcomes: list[Trouble | None] = [None if isinstance(c, Put | Remove) else c for c in commands]
        for batch in _batches(commands):
            only_if_absent = {name for n, name in batch.names.items() if requests[n].only_if_absent}
            check = _Check(lake, batch.commands, only_if_absent)
            troubles = self._apply(table, list(batch.commands.values()), check)
            for n, name in batch.names.items():
                outcomes[n] = _outcome(requests[n], troubles.get(name))
        return self._told_of_refusals(table, lake, requests, outcomes)

    def _told_of_refusals(
        self, table: str, lake: Lake, requests: Sequence[Request], outcomes: list[Trouble | None]
    ) -> list[Trouble | None]:
        """The outcomes, once SHOW REFUSED FILES tells of them: who is refused is not heard of again."""
        refused, cleared = _refusals(lake, requests, outcomes)
        try:
            self.ledger.refusals.update(table, refused, cleared)
        except (Unavailable, OutcomeUnknown, BudgetExhausted) as error:
            later = Unavailable(f"the refusal cannot be written down: {error}")
            return [later if isinstance(o, InvalidInput) else o for o in outcomes]
        except InvalidInput as error:  # what is there cannot be read; registering goes on
            log.warning("refusals_not_listed", table=table, error=str(error))
        return outcomes

    # -- deciding --------------------------------------------------------------------------------------------------

    def _look(self, definition: TableDefinition, request: Request) -> _Look | _TimesNotTold | Trouble:
        try:
            lake = self._lake(definition)
            path = None if request.path is None else lake.relative(request.path)
            if request.action == "delete":
                return _Look(path, None)
            assert path is not None, "the contract demands a path"
            _check_name(lake, path)
            return _looked_into(definition, lake, path)
        except (InvalidInput, Unavailable) as error:
            return error

    # -- writing ---------------------------------------------------------------------------------------------------

    def _apply(self, table: str, commands: list[Command], check: "_Check") -> dict[str, Trouble]:
        """Write the batch. Returns the trouble by segment; those that are not in it are registered."""
        try:
            self._write(table, commands, check)
        except CommandsRefused as error:
            rest = [command for command in commands if command.name not in error.refused]
            return {**error.refused, **(self._apply(table, rest, check) if rest else {})}
        except InvalidInput as error:
            if len(commands) == 1:
                return {commands[0].name: error}
            # One of them cannot be written; the others must not suffer for it. What was written already is no change.
            half = len(commands) // 2
            return {**self._apply(table, commands[:half], check), **self._apply(table, commands[half:], check)}
        except (Unavailable, OutcomeUnknown) as error:
            return {command.name: error for command in commands}
        except BudgetExhausted as error:
            return {command.name: Unavailable(str(error)) for command in commands}
        return {}

    def _write(self, table: str, commands: list[Command], check: "_Check") -> None:
        outcomes = self.ledger.registry.apply(table, commands, confirm=check.confirm)
        for change, registered in ((c, o.result) for o in outcomes for c in o.result.changes):
            log.info(
                "segment_registered",
                table=table,
                segment=change.name,
                action=change.action,
                registry_version=registered.version,
                event_id=registered.event.event_id if registered.event else None,
                trace_id=change.trace_id,
            )
        # A lost answer hides what was changed, but not that something may have been: the outbox has it.
        if any(o.result.changes or o.unknowns for o in outcomes):
            self._publish(table)

    def _publish(self, table: str) -> None:
        """What is registered is registered: an event that cannot be sent now waits in the outbox."""
        try:
            self.after_change(table)
        except (InvalidInput, Unavailable, OutcomeUnknown) as error:
            log.warning("publishing_postponed", table=table, error=str(error))

    def _lake(self, definition: TableDefinition) -> Lake:
        lake = self._lakes.get(definition.location)
        if lake is None:
            lake = self._lakes[definition.location] = Lake(definition.location)
        return lake


def _looked_into(definition: TableDefinition, lake: Lake, path: str) -> _Look | _TimesNotTold:
    try:
        content = inspect(
            lake, path, time_column=definition.time_column, columns=definition.columns, time_unit=definition.time_unit
        )
    except InvalidInput as error:
        if error.rule in TIMES_NOT_TOLD and (file := lake.file(path)) is not None:
            return _TimesNotTold(path, file.stamp, error)
        raise
    return _Look(path, content)


def _check_name(lake: Lake, path: str) -> None:
    """Whether Spark would see the file and could open it."""
    if is_hidden(path):
        why = "a name that begins with _ or . is hidden from Spark, so its rows would be missing; rename it"
        raise InvalidInput("hidden-name", f"{path}: {why}")
    if lake.directory is not None and ":" in posixpath.basename(path):
        # Hadoop takes the name of the checksum file beside it, `.10:30.parquet.crc`, for a URI.
        raise InvalidInput(FILE_NAME, f"{path}: Spark cannot open a local file with a colon in its name; rename it")


def _commands(
    registered: Contents, requests: Sequence[Request], looks: Sequence[_Look | _TimesNotTold | Trouble]
) -> list[Command | Trouble]:
    """In the order of the requests: what one of them names, a later one may mean by its path alone.

    `registered` is what there was before the looks began.
    """
    draft = Draft(registered)
    commands: list[Command | Trouble] = []
    for request, look in zip(requests, looks, strict=True):
        command: Command | Trouble
        match look:
            case _Look():
                command = _command(request, look, draft)
            case _TimesNotTold():
                command = _without_times(request, look, draft)
            case _:
                command = look
        if isinstance(command, Put | Remove):
            with suppress(InvalidInput):  # whether it is refused is decided in the write
                draft.apply(command)
        commands.append(command)
    return commands


def _refusals(
    lake: Lake, requests: Sequence[Request], outcomes: Sequence[Trouble | None]
) -> tuple[dict[str, tuple[str, str]], set[str]]:
    """Rule and reason by path of what is refused, and the paths of which there is nothing more to tell."""
    refused: dict[str, tuple[str, str]] = {}
    cleared: set[str] = set()
    for request, trouble in zip(requests, outcomes, strict=True):
        if request.path is None or isinstance(trouble, Unavailable | OutcomeUnknown):
            continue
        path = _name_of(lake, request.path)
        if trouble is None or trouble.rule == "file-absent" or request.action == "delete":
            cleared.add(path)
            refused.pop(path, None)
        else:
            refused[path] = trouble.rule, str(trouble).removeprefix(f"{trouble.rule}: ")
            cleared.discard(path)
    return refused, cleared


def _name_of(lake: Lake, path: str) -> str:
    """As the listing has it; as it was announced if it lies elsewhere."""
    try:
        return lake.relative(path)
    except InvalidInput:
        return path


def _command(request: Request, look: _Look, draft: Draft) -> Command | Trouble:
    known = None if look.path is None else draft.name_at(look.path)
    name = request.name or known or look.path
    assert name is not None, "the contract demands a path or a name"
    seen = Seen(draft.segment(name))
    if look.content is None:
        return Remove(name, request.trace_id, seen)
    assert look.path is not None, "what has content has a path"
    try:
        segment = _segment(name, look.path, look.content)
        _check_metadata(look.path, segment, request.metadata)
    except InvalidInput as error:
        return error
    return Put(segment, request.trace_id, look.content.columns, seen)


def _without_times(request: Request, look: _TimesNotTold, draft: Draft) -> Command | Trouble:
    """Such a file is refused. One that an earlier version registered stays, as one that may have rows of any time: by
    the range that it was given, rows could be missing from answers."""
    name = draft.name_at(look.path)
    known = None if name is None else draft.segment(name)
    if known is None or known.stamp != look.stamp or known.inspected >= INSPECTION:
        return look.error
    log.warning("times_not_told", table=request.table, segment=known.name, path=look.path, error=str(look.error))
    anywhen = replace(known, start_ms=None, last_ms=None, timeless_rows=None, inspected=INSPECTION)
    return Put(anywhen, request.trace_id, seen=Seen(known))


def _misfit(definition: TableDefinition, command: Command, path: str) -> InvalidInput | None:
    """Why a file does not fit its table. The table may have got its columns only now, by the first of its files."""
    try:
        if isinstance(command, Put) and command.columns:
            check_columns(path, command.columns, definition.columns)
    except InvalidInput as error:
        return error
    return None


def _segment(name: str, path: str, found: Inspected) -> Segment:
    return Segment(
        name=name,
        crc=found.crc,
        start_ms=found.start_ms,
        last_ms=found.last_ms,
        path=path,
        rows=found.rows,
        bytes=found.file.bytes,
        stamp=found.file.stamp,
        timeless_rows=found.timeless_rows,
        inspected=INSPECTION,
    )


def _check_metadata(path: str, found: Segment, claimed: SegmentMetadata | None) -> None:
    """What the announcer said must be what the file is."""
    for field_name in ("crc", "rows", "bytes", "start_ms", "last_ms"):
        said, is_ = getattr(claimed, field_name, None), getattr(found, field_name)
        if said is not None and said != is_:
            raise InvalidInput("metadata", f"{path} was announced with {field_name} {said}, the file has {is_}")


def _outcome(request: Request, trouble: Trouble | None) -> Trouble | None:
    """What is to come of a request whose command was refused in the write."""
    if not isinstance(trouble, InvalidInput):
        return trouble
    if trouble.rule == PRESENT:
        return None  # the scanner takes it for gone no longer, and announces it if it is not as it was registered
    if trouble.rule == OVERTAKEN:
        return Unavailable(f"{request.path or request.name} of {request.table} is looked at again: {trouble}")
    if request.name is None and trouble.rule == "path-taken":
        # Announced without a name, it means the one it has. If it got that only now, the next try will know it.
        return Unavailable(f"{request.path} of {request.table} was given a name meanwhile: {trouble}")
    return trouble


def _batches(commands: Sequence[Command | Trouble]) -> list[_Batch]:
    """Few batches, in order. The same thing said twice is said once; the next thing said of a segment comes after."""
    batches = [_Batch()]
    for n, command in enumerate(commands):
        if not isinstance(command, Put | Remove):
            continue
        said = batches[-1].commands.setdefault(command.name, command)
        if replace(said, trace_id="") != replace(command, trace_id=""):
            batches.append(_Batch({command.name: command}))
        batches[-1].names[n] = command.name
    return [batch for batch in batches if batch.names]
