"""Queries while tables and views change under them: right rows, or base, and never an error about files."""

import os
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import floodmark
from floodmark.client import QueryFailed
from floodmark.core.buckets import Cause, State
from floodmark.core.dispatch import Policy
from floodmark.core.errors import Unavailable
from floodmark.core.intervals import Interval
from floodmark.core.registry import Put
from floodmark.ledger.dispatch import Failure, Offer
from tests.support.broker import BrokerUnderTest, Rides, comparable, registered_segment
from tests.support.eventually import eventually
from tests.support.ledger_kit import HOUR_MS

pytestmark = pytest.mark.stack
HOURS = 8
BY_CITY = "SELECT city, sum(cents) AS c, count(*) AS n FROM {t} GROUP BY city"
SMALL = (
    "SELECT date_trunc('HOUR', event_time) AS hour, city, count(*) AS n, sum(cents) AS cents FROM {table} GROUP BY 1, 2"
)


def built(broker: BrokerUnderTest, *, scan: bool = True) -> tuple[Rides, str]:
    """Eight hours of rides and a view of them, all of it built."""
    rides = Rides(broker, scan=scan)
    for hour in range(HOURS):
        path = rides.write(f"h{hour}", hour, hour + 1)
        if not scan:
            register(rides, path)
    if not scan:
        register(rides, rides.location / "first.parquet")
    else:
        rides.await_registered()
    view = rides.view(select=SMALL)
    rides.await_built(view, up_to_hour=HOURS)
    return rides, view


def register(rides: Rides, path: Path) -> None:
    """Into the registry, and no event to anybody."""
    rides.broker.system.ledger.registry.apply(rides.name, [Put(registered_segment(rides, path))])


@pytest.mark.scenario("Q5")
def test_buckets_that_are_stale_vacant_or_quarantined_are_read_from_base(broker: BrokerUnderTest) -> None:
    """The view is paused, so that they stay what they are; the receipt shows each of them, with its reason."""
    rides, view = built(broker)
    ledger = broker.system.ledger
    rides.ask(f"PAUSE MATERIALIZED VIEW {view}")
    rides.write("vacant", HOURS, HOURS + 1)
    rides.await_registered()
    for hour in (2, 5):
        cause = Cause("event", f"e{hour}", 1, segments=(f"h{hour}.parquet",))
        ledger.views.mark_stale(view, [Interval(hour * HOUR_MS, (hour + 1) * HOUR_MS)], cause)
    header = ledger.views.header(view)
    policy = Policy(tries_max=1, frozen_tries_max=1, backoff_first_ms=1, backoff_cap_ms=1)
    ledger.dispatch.offer(header, [Offer(5 * HOUR_MS, "task", "repair")], alive=[], policy=policy)
    ledger.dispatch.fail_all(header, {5 * HOUR_MS: Failure("task", "it burst")}, policy=policy)
    answer = rides.check(BY_CITY)
    assert answer.receipt is not None
    assert answer.receipt["view"] == view
    told = [(r["start"], r["why"], r.get("segments")) for r in answer.receipt["from_base"]["ranges"]]
    assert told == [
        ("1970-01-01T02:00Z", "stale", ["h2.parquet"]),
        ("1970-01-01T05:00Z", "quarantined", ["h5.parquet"]),
        ("1970-01-01T08:00Z", "vacant", None),
    ]
    why = rides.ask(f"WHY STALE {view} '1970-01-01T02:30Z'").rows()
    assert [(row[0], row[1], row[3], row[4]) for row in why] == [("1970-01-01T02:00Z", "STALE", "h2.parquet", "e2")]


@pytest.mark.scenario("Q6")
def test_a_segment_registered_just_before_a_strict_query_is_in_it(broker: BrokerUnderTest) -> None:
    """The test registers by itself and tells nobody; it takes the outbox a while to find that out, and most queries
    come before any mark."""
    rides, view = built(broker, scan=False)
    unmarked = 0
    for n in range(8):
        register(rides, rides.write(f"late{n}", 3, 4))
        is_valid = broker.system.ledger.views.state(view).entries[3 * HOUR_MS].state is State.VALID
        answer = rides.check(BY_CITY)
        assert answer.receipt is not None
        whys = [(r["start"], r["why"]) for r in answer.receipt["from_base"]["ranges"]]
        unmarked += is_valid and whys == [("1970-01-01T03:00Z", "changed since")]
    assert unmarked > 0


