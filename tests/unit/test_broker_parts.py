"""The broker's parts as values: who may ask, how a query is stopped, how rows are written."""

import datetime as dt
import decimal
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry
from pyarrow import ipc
from pydantic import SecretStr, ValidationError
from structlog.testing import capture_logs

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.core.ports import SystemClock
from floodmark.query.plan import Bounded, Strict
from floodmark.service.access import Access, AccessRefused, Role, guarded, is_loopback, require
from floodmark.service.port import Answer, Request
from floodmark_broker import stopping
from floodmark_broker.base_files import FilesVanished
from floodmark_broker.books import Books
from floodmark_broker.config import BrokerSettings
from floodmark_broker.engine import checked_setting, freshness_of
from floodmark_broker.execution import told
from floodmark_broker.formats import arrow_stream, csv_text, json_document
from floodmark_broker.stopping import Queries, QueryStopped, Ticket
from floodmark_ingester.config import IngesterSettings
from tests.support.eventually import eventually

READER, ADMIN = "reader-0123456789", "admin-0123456789"


# -- access ------------------------------------------------------------------------------------------------------------


def role_of(header: str, access: Access) -> Role:
    return access.role({"authorization": header})


def test_a_token_has_its_role_and_nothing_else_has_one() -> None:
    access = Access.of(read=[SecretStr(READER)], admin=[SecretStr(ADMIN)])
    assert role_of(f"Bearer {READER}", access) is Role.READER
    assert role_of(f"bearer  {ADMIN}", access) is Role.ADMIN
    for wrong in ("", "Bearer", f"Bearer {READER}x", READER, f"Basic {ADMIN}", "Bearer \udcff"):
        with pytest.raises(AccessRefused) as refused:
            role_of(wrong, access)
        assert refused.value.status == 401
    with pytest.raises(AccessRefused) as refused:
        require(Role.READER, Role.ADMIN)
    assert refused.value.status == 403


def test_a_token_that_is_a_readers_and_an_admins_has_the_higher_role() -> None:
    """As while a token is moved from one file to the other."""
    access = Access.of(read=[SecretStr(READER), SecretStr(ADMIN)], admin=[SecretStr(ADMIN)])
    assert role_of(f"Bearer {ADMIN}", access) is Role.ADMIN


def test_tokens_are_not_kept_and_not_shown() -> None:
    access = Access.of(read=[SecretStr(READER)])
    settings = BrokerSettings(broker={"read_tokens": [READER]})  # type: ignore[arg-type]
    assert READER not in repr(access)
    assert READER not in repr(settings)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1:8185", True), ("localhost", True), ("[::1]:80", True), ("127.0.0.1.evil.example", False), ("", False)],
)
def test_without_tokens_only_names_of_this_machine_are_answered(host: str, allowed: bool) -> None:
    if allowed:
        assert Access().role({"host": host}) is Role.ADMIN
    else:
        with pytest.raises(AccessRefused) as refused:
            Access().role({"host": host})
        assert refused.value.status == 403


@pytest.mark.parametrize(
    ("host", "fine"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("10.0.0.1", False)]
)
def test_an_address_that_others_reach_needs_tokens(host: str, fine: bool) -> None:
    assert is_loopback(host) is fine
    http = {"host": host}
    if fine:
        assert BrokerSettings(http=http).is_open  # type: ignore[arg-type]
    else:
        with pytest.raises(ValidationError, match=r"set broker\.admin_tokens"):
            BrokerSettings(http=http)  # type: ignore[arg-type]
    assert not BrokerSettings(http=http, broker={"admin_tokens": [ADMIN]}).is_open  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        BrokerSettings(broker={"admin_tokens": ["short"]})  # type: ignore[arg-type]


def test_an_ingester_that_others_reach_needs_tokens() -> None:
    """It registers and forgets files for whoever it listens to."""
    assert IngesterSettings(http={"host": "127.0.0.1"}).ingester.admin_tokens == ()  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match=r"set ingester\.admin_tokens, or listen on 127\.0\.0\.1"):
        IngesterSettings(http={"host": "0.0.0.0"})  # type: ignore[arg-type]
    assert IngesterSettings(http={"host": "0.0.0.0"}, ingester={"admin_tokens": [ADMIN]})  # type: ignore[arg-type]


def test_a_guarded_page_answers_those_who_may_and_does_nothing_for_others() -> None:
    asked: list[Role] = []

    def page(_: Request, role: Role) -> Answer:
        asked.append(role)
        return Answer.text(200, "done")

    made = guarded(Access.of(read=[SecretStr(READER)], admin=[SecretStr(ADMIN)]), Role.ADMIN, page)
    answers = [
        made(Request("POST", "/", headers={"authorization": f"Bearer {t}", "content-type": "application/json"}))
        for t in ("", READER, ADMIN)
    ]
    assert [answer.status for answer in answers] == [401, 403, 200]
    assert answers[0].headers == {"WWW-Authenticate": "Bearer"}
    assert asked == [Role.ADMIN]


