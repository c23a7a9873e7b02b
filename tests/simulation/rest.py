"""What must hold when nothing happens any more: every view is what it should be, and nothing is left over."""

from collections.abc import Iterator

from floodmark.core.buckets import Entry, State
from floodmark.core.dispatch import Progress, Record
from floodmark.ledger import paths
from floodmark.ledger.dispatch import decode_records
from tests.simulation.files import decoded
from tests.simulation.oracle import Oracle, View
from tests.simulation.plan import TABLE, Plan
from tests.simulation.spark import POISON
from tests.support.memory_bus import MemoryBus

BEHIND_NOW_MS = 10_000


def complaints(oracle: Oracle, bus: MemoryBus, plan: Plan, now_ms: int) -> Iterator[str]:
    """Everything that is not as it should be at rest."""
    yield from _registry(oracle, plan, now_ms)
    for view in oracle.views.values():
        yield from _view(oracle, view, now_ms)
    yield from _leftovers(oracle)
    yield from _positions(bus)


def _registry(oracle: Oracle, plan: Plan, now_ms: int) -> Iterator[str]:
    location = oracle.table.definition.location
    here = {path for place, path in oracle.disk.files if place == location}
    registered = {s.path: s for s in oracle.segments.values()}
    if here != registered.keys():
        yield f"INV-7 files {sorted(here)}, registered {sorted(registered)}"
    for path in here & registered.keys():
        rows = decoded(oracle.disk.files[location, path].content)
        if rows != oracle.disk.rows_by_crc[registered[path].crc]:
            yield f"INV-7 {path} is registered with other content"
    too_old_ms = None if plan.retention_ms is None else now_ms - plan.retention_ms - 20_000
    if too_old_ms is not None and (old := [s.name for s in registered.values() if (s.last_ms or 0) < too_old_ms]):
        yield f"retention: {old} are still registered"


def _view(oracle: Oracle, view: View, now_ms: int) -> Iterator[str]:
    header, grid, name = view.header, view.header.definition.grid, view.header.definition.name
    starts = [s.start_ms for s in oracle.segments.values() if s.start_ms is not None]
    data_end_ms = oracle.data_end_ms
    if not starts or data_end_ms is None:
        return
    if header.coverage_start_ms is None or header.watermark_ms is None:
        yield f"5.1 the coverage of {name} never began"
        return
    if header.definition.coverage == "extend" and header.coverage_start_ms > grid.start_of(min(starts)):
        yield f"5.1 {name} covers from {header.coverage_start_ms}, data begins at {min(starts)}"
    records = _records(oracle, name)
    # A row of the far future moves the end of the data past now, and the newest buckets are built as time goes by.
    data_end_ms = min(data_end_ms, now_ms - BEHIND_NOW_MS) if data_end_ms > now_ms else data_end_ms
    end_ms = max(grid.start_of(data_end_ms), header.watermark_ms)
    listed = range(header.coverage_start_ms, end_ms, grid.width_ms)
    for start_ms in sorted({*oracle.listed(view, listed), *view.entries}):
        yield from _bucket(oracle, view, start_ms, records.pop(start_ms, None))
    for run in view.runs:
        if run.entry.state is State.STALE:
            yield f"INV-7 shards {run.first} to {run.end} of {name} are STALE"
        elif (live := oracle.source(run.window(grid)))[1]:
            yield f"INV-7 shards {run.first} to {run.end} of {name} are VALID-empty, with {live[1]}"
    poisoned = any(_is_poisoned(oracle, view, s) for s in range(header.watermark_ms, end_ms, grid.width_ms))
    if header.watermark_ms < grid.start_of(data_end_ms) and not poisoned:
        yield f"5.4 the watermark of {name} is {header.watermark_ms}, data ends at {data_end_ms}"
    if records:
        yield f"INV-10 {name} has dispatch records of {sorted(records)}"


def _bucket(oracle: Oracle, view: View, start_ms: int, record: Record | None) -> Iterator[str]:
    entry, where = view.at(start_ms), f"bucket {start_ms} of {view.header.definition.name}"
    live, segments = oracle.source(view.header.definition.grid.window(start_ms))
    if entry is not None and entry.state is State.VALID:
        if entry.fingerprint != live:
            yield f"INV-7 {where} is VALID from an old source"
        elif oracle.stored(view.header, entry) != oracle.expected(view.header, start_ms, segments):
            yield f"INV-12 {where} has other rows than its source"
        if record is not None:
            yield f"INV-10 {where} is VALID and has a dispatch record"
    elif record is None or not _is_told(record, poisoned=_is_poisoned(oracle, view, start_ms)):
        yield f"INV-7 {where} is {_state(entry)}, with {record}"


def _is_told(record: Record, *, poisoned: bool) -> bool:
    """A bucket that is not built says why, and there is a reason."""
    if not record.error:
        return False
    accident = any(word in record.error for word in ("executor was lost", "died"))
    return poisoned or (record.progress is Progress.QUARANTINED and accident)


def _is_poisoned(oracle: Oracle, view: View, start_ms: int) -> bool:
    _, segments = oracle.source(view.header.definition.grid.window(start_ms))
    return any(key == POISON for _, key, _ in oracle.rows_of(segments))


def _state(entry: Entry | None) -> str:
    return "VACANT" if entry is None else str(entry.state)


def _records(oracle: Oracle, view: str) -> dict[int, Record]:
    prefix = paths.dispatch(view) + "/"
    nodes = [(path, node) for path, node in oracle.store.nodes.items() if path.startswith(prefix)]
    return {start: record for path, node in nodes for start, record in decode_records(node.data, what=path).items()}


def _leftovers(oracle: Oracle) -> Iterator[str]:
    for kind, rule in ((paths.outbox(TABLE), "INV-7"), (paths.holds(TABLE), "INV-11"), (paths.condemned(TABLE), "5.6")):
        if left := sorted(path for path in oracle.store.nodes if path.startswith(kind + "/")):
            yield f"{rule} left over: {left}"
    places = {oracle.table.definition.location, *(v.header.definition.location for v in oracle.views.values())}
    if left := sorted(file for file in oracle.disk.files if file[0] not in places):
        yield f"5.6 files of views that are gone: {left}"
    for view in oracle.views.values():
        location = view.header.definition.location
        named = {f.name for entry in view.entries.values() for f in entry.files}
        orphans = {path for place, path in oracle.disk.files if place == location} - named
        if orphans:
            yield f"5.6 orphans of {view.header.definition.name}: {sorted(orphans)}"


def _positions(bus: MemoryBus) -> Iterator[str]:
    for name, group in bus.groups.items():
        for partition, log in bus.logs.items():
            if partition.topic in group.topics and group.committed.get(partition, 0) < len(log):
                at = group.committed.get(partition, 0)
                yield f"INV-10 {name} stands at {at} of {len(log)} in {partition.topic}/{partition.number}"