@pytest.mark.scenario("Q9")
def test_a_query_is_right_while_its_view_is_rebuilt_redefined_and_dropped(broker: BrokerUnderTest) -> None:
    """The table does not change, so every answer is the same one, whatever it was read from."""
    rides, view = built(broker)
    wanted = rides.wanted(BY_CITY)
    stop = threading.Event()
    troubles: list[str] = []
    answered = [0]

    def ask() -> None:
        connection = floodmark.connect(broker.url)
        while not stop.is_set():
            try:
                found = comparable(connection.sql(BY_CITY.format(t=rides.name)).rows())
            except QueryFailed as error:
                troubles.append(str(error))
                return
            if found != wanted:
                troubles.append(f"{found[:2]} instead of {wanted[:2]}")
            answered[0] += 1

    askers = [threading.Thread(target=ask) for _ in range(2)]
    for asker in askers:
        asker.start()
    try:
        for turn in range(2):
            rides.ask(f"REFRESH MATERIALIZED VIEW {view}")
            rides.await_built(view, up_to_hour=HOURS)
            extra = (
                f"SELECT city, count(*) AS n, sum(cents) AS cents, max(rider) AS r{turn} FROM {rides.name} GROUP BY 1"
            )
            rides.ask(f"CREATE OR REPLACE MATERIALIZED VIEW {view} TBLPROPERTIES ('bucket' = '2h') AS {extra}")
            rides.await_built(view, up_to_hour=HOURS)
        rides.ask(f"DROP MATERIALIZED VIEW {view}")
        before = answered[0]
        eventually(lambda: answered[0] > before + 2 or bool(troubles), within_s=60, what="answers after the drop")
    finally:
        stop.set()
        for asker in askers:
            asker.join()
    assert troubles == []


@pytest.mark.scenario("Q9")
@pytest.mark.parametrize(
    "harm",
    [
        Path.unlink,
        lambda p: p.write_bytes(b"PAR1 what is this PAR1"),
        lambda p: p.write_bytes(b""),
        lambda p: pq.write_table(pq.read_table(p).slice(1), p),
    ],
    ids=["deleted", "damaged", "emptied", "with a row less"],
)
def test_a_file_of_a_view_that_is_gone_leads_to_base_and_not_to_an_error(
    broker: BrokerUnderTest, harm: Callable[[Path], object]
) -> None:
    """Nobody should delete it; if it happens all the same, the table has every row."""
    rides, view = built(broker)
    state = broker.system.ledger.views.state(view)
    victim = Path(state.header.definition.location) / state.entries[3 * HOUR_MS].files[0].name
    harm(victim)
    answer = rides.ask(BY_CITY)
    assert comparable(answer.rows()) == rides.wanted(BY_CITY)
    assert answer.receipt is not None
    assert answer.receipt["view"] is None
    assert answer.receipt["plans"] > 1


def test_a_base_file_that_is_gone_is_an_error_and_never_fewer_rows(broker: BrokerUnderTest) -> None:
    """INV-12: the registered rows cannot be told, so none are."""
    rides = Rides(broker, scan=False)
    register(rides, rides.location / "first.parquet")
    gone = rides.write("second", 1, 2)
    register(rides, gone)
    rides.check(BY_CITY)
    gone.unlink()
    with pytest.raises(QueryFailed) as failed:
        rides.ask(BY_CITY)
    assert (failed.value.status, failed.value.rule) == (503, "unavailable")


