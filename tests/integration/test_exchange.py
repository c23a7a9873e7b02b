"""Export and import of a view's state, and the drops and creations that may cross them."""

import json
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

from floodmark.core.buckets import DataFile, Entry, State
from floodmark.core.errors import InvalidInput
from floodmark.core.tables import ViewStatus
from floodmark.core.transitions import Mode, Reason, Rejected
from floodmark.ledger import exchange, paths
from floodmark.ledger.exchange import Export
from floodmark.ledger.store import Create, Delete, Store
from tests.support.ledger_kit import HOUR_MS, VIEW, Kit, cause, segment
from tests.support.memory_store import Faulty, Watched


class AllThere:
    """Files as they were exported, at a location of their own."""

    def overlaps(self, _location: str) -> bool:
        return False

    def missing(self, _files: Sequence[DataFile]) -> Collection[str]:
        return ()


@pytest.fixture
def varied(kit: Kit) -> Kit:
    """A view with built, empty, marked, never built and out-of-order buckets, over two shards."""
    kit.ledger.views.drop(VIEW.name)
    kit.ledger.views.create(VIEW, coverage_start_ms=250 * HOUR_MS)
    kit.put(segment("a", 250, 253), segment("b", 256, 260), segment("z", 300, 301))
    for hour in (250, 251, 252, 253, 254, 255, 256, 258):
        kit.append(hour, f"a{hour}")
    kit.ledger.views.extend_coverage(VIEW.name, 248 * HOUR_MS, cause("older"))
    kit.mark(251)
    return kit


def exported(kit: Kit) -> Export:
    """Through text, as a file would have it."""
    text = exchange.export_view(kit.ledger, VIEW.name, now_ms=7).model_dump_json()
    return exchange.parse(text, what="view.json")


def entries(kit: Kit) -> dict[int, Entry]:
    return kit.ledger.views.state(VIEW.name).entries


def test_export_drop_import_and_revert_bring_every_entry_back(varied: Kit) -> None:
    """The source is unchanged, so each built bucket is VALID again without a rebuild."""
    before, header = entries(varied), varied.header
    export = exported(varied)
    varied.ledger.views.drop(VIEW.name)
    imported = exchange.import_view(varied.ledger, export, now_ms=9, files=AllThere())
    assert imported == varied.header
    assert imported.incarnation != header.incarnation
    assert (imported.coverage_start_ms, imported.watermark_ms, imported.status) == (
        header.coverage_start_ms, header.watermark_ms, ViewStatus.ACTIVE,
    )  # fmt: skip
    assert set(varied.states().values()) == {"STALE"}
    assert {e.cause.kind for e in entries(varied).values() if e.cause} == {"import"}
    for start_ms, entry in before.items():
        reverted = varied.ledger.views.revert_valid(VIEW.name, imported.incarnation, start_ms).result
        assert reverted is entry.ever_valid
    after = entries(varied)
    assert after.keys() == before.keys()
    for start_ms, entry in before.items():
        if entry.ever_valid:
            assert _built(after[start_ms]) == _built(entry)
            assert after[start_ms].slice_versions == entry.slice_versions
    assert varied.source_differs() == []


def _built(entry: Entry) -> tuple[object, ...]:
    return (entry.fingerprint, entry.files, entry.attempt_id, entry.definition_hash, entry.refreshed_at_ms)


def test_what_changed_since_the_export_stays_stale(varied: Kit) -> None:
    """A revert looks at the live source in its own write (INV-3); a rebuild then goes the usual way."""
    export = exported(varied)
    varied.ledger.views.drop(VIEW.name)
    varied.put(segment("a", 250, 253, crc=2))
    incarnation = exchange.import_view(varied.ledger, export, now_ms=9, files=AllThere()).incarnation
    assert varied.ledger.views.revert_valid(VIEW.name, incarnation, 250 * HOUR_MS).result is False
    assert varied.ledger.views.revert_valid(VIEW.name, incarnation, 256 * HOUR_MS).result is True
    assert not isinstance(varied.refresh(250), Rejected)
    assert varied.source_differs() == []


def test_an_attempt_from_before_the_import_can_never_commit(varied: Kit) -> None:
    """An import is a new incarnation (INV-13)."""
    old = varied.header.incarnation
    build = varied.build(251, Mode.OVERWRITE, "old")
    export = exported(varied)
    varied.ledger.views.drop(VIEW.name)
    exchange.import_view(varied.ledger, export, now_ms=9, files=AllThere())
    decision = varied.commit_one(build, incarnation=old)
    assert isinstance(decision, Rejected)
    assert decision.reason is Reason.DROPPED


