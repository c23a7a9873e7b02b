"""What a batch of commands changes, decided on values: names, paths, extremes, and what is kept of it all."""

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import CommandsRefused, Contents, Plan, Put, Remove, plan, rewritten_header
from floodmark.core.segments import Segment, Slice
from floodmark.core.tables import TableHeader
from tests.support.ledger_kit import HOUR_MS, TABLE, segment


def at(path: str, name: str, hour: int = 0) -> Segment:
    return Segment(name, 1, hour * HOUR_MS, (hour + 1) * HOUR_MS - 1, path, 10, 100)


def planned(contents: Contents, *commands: Put | Remove) -> Plan:
    return plan(TABLE.grid, contents, commands, version=1)


def after(*batches: list[Put | Remove]) -> Contents:
    contents = Contents()
    for batch in batches:
        contents = planned(contents, *batch).applied_to(contents)
    return contents


# -- one path, one name --------------------------------------------------------------------------------------------


def test_a_second_name_for_a_path_is_refused_and_both_are_told() -> None:
    """Under two names its rows would count twice."""
    with pytest.raises(InvalidInput) as refusal:
        planned(after([Put(at("p", "first"))]), Put(at("p", "second")))
    assert refusal.value.rule == "path-taken"
    assert str(refusal.value) == "path-taken: p is registered as 'first', it cannot be 'second' as well"


def test_every_refused_command_of_a_batch_is_told_and_no_other() -> None:
    """So that a caller can leave out exactly those."""
    contents = after([Put(at("p", "first"))])
    with pytest.raises(CommandsRefused) as refusal:
        planned(contents, Put(at("q", "fine")), Put(at("p", "second")), Put(at("q", "late")), Remove("unknown"))
    assert {name: error.rule for name, error in refusal.value.refused.items()} == {
        "second": "path-taken",
        "late": "path-taken",
    }


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param([Remove("first"), Put(at("p", "second"))], id="its name went"),
        pytest.param([Put(at("q", "first")), Put(at("p", "second"))], id="its name moved to another file"),
    ],
)
def test_a_path_that_became_free_in_the_batch_may_be_taken(batch: list[Put | Remove]) -> None:
    contents = after([Put(at("p", "first"))], batch)
    assert contents.name_at["p"] == "second"


def test_commands_are_taken_in_their_order() -> None:
    """What becomes free only later is not free yet."""
    with pytest.raises(CommandsRefused):
        planned(after([Put(at("p", "first"))]), Put(at("p", "second")), Remove("first"))


def test_the_same_name_keeps_its_path_whatever_else_changes() -> None:
    contents = after([Put(at("p", "first"))])
    (change,) = planned(contents, Put(at("p", "first", hour=30))).changes
    assert change.action == "replaced"
    assert planned(contents, Put(at("p", "first"))).changes == ()


def test_a_path_that_got_two_names_before_this_was_refused_is_still_let_go_of() -> None:
    """Either may be replaced or removed; the path is free when both are gone."""
    contents = Contents().with_read({"0": Slice.of([at("p", "x"), at("p", "y")])})
    assert len(planned(contents, Put(at("p", "x", hour=1)), Put(at("p", "y", hour=1))).changes) == 2
    gone = planned(contents, Remove("x"), Remove("y")).applied_to(contents)
    assert dict(gone.name_at) == {}


# -- what is kept --------------------------------------------------------------------------------------------------


def test_contents_that_follow_a_plan_are_those_that_reading_its_slices_gives() -> None:
    """Added, moved to another slice and path, shortened, widened, deleted."""
    before = after([Put(at(f"p{n}", f"s{n}", hour=n * 10)) for n in range(8)], [Put(segment("long", 0, 24 * 20))])
    change = planned(
        before,
        Put(at("new", "new", hour=5)),
        Put(at("elsewhere", "s1", hour=70)),
        Put(segment("s2", 0, 24 * 20)),
        Put(segment("long", 3, 4)),
        Remove("s3"),
    )
    kept, read = change.applied_to(before), before.with_read(change.slices)
    assert dict(kept.slices) == dict(read.slices)
    assert dict(kept.by_name) == dict(read.by_name)
    assert dict(kept.name_at) == dict(read.name_at) == {s.path: s.name for s in read.by_name.values()}


@pytest.mark.parametrize(
    ("batch", "first_hour", "last_hour"),
    [
        pytest.param([Remove("b")], 0, 30, id="neither held an extreme"),
        pytest.param([Remove("a")], 10, 30, id="the first went"),
        pytest.param([Remove("c")], 0, 20, id="the last went"),
        pytest.param([Remove("a"), Remove("c")], 10, 20, id="both went"),
        pytest.param([Remove("a"), Remove("b"), Remove("c")], None, None, id="all went"),
        pytest.param([Put(segment("c", 29, 30, crc=9))], 0, 30, id="the last was replaced where it was"),
        pytest.param([Put(segment("c", 20, 25))], 0, 25, id="the last was shortened"),
        pytest.param([Put(segment("c", 20, 40))], 0, 40, id="the last grew"),
        pytest.param([Remove("c"), Put(segment("d", -5, 26))], -5, 26, id="one went and another came"),
        pytest.param([Put(segment("c", 0, 1, start_ms=None, last_ms=None))], 0, 20, id="its times were lost"),
    ],
)
def test_the_header_has_the_count_and_the_extremes_of_what_is_registered(
    batch: list[Put | Remove], first_hour: int | None, last_hour: int | None
) -> None:
    header, contents = TableHeader(TABLE), Contents()
    for commands in ([Put(segment("a", 0, 1)), Put(segment("b", 10, 20)), Put(segment("c", 29, 30))], batch):
        change = planned(contents, *commands)
        contents = change.applied_to(contents)
        header = rewritten_header(header, change, contents)
    assert header.segment_count == len(contents.by_name)
    assert header.min_start_ms == (None if first_hour is None else first_hour * HOUR_MS)
    assert header.max_last_ms == (None if last_hour is None else last_hour * HOUR_MS - 1)


def test_a_header_that_cannot_remember_every_change_forgets_the_oldest() -> None:
    """INV-12: a cache that is told of no change since would never read the slices that the newest one wrote."""
    spans, contents, header = 900, Contents(), TableHeader(TABLE)
    headers = []
    for n in range(8):
        batch = [Put(segment(f"s{n}-{day}", 24 * day + n, 24 * day + n + 1)) for day in range(n, n + spans)]
        change = planned(contents, *batch)
        contents = change.applied_to(contents)
        header = rewritten_header(header, change, contents)
        headers.append((header, frozenset(change.slices)))
    for n, (seen, _) in enumerate(headers):
        since = frozenset(key for _, changed in headers[n + 1 :] for key in changed)
        assert header.touched_since(seen.version) in (since, None)
    assert header.touched_since(headers[-2][0].version) == headers[-1][1], "the newest change is remembered"
    assert header.touched_since(headers[0][0].version) is None, "nothing was forgotten: the limit is not reached here"
