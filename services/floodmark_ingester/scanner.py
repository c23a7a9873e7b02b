"""Looks for files that appeared, changed or went, and announces them as any producer would.

What is announced goes through Kafka and the same checks as everything else; the scanner keeps nothing that matters.
After a restart it compares the listing with the registry: a file whose size and time are those it was registered with
is not read again, unless an earlier version read it in a way that could be wrong. What was announced and is still not
registered as it looks, because it was refused, because only its time changed, or because Kafka lost it, is announced
again, later each time.
"""

from collections.abc import Collection, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from pydantic import ValidationError

from floodmark.bus.ports import Outgoing, Publisher
from floodmark.contracts.envelope import Envelope, encode, originate
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.contracts.parsing import complaints
from floodmark.contracts.topics import ANNOUNCEMENTS
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.ports import Clock
from floodmark.core.segments import Segment
from floodmark.core.tables import RETENTION, TableDefinition
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.registry import Snapshot
from floodmark.parquet.lake import Lake, LakeFile

log = structlog.get_logger()

MAGIC = b"PAR1"
PARQUET_BYTES_MIN = 12
GONE = "gone"
AGAIN_FIRST_MS, AGAIN_CAP_MS = 60_000, 6 * 3_600_000
ANNOUNCED_AT_ONCE = 1_000
LOOKED_AT_AGAIN_AT_ONCE = 1_000
"""So many files of a table that are to be looked into again are on their way: fresh ones do not wait for all."""


@dataclass(slots=True)
class _Sighting:
    """A file as last seen: since when it looks like this, how often it was announced like this and when next."""

    stamp: str
    since_ms: int
    times: int = 0
    due_ms: int = 0

    def announced(self, now_ms: int) -> None:
        self.due_ms = now_ms + min(AGAIN_CAP_MS, AGAIN_FIRST_MS << min(self.times, 16))
        self.times += 1


_Sightings = dict[str, _Sighting]
"""By path."""


@dataclass(frozen=True, slots=True)
class _News:
    sighting: _Sighting
    message: SegmentAnnounced