def test_a_base_file_that_was_written_over_is_an_error_and_never_other_rows(broker: BrokerUnderTest) -> None:
    """INV-12, with as many bytes as before: size and rows tell nothing, and nobody has registered it."""
    rides = Rides(broker, scan=False)
    path = rides.location / "first.parquet"
    rows = pq.read_table(path)
    plain: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(rows, path, **plain)
    register(rides, path)
    rides.check(BY_CITY)
    size = path.stat().st_size
    at = rows.schema.get_field_index("cents")
    pq.write_table(rows.set_column(at, rows.schema.field(at), pc.add(rows["cents"], 1)), path, **plain)
    assert path.stat().st_size == size
    with pytest.raises(QueryFailed, match="CRC") as failed:
        rides.ask(BY_CITY)
    assert (failed.value.status, failed.value.rule) == (503, "unavailable")


def test_a_base_file_that_was_only_touched_is_read_once_more_and_then_as_ever(broker: BrokerUnderTest) -> None:
    """As one that came back from a backup: the content is what was registered, and that is looked up once."""
    rides = Rides(broker, scan=False)
    path = rides.location / "first.parquet"
    register(rides, path)
    os.utime(path, (1, 1))
    plans = []
    for _ in range(2):
        answer = rides.ask(BY_CITY)
        assert comparable(answer.rows()) == rides.wanted(BY_CITY)
        assert answer.receipt is not None
        plans.append(answer.receipt["plans"])
    assert plans == [2, 1]


def test_a_refresh_that_was_asked_for_builds_what_has_not_changed(broker: BrokerUnderTest) -> None:
    """A person who asks has a reason, such as a lost file; WHY STALE says that somebody asked."""
    rides, view = built(broker)
    ledger = broker.system.ledger
    before = {s: e.attempt_id for s, e in ledger.views.state(view).entries.items()}
    rides.ask(f"PAUSE MATERIALIZED VIEW {view}")
    told = rides.ask(f"REFRESH MATERIALIZED VIEW {view} FROM '1970-01-01T02:00Z' TO '1970-01-01T04:00Z'").rows()
    assert told == [(f"2 buckets of view {view} marked STALE, to be built again",)]
    assert [row[2] for row in rides.ask(f"WHY STALE {view}").rows()] == ["asked by user"] * 2
    rides.ask(f"RESUME MATERIALIZED VIEW {view}")
    rides.await_built(view, up_to_hour=HOURS)
    after = {s: e.attempt_id for s, e in ledger.views.state(view).entries.items()}
    assert {s // HOUR_MS for s in after if after[s] != before[s]} == {2, 3}


def test_a_query_is_cancelled_by_its_id_by_its_time_and_by_its_client(broker: BrokerUnderTest) -> None:
    """Each time its Spark jobs end, and its place is free for the next."""
    rides = Rides(broker)
    for n in range(100):
        rides.write(f"f{n}", 0, 1, rows=20)
    rides.await_registered()
    slow = f"SELECT sum(length(sha2(repeat(coalesce(city, 'x'), 400000), 512))) AS n FROM {rides.name}"
    query_id = uuid.uuid4().hex
    outcome: list[Exception] = []

    def ask() -> None:
        try:
            broker.sql(slow, query_id=query_id)
        except QueryFailed as error:
            outcome.append(error)

    asker = threading.Thread(target=ask)
    asker.start()
    eventually(lambda: query_id in running(broker), within_s=30, what="the query running")
    broker.connection.cancel(query_id)
    asker.join(30)
    assert [getattr(e, "rule", "") for e in outcome] == ["cancelled"]
    with pytest.raises(QueryFailed) as failed:
        broker.sql(slow, time_max_ms=1_500)
    assert (failed.value.status, failed.value.rule) == (408, "time-max")
    impatient = floodmark.connect(broker.url, timeout_s=1)
    with pytest.raises(Unavailable):
        impatient.sql(slow)
    eventually(lambda: not running(broker), within_s=30, what="no query left")
    ended = "floodmark_queries_not_ended 0.0"
    eventually(lambda: ended in broker.process.ask("/metrics")[1], within_s=30, what="every job ended")
    rides.check(BY_CITY)


def running(broker: BrokerUnderTest) -> set[str]:
    return {query["query_id"] for query in broker.connection.get("/v1/queries") if query["running"]}
