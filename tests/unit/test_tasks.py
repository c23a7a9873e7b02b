"""What a task is worth, decided on values: each row of the table, and that the commit speaks the same language."""

from dataclasses import replace

import pytest

from floodmark.core import tasks
from floodmark.core.buckets import Cause, Entry, State, synthesized
from floodmark.core.fingerprint import EMPTY, Fingerprint
from floodmark.core.tables import ViewDefinition, ViewHeader
from floodmark.core.tasks import TaskFacts, Worth
from floodmark.core.transitions import AlreadyTrue, Changed, Mode, Reason, Rejected, Source

HOUR_MS = 3_600_000
OLD, NEW = Fingerprint(1, 11), Fingerprint(2, 22)
CAUSE = Cause("event", "e1", 1)
VALID = Entry(State.VALID, ever_valid=True, fingerprint=OLD)
STALE = VALID.stale(CAUSE)
HEADER = ViewHeader(ViewDefinition("v", "t", "SELECT 1", "h1", HOUR_MS, "/v"), "i1", 0)
TASK = TaskFacts(0, Mode.OVERWRITE, "i1", "h1", Source(NEW, {"0": 5, "wide": 1}))
LIVE = Source(NEW, {"0": 5, "wide": 1})


@pytest.mark.parametrize(
    ("mode", "entry", "live", "worth"),
    [
        (Mode.APPEND, None, LIVE, Worth.RUN),
        (Mode.APPEND, VALID, LIVE, Worth.COVERED),
        (Mode.APPEND, STALE, LIVE, Worth.SUPERSEDED),
        (Mode.APPEND, synthesized(CAUSE), LIVE, Worth.SUPERSEDED),
        (Mode.OVERWRITE, STALE, LIVE, Worth.RUN),
        (Mode.OVERWRITE, VALID, LIVE, Worth.COVERED),
        (Mode.OVERWRITE, None, LIVE, Worth.AHEAD),
        (Mode.DELETE, STALE, LIVE, Worth.RUN),
        (Mode.OVERWRITE, STALE, Source(OLD, {"0": 6, "wide": 1}), Worth.SUPERSEDED),
        (Mode.OVERWRITE, STALE, Source(NEW, {"0": 6, "wide": 1}), Worth.RUN),
        (Mode.OVERWRITE, STALE, Source(OLD, {"0": 4, "wide": 1}), Worth.AHEAD),
        (Mode.OVERWRITE, VALID, Source(OLD, {"0": 4, "wide": 1}), Worth.COVERED),
        (Mode.APPEND, None, Source(NEW, {"wide": 1}), Worth.AHEAD),
    ],
)
def test_a_task_is_run_only_when_its_bucket_waits_for_exactly_its_input(
    mode: Mode, entry: Entry | None, live: Source, worth: Worth
) -> None:
    """INV-10: what the ledger is past is dropped, whatever the registry says by then."""
    assert tasks.of_bucket(replace(TASK, mode=mode), entry, live).worth is worth


@pytest.mark.parametrize(
    ("header", "worth"),
    [
        (HEADER, Worth.RUN),
        (None, Worth.COVERED),
        (replace(HEADER, incarnation="i2"), Worth.COVERED),
        (replace(HEADER, definition=replace(HEADER.definition, hash="h2")), Worth.COVERED),
    ],
)
def test_a_task_of_a_view_that_is_no_more_is_dropped(header: ViewHeader | None, worth: Worth) -> None:
    """INV-13."""
    assert tasks.of_view(TASK, header).worth is worth


@pytest.mark.parametrize(
    ("decision", "worth"),
    [
        (Changed(VALID), Worth.RUN),
        (AlreadyTrue(), Worth.RUN),
        (Rejected(Reason.NOT_VACANT, VALID), Worth.COVERED),
        (Rejected(Reason.NOT_STALE, VALID), Worth.COVERED),
        (Rejected(Reason.NOT_VACANT, STALE), Worth.SUPERSEDED),
        (Rejected(Reason.SUPERSEDED, STALE), Worth.SUPERSEDED),
        (Rejected(Reason.SOURCE_NOT_EMPTY, STALE), Worth.SUPERSEDED),
        (Rejected(Reason.BEYOND_SOURCE), Worth.SUPERSEDED),
        (Rejected(Reason.DROPPED), Worth.COVERED),
        (Rejected(Reason.HOLD_LOST), Worth.AGAIN),
    ],
)
def test_a_commit_is_judged_in_the_same_words(decision: tasks.Decision, worth: Worth) -> None:
    verdict = tasks.of_commit(decision)
    assert verdict.worth is worth
    assert verdict.why or worth is Worth.RUN


def test_an_empty_source_is_an_input_like_any_other() -> None:
    facts = replace(TASK, mode=Mode.DELETE, source=Source(EMPTY, {"0": 5, "wide": 1}))
    assert tasks.of_bucket(facts, STALE, Source(EMPTY, {"0": 5, "wide": 1})) is tasks.RUN
    assert tasks.of_bucket(facts, STALE, Source(NEW, {"0": 6, "wide": 1})).worth is Worth.SUPERSEDED