@dataclass(slots=True)
class Scanner:
    """Scans every table, except those that have the property `scan = false`."""

    ledger: Ledger
    publisher: Publisher
    clock: Clock
    settle_ms: int
    """How long an unfinished file may look the same before it is announced, and refused, all the same."""
    directories: set[str] = field(default_factory=set)
    """Where the last scan of all looked, as far as it was in local directories."""
    _seen: dict[str, _Sightings] = field(default_factory=dict)
    _again: dict[str, _Sightings] = field(default_factory=dict)
    """Registered files that are to be looked into again, by table."""
    _up_to_date: dict[str, int] = field(default_factory=dict)
    """The registry version at which there were none, by table."""
    _generations: dict[str, int] = field(default_factory=dict)
    _troubles: dict[str, str] = field(default_factory=dict)

    def scan_all(self) -> int:
        """Returns how many files were announced. One table's trouble does not keep the others from being scanned."""
        announced = 0
        self.directories = set()
        for table in self.ledger.registry.tables():
            try:
                announced += self.scan(table)
            except (InvalidInput, Unavailable) as error:
                if not (isinstance(error, InvalidInput) and error.rule == "unknown-table"):  # dropped just now
                    self._complain(table, str(error))
            else:
                self._troubles.pop(table, None)
        return announced

    def scan(self, table: str) -> int:
        snapshot = self.ledger.registry.snapshot(table)
        definition = snapshot.header.definition
        again = self._again_news(snapshot)
        self._announce(again)
        if definition.properties.get("scan", "true") != "true":
            return len(again)
        lake = Lake(definition.location)
        if self._generations.setdefault(table, definition.generation) != definition.generation:
            # Another table of this name: what was seen of the one before is nothing to it.
            self._generations[table] = definition.generation
            self._seen.pop(table, None)
        by_path = {s.path: s for s in snapshot.by_name.values()}
        # Read between the registry and the files: what left the registry before is on it, or its file is gone already.
        condemned = self.ledger.retention.condemned_paths(table) if RETENTION in definition.properties else set()
        files = {f.path: f for f in lake.files(definition.properties.get("glob", "*.parquet"))}
        if lake.directory is not None:
            self.directories.add(lake.directory)
        before, seen = self._seen.get(table, {}), _Sightings()
        self._seen[table] = seen  # what is neither there nor registered is forgotten
        wanted = [f for f in files.values() if f.path not in condemned]
        news = [n for f in wanted if (n := self._file_news(lake, definition, by_path.get(f.path), f, before))]
        missing = [s for path, s in by_path.items() if path not in files]
        if missing and not files:  # rather a disk that is not mounted than a table that was emptied
            raise Unavailable(f"none of the {len(missing)} registered files is in {lake.location}; none is deleted")
        news += [n for s in missing if (n := self._gone_news(lake, definition, s, before))]
        self._announce(news)
        waiting = {p for p, file in files.items() if (known := by_path.get(p)) is None or known.stamp != file.stamp}
        self._forget_refusals(table, lake, files, waiting)
        return len(again) + len(news)

    def _forget_refusals(self, table: str, lake: Lake, listed: Collection[str], waiting: Set[str]) -> None:
        """Of files that have gone, or are registered as they look. A list that cannot be read stays as it is."""
        with suppress(InvalidInput):
            self.ledger.refusals.change(
                table,
                lambda known: known.still(
                    lambda path: path in waiting or (path not in listed and _may_be_there(lake, path)), lambda: waiting
                ),
            )

    def _complain(self, table: str, error: str) -> None:
        """Once for each reason: the scan comes by several times a second."""
        if self._troubles.get(table) != error:
            log.warning("table_not_scanned", table=table, error=error)
            self._troubles[table] = error

    # -- what is news ----------------------------------------------------------------------------------------------

    def _file_news(
        self, lake: Lake, definition: TableDefinition, known: Segment | None, file: LakeFile, before: _Sightings
    ) -> _News | None:
        if known is not None and known.stamp == file.stamp:
            return None
        sighting = self._sight(definition.name, file.path, file.stamp, before)
        now_ms = self.clock.monotonic_ms()
        if now_ms < sighting.due_ms:
            return None
        if now_ms - sighting.since_ms < self.settle_ms and not _looks_whole(lake, file):
            return None
        return self._announcement(definition.name, file.path, None if known is None else known.name, sighting)

    def _announcement(self, table: str, path: str, name: str | None, sighting: _Sighting) -> _News | None:
        """Of a file that is new, or of one that is registered under this name."""
        fields = {"table": table, "action": "add" if name is None else "replace", "path": path, "name": name}
        try:
            return _News(sighting, SegmentAnnounced.model_validate(fields))
        except ValidationError as error:  # its name has what no announcement may carry, such as a line break
            sighting.announced(self.clock.monotonic_ms())
            log.warning("file_not_announceable", table=table, path=path, error=complaints(error))
            return None

    def _again_news(self, snapshot: Snapshot) -> list[_News]:
        """Files that an earlier version looked into, which may lie elsewhere in time than it found. They are announced
        although they have not changed, and though nobody scans for files of this table."""
        definition, now_ms = snapshot.header.definition, self.clock.monotonic_ms()
        if self._up_to_date.get(definition.name) == snapshot.header.version:
            return []
        kind = dict(definition.columns).get(definition.time_column)
        outdated = [s for s in snapshot.by_name.values() if s.may_be_elsewhere(kind)]
        before = self._again.pop(definition.name, {})
        if not outdated:
            self._up_to_date[definition.name] = snapshot.header.version
            return []
        seen = self._again[definition.name] = {s.path: before.get(s.path, _Sighting(s.stamp, now_ms)) for s in outdated}
        room = LOOKED_AT_AGAIN_AT_ONCE - sum(
            now_ms < sighting.due_ms and sighting.times == 1 for sighting in seen.values()
        )
        lake, news = Lake(definition.location), list[_News]()
        for segment in outdated:
            sighting = seen[segment.path]
            if len(news) >= room:
                break
            if now_ms < sighting.due_ms:
                continue
            if not lake.has(segment.path):
                sighting.announced(now_ms)  # that it is gone is other news
                continue
            announced = self._announcement(definition.name, segment.path, segment.name, sighting)
            news += [announced] if announced is not None else []
        return news

    def _gone_news(self, lake: Lake, definition: TableDefinition, segment: Segment, before: _Sightings) -> _News | None:
        """A registered file that is not listed. It may just not fit the glob: only one that is not there is gone."""
        sighting = self._sight(definition.name, segment.path, GONE, before)
        if self.clock.monotonic_ms() < sighting.due_ms or lake.has(segment.path):
            return None
        return _News(
            sighting, SegmentAnnounced(table=definition.name, action="delete", name=segment.name, only_if_absent=True)
        )

    def _sight(self, table: str, path: str, stamp: str, before: _Sightings) -> _Sighting:
        sighting = before.get(path)
        if sighting is None or sighting.stamp != stamp:
            sighting = _Sighting(stamp, self.clock.monotonic_ms())
        self._seen[table][path] = sighting
        return sighting

    # -- announcing ------------------------------------------------------------------------------------------------

    def _announce(self, news: Sequence[_News]) -> None:
        for n in range(0, len(news), ANNOUNCED_AT_ONCE):
            part = news[n : n + ANNOUNCED_AT_ONCE]
            envelopes = [self._envelope(item.message, n + at) for at, item in enumerate(part)]
            self.publisher.publish([_outgoing(envelope) for envelope in envelopes])
            # Only now: what could not be sent is news at the next scan as well.
            for item, envelope in zip(part, envelopes, strict=True):
                item.sighting.announced(self.clock.monotonic_ms())
                log.info(
                    "file_announced",
                    table=item.message.table,
                    action=item.message.action,
                    path=item.message.path,
                    segment=item.message.name,
                    trace_id=envelope.trace_id,
                )

    def _envelope(self, message: SegmentAnnounced, number: int) -> Envelope:
        now_ms = self.clock.now_ms()
        return originate(message, event_id=f"scan/{message.table}/{now_ms}/{number}", source="scanner", time_ms=now_ms)


def _outgoing(envelope: Envelope) -> Outgoing:
    encoded = encode(envelope)
    return Outgoing(ANNOUNCEMENTS.name, encoded.key, encoded.value, encoded.headers)


def _may_be_there(lake: Lake, path: str) -> bool:
    """Whether there is something of this name; true when it cannot be told, or lies elsewhere."""
    try:
        return lake.file(path) is not None
    except InvalidInput:
        return True


def _looks_whole(lake: Lake, file: LakeFile) -> bool:
    """A Parquet file ends with the four bytes it begins with; until then somebody is writing it."""
    if file.bytes < PARQUET_BYTES_MIN:
        return False
    try:
        with lake.open(file.path) as source:
            source.seek(file.bytes - len(MAGIC))
            return bool(source.read(len(MAGIC)) == MAGIC)
    except (InvalidInput, Unavailable, OSError):
        return False