@pytest.mark.parametrize(
    ("method", "body", "kind", "status"),
    [
        ("POST", b"{}", "application/json", 200),
        ("POST", b"{}", "Application/JSON; charset=utf-8", 200),
        ("POST", b"{}", "text/plain", 415),
        ("POST", b"{}", "application/x-www-form-urlencoded", 415),
        ("POST", b"{}", "", 415),
        ("POST", b"", "text/plain", 415),
        ("PUT", b"{}", "text/plain", 415),
        ("DELETE", b"{}", "text/plain", 415),
        ("DELETE", b"", "", 200),
        ("GET", b"", "", 200),
    ],
)
def test_a_body_that_any_page_of_a_browser_could_have_sent_is_not_taken(
    method: str, body: bytes, kind: str, status: int
) -> None:
    """On loopback, where nobody is asked for a token. What is asked for is said."""
    asked: list[Role] = []

    def page(_: Request, role: Role) -> Answer:
        asked.append(role)
        return Answer.text(200, "done")

    headers = {"host": "127.0.0.1", "content-type": kind}
    answer = guarded(Access.of(), Role.ADMIN, page)(Request(method, "/", headers=headers, body=body))
    assert (answer.status, len(asked)) == (status, 1 if status == 200 else 0)
    if status == 415:
        assert json.loads(answer.body)["rule"] == "content-type"
        assert "send JSON with the header Content-Type: application/json" in json.loads(answer.body)["reason"]


# -- stopping ----------------------------------------------------------------------------------------------------------


class Bench:
    """Queries on one slot, one more may wait, and what was asked of Spark."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(1)
        self.cancelled: list[str] = []
        self.release = threading.Event()
        self.queries = Queries(
            self.pool, SystemClock(), concurrency_max=1, waiting_max=1, cancel_jobs=self._cancel
        )  # fmt: skip

    def _cancel(self, query_id: str) -> None:
        self.cancelled.append(query_id)
        self.release.set()

    def ticket(self, query_id: str) -> Ticket:
        return Ticket(query_id, "SELECT", SystemClock().monotonic_ms())

    def slow(self, ticket: Ticket) -> str:
        assert self.release.wait(30)
        ticket.check()
        return "done"

    def run(self, query_id: str, *, within_ms: int = 30_000, gone: bool = False) -> str:
        return self.queries.run(self.ticket(query_id), self.slow, within_ms=within_ms, has_gone=lambda: gone)


def test_a_query_that_is_cancelled_late_or_alone_ends_and_frees_its_place() -> None:
    """Its jobs are cancelled until it has let go."""
    bench = Bench()
    with pytest.raises(QueryStopped) as stopped:
        bench.run("late", within_ms=20)
    assert (stopped.value.rule, set(bench.cancelled)) == ("time-max", {"late"})
    bench.release.clear()
    with pytest.raises(QueryStopped) as stopped:
        bench.run("alone", gone=True)
    assert stopped.value.rule == "client-gone"
    assert not bench.queries.cancel("nobody")
    assert bench.queries.tickets() == []
    assert bench.queries.not_ended() == 0
    assert bench.run("after") == "done"


def test_a_broker_is_ready_while_a_query_that_cannot_be_ended_leaves_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are answered; only when no slot is left is nobody."""
    monkeypatch.setattr(stopping, "LET_GO_WITHIN_MS", 50)
    release = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        queries = Queries(
            pool, SystemClock(), concurrency_max=2, waiting_max=0, cancel_jobs=lambda _: None
        )  # fmt: skip

        def stopped(query_id: str) -> None:
            ticket = Ticket(query_id, "SELECT", SystemClock().monotonic_ms())
            with pytest.raises(QueryStopped):
                queries.run(ticket, lambda _: release.wait(30), within_ms=1, has_gone=lambda: False)

        stopped("one")
        assert (queries.not_ended(), queries.trouble()) == (1, None)
        stopped("two")
        assert queries.trouble() == "all 2 slots are taken by queries that were stopped and have not ended"
        release.set()
        eventually(lambda: queries.trouble() is None, what="a slot free")


def test_so_many_run_so_many_wait_and_the_next_is_told_to_come_again() -> None:
    bench = Bench()
    outcomes: list[str] = []
    askers = [threading.Thread(target=lambda n=n: outcomes.append(bench.run(f"q{n}"))) for n in range(2)]  # type: ignore[misc]
    for asker in askers:
        asker.start()
    while len(bench.queries.tickets()) < 2:
        pass
    with pytest.raises(InvalidInput, match="choose another id"):
        bench.run("q0")
    with pytest.raises(Unavailable, match="try again later"):
        bench.run("q2")
    bench.release.set()
    for asker in askers:
        asker.join()
    assert outcomes == ["done", "done"]
    bench.queries.close()
    with pytest.raises(Unavailable):
        bench.run("q3")