def test_a_paused_view_comes_back_paused(varied: Kit) -> None:
    """What an operator stopped does not start by being moved."""
    varied.ledger.views.set_status(VIEW.name, ViewStatus.PAUSED)
    export = exported(varied)
    varied.ledger.views.drop(VIEW.name)
    assert exchange.import_view(varied.ledger, export, now_ms=9, files=AllThere()).status is ViewStatus.PAUSED


def test_a_view_that_exists_is_not_imported_over(varied: Kit) -> None:
    """Drop it first: an import never mixes two states."""
    before = entries(varied)
    with pytest.raises(InvalidInput, match=r"view-exists: view 'rides_hourly' exists"):
        exchange.import_view(varied.ledger, exported(varied), now_ms=9, files=AllThere())
    assert entries(varied) == before


def _change(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def apply(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = to

    return apply


@pytest.mark.parametrize(
    ("change", "rule", "said"),
    [
        (_change("version", to=3), "import-format", "version 3"),
        (_change("format", to="other"), "import-format", "format"),
        (_change("view", "table", to="no_such"), "unknown-table", "no_such"),
        (_change("view", "name", to="a/b"), "name", "a/b"),
        (_change("view", "bucket_ms", to=0), "bucket-width", "0 ms"),
        (_change("view", to=None), "import-format", "view"),
        (_change("buckets", 0, "start_ms", to=5), "bucket-start", "5"),
        (_change("buckets", 0, "count", to=0), "import-format", "buckets.0.count"),
        (_change("buckets", 0, "count", to=4), "import-buckets", "stands twice"),
        (_change("buckets", 1, "state", to="X"), "import-format", "buckets.1.state"),
        (_change("buckets", 1, "fingerprint", to=None), "import-format", "a VALID bucket needs a fingerprint"),
        (_change("buckets", 1, "fingerprint", "count", to=0), "import-format", "empty is always"),
        (_change("buckets", 1, "files", to=[{"name": "x", "rows": -1, "bytes": 0}]), "import-format", "rows"),
        (_change("coverage_start_ms", to=240 * HOUR_MS), "import-coverage", f"no bucket {240 * HOUR_MS}"),
        (_change("coverage_start_ms", to=None), "import-coverage", "without the other"),
        (_change("watermark_ms", to=7), "import-coverage", "whole buckets"),
    ],
)
def test_a_bad_export_is_refused_by_name_and_nothing_is_written(
    varied: Kit, change: Callable[[dict[str, Any]], None], rule: str, said: str
) -> None:
    """The field, or the rule it breaks, is in the message."""
    document = json.loads(exchange.export_view(varied.ledger, VIEW.name, now_ms=7).model_dump_json())
    varied.ledger.views.drop(VIEW.name)
    change(document)

    def bring_in() -> None:
        altered = exchange.parse(json.dumps(document), what="view.json")
        exchange.import_view(varied.ledger, altered, now_ms=9, files=AllThere())

    with pytest.raises(InvalidInput) as refusal:
        bring_in()
    assert refusal.value.rule == rule
    assert said in str(refusal.value)
    assert varied.ledger.views.names() == []


def test_a_newer_format_is_refused_even_when_its_fields_are_unknown() -> None:
    """Its version is the message, not the first field that happens to be missing."""
    with pytest.raises(InvalidInput, match=r"view\.json has version 3 of the export format"):
        exchange.parse('{"format": "floodmark-view-state", "version": 3}', what="view.json")
    with pytest.raises(InvalidInput, match="the file: Invalid JSON"):
        exchange.parse("nonsense", what="view.json")


def test_an_export_with_unknown_fields_is_read(varied: Kit) -> None:
    """Fields may be added to the format."""
    document = json.loads(exchange.export_view(varied.ledger, VIEW.name, now_ms=7).model_dump_json())
    document["later"] = document["buckets"][0]["later"] = {"x": 1}
    assert exchange.parse(json.dumps(document), what="view.json") == exported(varied)


def test_nothing_of_an_import_is_seen_before_it_is_whole(store: Store) -> None:
    """At every write of it, others can neither mark, commit nor export; after a crash the name is free."""
    watched = Watched(store)
    kit, peer = _exportable(watched), Kit(store, seed=2)
    export = exported(kit)
    kit.ledger.views.drop(VIEW.name)
    seen: list[object] = []

    def look(_: int) -> None:
        if VIEW.name in peer.ledger.views.names():
            seen.append(peer.header.status)
            assert peer.ledger.views.mark_stale(VIEW.name, None, cause()).invalidated == ()
            with pytest.raises(InvalidInput, match="being dropped"):
                exchange.export_view(peer.ledger, VIEW.name, now_ms=1)

    watched.before_commit = look
    exchange.import_view(kit.ledger, export, now_ms=9, files=AllThere())
    assert seen
    assert set(seen) == {ViewStatus.DROPPING}
    assert peer.header.status is ViewStatus.ACTIVE


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_import_survives_a_lost_answer_at_every_write(store: Store, at: int) -> None:
    """Nodes, two shards, the opening: each landed write is found again."""
    faulty = Faulty(store)
    kit = _exportable(faulty)
    before, export = entries(kit), exported(kit)
    kit.ledger.views.drop(VIEW.name)
    faulty.script = iter(["ok"] * (at - 1) + ["lost"])
    exchange.import_view(kit.ledger, export, now_ms=9, files=AllThere())
    assert next(faulty.script, None) is None, "the import has fewer writes than this"
    assert entries(kit).keys() == before.keys()
    assert kit.header.status is ViewStatus.ACTIVE


@pytest.mark.parametrize("rival_does", ["drop", "create", "import"])
def test_an_import_that_is_overtaken_stops_and_leaves_the_rival_alone(store: Store, rival_does: str) -> None:
    """A rival clears the half-made view away; what stands afterwards is the rival's, whole."""
    watched = Watched(store)
    kit, rival = _exportable(watched), Kit(store, seed=2)
    export = exported(kit)
    kit.ledger.views.drop(VIEW.name)

    def overtake(_: int) -> None:
        if any(isinstance(op, Create) and op.path == paths.shard(VIEW.name, 1) for op in watched.commits[-1]):
            watched.before_commit = lambda _: None
            if rival_does == "drop":
                rival.ledger.views.drop(VIEW.name)
            elif rival_does == "create":
                rival.ledger.views.create(VIEW, coverage_start_ms=0)
            else:
                exchange.import_view(rival.ledger, export, now_ms=10, files=AllThere())

    watched.before_commit = overtake
    with pytest.raises(InvalidInput, match="created or dropped by another during its import"):
        exchange.import_view(kit.ledger, export, now_ms=9, files=AllThere())
    if rival_does == "drop":
        assert rival.ledger.views.names() == []
    else:
        assert rival.states() == ({} if rival_does == "create" else {255: "STALE", 256: "STALE"})
        assert rival.append(2).__class__.__name__ == "Changed"


def _exportable(store: Store) -> Kit:
    """Two buckets in two shards."""
    kit = Kit(store)
    kit.set_up(coverage_hour=255)
    kit.put(segment("a", 0, 300))
    kit.append(255)
    kit.append(256)
    return kit


def test_a_drop_never_removes_what_was_created_after_it(store: Store) -> None:
    """A rival finishes the drop and creates the name anew, in the middle of our removal (INV-13)."""
    watched = Watched(store)
    kit, rival = Kit(watched), Kit(store, seed=2)
    kit.set_up()
    kit.put(segment("a", 0, 2))
    kit.append(0)

    def overtake(_: int) -> None:
        if any(isinstance(op, Delete) and "/shards/" in op.path for op in watched.commits[-1]):
            watched.before_commit = lambda _: None
            rival.ledger.views.drop(VIEW.name)
            rival.ledger.views.create(VIEW, coverage_start_ms=0)
            rival.append(0)

    watched.before_commit = overtake
    kit.ledger.views.drop(VIEW.name)
    assert rival.states() == {0: "VALID"}
    rival.append(1)
    assert rival.states() == {0: "VALID", 1: "VALID"}


def test_the_watermark_does_not_pass_the_end_of_data_that_was_taken_away(kit: Kit) -> None:
    """An entry ahead of the frontier outlives its source; closing the gap moves the watermark to the data's end."""
    kit.put(segment("a", 0, 2))
    kit.append(1)
    kit.put(segment("a", 0, 1, crc=2))
    kit.mark(1)
    kit.append(0)
    assert (kit.watermark_hour, kit.state(1)) == (1, State.STALE)
    kit.put(segment("b", 2, 3))
    kit.append(2)
    assert kit.watermark_hour == 3


def test_the_watermark_moves_below_1970_too(kit: Kit) -> None:
    """The end of the data may be the instant 0, which is a time like any other."""
    kit.ledger.views.drop(VIEW.name)
    kit.ledger.views.create(VIEW, coverage_start_ms=-2 * HOUR_MS)
    kit.put(segment("old", -2, 0))
    kit.append(-2)
    kit.append(-1)
    assert kit.watermark_hour == 0
