"""Registers files: looks into each, then brings a whole batch into the registry in few writes.

A file is registered under one name. Whoever announces it without a name means the one it has.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import structlog

from floodmark.contracts.messages import SegmentMetadata
from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.registry import Command, CommandsRefused, Draft, Put, Remove
from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.inspection import Inspected, inspect
from floodmark.parquet.lake import Lake

log = structlog.get_logger()

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


@dataclass(frozen=True, slots=True)
class _Look:
    """What looking at a request's file brought: its path below the location, and its content unless it is to go."""

    path: str | None
    content: Inspected | None


@dataclass(slots=True)
class _Batch:
    """Commands for one write, none naming a segment twice, and which requests each answers."""

    commands: dict[str, Command] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    """The segment that each request is about, by the request's position."""


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
            definition = self.ledger.registry.header(table).definition
            looks = list(self.pool.map(lambda r: self._look(definition, r), requests))
            commands = self._commands(table, requests, looks)
        except (InvalidInput, Unavailable) as error:
            return [error] * len(requests)
        outcomes: list[Trouble | None] = [None if isinstance(c, Put | Remove) else c for c in commands]
        for batch in _batches(commands):
            troubles = self._apply(table, list(batch.commands.values()))
            for n, name in batch.names.items():
                outcomes[n] = _outcome(requests[n], troubles.get(name))
        return outcomes

    # -- deciding --------------------------------------------------------------------------------------------------

    def _look(self, definition: TableDefinition, request: Request) -> _Look | Trouble:
        try:
            lake = self._lake(definition)
            path = None if request.path is None else lake.relative(request.path)
            if request.action == "delete":
                return _Look(path, None)
            assert path is not None, "the contract demands a path"
            content = inspect(lake, path, time_column=definition.time_column, columns=definition.columns)
        except (InvalidInput, Unavailable) as error:
            return error
        return _Look(path, content)

    def _commands(
        self, table: str, requests: Sequence[Request], looks: Sequence[_Look | Trouble]
    ) -> list[Command | Trouble]:
        """In the order of the requests: what one of them names, a later one may mean by its path alone."""
        draft = Draft(self.ledger.registry.snapshot(table).contents)
        commands: list[Command | Trouble] = []
        for request, look in zip(requests, looks, strict=True):
            command = _command(request, look, draft) if isinstance(look, _Look) else look
            if isinstance(command, Put | Remove):
                with suppress(InvalidInput):  # whether it is refused is decided in the write
                    draft.apply(command)
            commands.append(command)
        return commands

    # -- writing ---------------------------------------------------------------------------------------------------

    def _apply(self, table: str, commands: list[Command]) -> dict[str, Trouble]:
        """Write the batch. Returns the trouble by segment; those that are not in it are registered."""
        try:
            self._write(table, commands)
        except CommandsRefused as error:
            rest = [command for command in commands if command.name not in error.refused]
            return {**error.refused, **(self._apply(table, rest) if rest else {})}
        except InvalidInput as error:
            if len(commands) == 1:
                return {commands[0].name: error}
            # One of them cannot be written; the others must not suffer for it. What was written already is no change.
            half = len(commands) // 2
            return {**self._apply(table, commands[:half]), **self._apply(table, commands[half:])}
        except (Unavailable, OutcomeUnknown) as error:
            return {command.name: error for command in commands}
        except BudgetExhausted as error:
            return {command.name: Unavailable(str(error)) for command in commands}
        return {}

    def _write(self, table: str, commands: list[Command]) -> None:
        outcomes = self.ledger.registry.apply(table, commands)
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


def _command(request: Request, look: _Look, draft: Draft) -> Command | Trouble:
    known = None if look.path is None else draft.name_at(look.path)
    name = request.name or known or look.path
    assert name is not None, "the contract demands a path or a name"
    if look.content is None:
        return Remove(name, request.trace_id)
    assert look.path is not None, "what has content has a path"
    try:
        segment = _segment(name, look.path, look.content)
        _check_metadata(look.path, segment, request.metadata)
    except InvalidInput as error:
        return error
    return Put(segment, request.trace_id)


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
    )


def _check_metadata(path: str, found: Segment, claimed: SegmentMetadata | None) -> None:
    """What the announcer said must be what the file is."""
    for field_name in ("crc", "rows", "bytes", "start_ms", "last_ms"):
        said, is_ = getattr(claimed, field_name, None), getattr(found, field_name)
        if said is not None and said != is_:
            raise InvalidInput("metadata", f"{path} was announced with {field_name} {said}, the file has {is_}")


def _outcome(request: Request, trouble: Trouble | None) -> Trouble | None:
    """A file announced without a name means the one it has; if it got that only now, the next try will know it."""
    if request.name is None and isinstance(trouble, InvalidInput) and trouble.rule == "path-taken":
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