# -- settings and refusals ---------------------------------------------------------------------------------------------


def test_settings_are_checked_before_they_are_kept() -> None:
    assert checked_setting("floodmark.rewrite", "OFF") == ("rewrite", "off")
    assert checked_setting("freshness", "bounded  10s") == ("freshness", "bounded 10s")
    assert (freshness_of("strict"), freshness_of("bounded 2m")) == (Strict(), Bounded(120_000))
    for name, value in (("rewrite", "maybe"), ("freshness", "bounded"), ("freshness", "strict 1s"), ("x", "y")):
        with pytest.raises(InvalidInput) as refused:
            checked_setting(name, value)
        assert refused.value.rule == "setting"


def test_what_spark_complains_of_is_told_by_what_can_be_done() -> None:
    stack = "An error occurred\n: SparkException: Job\n\tat x\nCaused by: y: [{}] Encountered it. SQLSTATE: 1\n\tat z"
    assert isinstance(told(stack.format("FAILED_READ_FILE.NO_HINT")), FilesVanished)
    never = told(stack.format("FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH"))
    assert isinstance(never, InvalidInput), "no other try will read it"
    assert never.rule == "file-unreadable"
    error = told(stack.format("DIVIDE_BY_ZERO"))
    assert isinstance(error, InvalidInput)
    assert (error.rule, "[DIVIDE_BY_ZERO] Encountered it." in str(error), "\tat" in str(error)) == (
        "query-failed", True, False,
    )  # fmt: skip
    large = told("Total size of serialized results is bigger than spark.driver.maxResultSize")
    assert isinstance(large, InvalidInput)
    assert large.rule == "rows-max"


# -- formats -----------------------------------------------------------------------------------------------------------

ROWS = pa.table(
    {
        "n": [2**60, None],
        "x": [float("nan"), 1.5],
        "d": pa.array([decimal.Decimal("1.20"), None], pa.decimal128(10, 2)),
        "t": pa.array([dt.datetime(2014, 1, 5, 10, tzinfo=dt.UTC), None], pa.timestamp("us", tz="UTC")),
        "b": [b"\x00\xff", None],
        "s": ['a "quoted", text', ""],
        "l": [[1.5, None], []],
    }
)


def test_json_says_what_json_has_no_word_for_as_text() -> None:
    document = json.loads(json.dumps(json_document(ROWS), allow_nan=False))
    assert document["rows"] == [
        [2**60, "NaN", "1.20", "2014-01-05T10:00:00+00:00", "AP8=", 'a "quoted", text', [1.5, None]],
        [None, 1.5, None, None, None, "", []],
    ]
    assert document["columns"][2] == {"name": "d", "type": "decimal128(10, 2)"}


def test_csv_tells_an_empty_text_from_nothing() -> None:
    lines = csv_text(ROWS.select(["n", "s"])).decode().splitlines()
    assert lines == ['"n","s"', '"1152921504606846976","a ""quoted"", text"', ',""']


def test_an_arrow_stream_has_its_receipt_with_it() -> None:
    with ipc.open_stream(arrow_stream(ROWS, {"receipt": {"view": "v"}})) as reader:
        assert reader.read_all().select(["n", "s"]).equals(ROWS.select(["n", "s"]))
        assert json.loads(reader.schema.metadata[b"floodmark"]) == {"receipt": {"view": "v"}}


def test_a_statement_that_failed_says_why_and_one_that_breaks_a_rule_is_not_quoted() -> None:
    """Whoever is woken reads the log of the broker first; what people ask is none of its business."""
    books = Books(CollectorRegistry())
    with capture_logs() as logs:
        books.refused("q1", "Select", Unavailable("12 queries run or wait; try again later"))
        books.refused("q2", "Select", InvalidInput("unknown-column", "column 'secret' is unknown"))
        books.refused("q3", "Select", QueryStopped("time-max", "query q3 took longer than 5 ms"))
        books.refused("q4", "Select", ZeroDivisionError("a bug"))
    failed = {"event": "statement_failed", "log_level": "warning", "kind": "Select"}
    refused = {"event": "statement_refused", "log_level": "info", "kind": "Select"}
    assert logs == [
        {**failed, "query_id": "q1", "error": "Unavailable", "reason": "12 queries run or wait; try again later"},
        {**refused, "query_id": "q2", "rule": "unknown-column"},
        {**refused, "query_id": "q3", "rule": "time-max"},
        {**failed, "query_id": "q4", "error": "ZeroDivisionError", "reason": None},
    ]
