"""A batch from beginning to end on a ledger in memory: every ending, and bugs put back to see them caught."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from floodmark.core import tasks as worths
from floodmark.core.buckets import DataFile
from floodmark.core.dispatch import Policy, Progress
from floodmark.core.errors import EngineLost, InvalidInput, Unavailable
from floodmark.core.tasks import Verdict, Worth
from floodmark.core.transitions import Mode
from floodmark.ledger.dispatch import Offer
from floodmark.ledger.store import Delete
from floodmark_worker import builder
from tests.support.ledger_kit import HOUR_MS, Kit, segment
from tests.support.memory_store import MemoryStore
from tests.support.worker_kit import Bench


@pytest.fixture
def bench() -> Bench:
    kit = Kit(MemoryStore())
    kit.set_up()
    return Bench(kit)


def appends(bench: Bench, *hours: int) -> dict[int, object]:
    tasks = [bench.task(hour, Mode.APPEND) for hour in hours]
    bench.offer(*tasks)
    return bench.run(*(bench.deliver(task) for task in tasks))


def records(bench: Bench) -> dict[int, Progress]:
    found = bench.kit.ledger.dispatch.records("rides_hourly")
    return {start // HOUR_MS: record.progress for start, record in found.items()}


def test_buckets_of_one_batch_are_built_together_and_committed(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 3))
    assert appends(bench, 0, 1, 2) == dict.fromkeys(range(3), "finished")
    assert bench.view.built == [[0, 1, 2]]
    assert bench.kit.states() == {0: "VALID", 1: "VALID", 2: "VALID"}
    assert bench.outcomes() == dict.fromkeys(range(3), "committed")
    assert bench.kit.watermark_hour == 3
    assert records(bench) == {}
    assert bench.steps == ["claimed", "reading", "files written", "committed", "acknowledged"]
    assert bench.kit.ledger.holds.all("rides") == [], "the hold is released"


def test_a_bucket_without_a_source_is_committed_without_a_computation(bench: Bench) -> None:
    bench.kit.put(segment("far", 5, 6))
    appends(bench, 0)
    entry = bench.kit.entry(0)
    assert entry is not None
    assert entry.fingerprint is not None
    assert entry.fingerprint.is_empty
    assert bench.view.built == []


# -- covered -----------------------------------------------------------------------------------------------------------


def covered_tasks_are_dropped(bench: Bench) -> None:
    """Tasks whose buckets a peer has built: acknowledged, counted, nothing computed, nothing written."""
    bench.kit.put(segment("a", 0, 10))
    tasks = [bench.task(hour, Mode.APPEND) for hour in (5, 7)]
    for hour in range(10):
        bench.kit.append(hour, attempt=f"peer{hour}")
    before = bench.kit.ledger.views.state("rides_hourly")
    assert bench.run(*(bench.deliver(t) for t in tasks)) == {5: "finished", 7: "finished"}
    assert bench.outcomes() == {5: "covered", 7: "covered"}
    assert bench.view.built == []
    assert bench.kit.ledger.views.state("rides_hourly") == before


def test_a_task_below_the_committed_state_is_dropped(bench: Bench) -> None:
    """INV-10."""
    covered_tasks_are_dropped(bench)


def test_keeping_tasks_that_are_done_would_be_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """K1 put back: a task that is not next in line is kept for later, and pins its offset for ever."""
    monkeypatch.setattr(worths, "of_bucket", lambda *_: Verdict(Worth.AHEAD, "not next in line"))
    with pytest.raises(AssertionError):
        covered_tasks_are_dropped(bench)


def test_the_loser_of_a_race_adopts_what_it_sees(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 1))
    bench.view.during_build = lambda: bench.kit.append(0, attempt="peer") and None
    assert appends(bench, 0) == {0: "finished"}
    assert bench.outcomes() == {0: "covered"}
    entry = bench.kit.entry(0)
    assert entry is not None
    assert entry.attempt_id == "peer"


def test_tasks_of_a_dropped_view_are_covered(bench: Bench) -> None:
    """INV-13."""
    bench.kit.put(segment("a", 0, 1))
    task = bench.task(0, Mode.APPEND)
    bench.kit.ledger.views.drop("rides_hourly")
    assert bench.run(bench.deliver(task)) == {0: "finished"}
    assert bench.outcomes() == {0: "covered"}


def test_tasks_of_a_view_whose_table_is_dropped_as_well_are_looked_at_again_and_covered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the worker's look at the view and its hold on the table. Not a dead letter (INV-10)."""
    bench.kit.put(segment("a", 0, 1))
    task = bench.task(0, Mode.APPEND)
    holds = bench.kit.ledger.holds
    take = holds.take

    def dropped_first(*args: Any, **named: Any) -> Any:
        bench.kit.ledger.views.drop("rides_hourly")
        bench.kit.ledger.dropping.drop("rides")
        return take(*args, **named)

    monkeypatch.setattr(holds, "take", dropped_first)
    (outcome,) = bench.run(bench.deliver(task)).values()
    assert isinstance(outcome, Unavailable), "it comes again"
    assert bench.run(bench.deliver(task, tries=2)) == {0: "finished"}
    assert bench.outcomes() == {0: "covered"}


def test_tasks_of_a_view_that_is_dropped_while_the_hold_is_taken_are_covered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a dead letter: nobody needs them any more (INV-10, INV-13)."""
    bench.kit.put(segment("a", 0, 1))
    task = bench.task(0, Mode.APPEND)
    holds = bench.kit.ledger.holds
    take = holds.take

    def take_and_lose_the_view(*args: Any, **named: Any) -> Any:
        hold = take(*args, **named)
        bench.kit.ledger.views.drop("rides_hourly")
        return hold

    monkeypatch.setattr(holds, "take", take_and_lose_the_view)
    assert bench.run(bench.deliver(task)) == {0: "finished"}
    assert bench.outcomes() == {0: "covered"}


# -- superseded --------------------------------------------------------------------------------------------------------


def test_a_task_whose_input_changed_before_it_began_is_superseded(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 1))
    task = bench.task(0, Mode.APPEND)
    bench.offer(task)
    bench.kit.put(segment("b", 0, 1))
    assert bench.run(bench.deliver(task)) == {0: "finished"}
    assert bench.outcomes() == {0: "superseded"}
    assert records(bench) == {}, "the scheduler may give out the next one at once"
    assert bench.view.built == []


def a_late_segment_is_never_lost(bench: Bench) -> None:
    """One that is registered while a bucket is computed, for each mode."""
    bench.kit.put(segment("a", 0, 1))
    bench.view.during_build = lambda: bench.kit.put(segment("late", 0, 1))
    appends(bench, 0)
    assert bench.kit.source_differs() == []
    assert bench.outcomes() == {0: "superseded"}


def test_a_segment_registered_during_the_build_supersedes_it(bench: Bench) -> None:
    """INV-3, L9."""
    a_late_segment_is_never_lost(bench)


def test_a_commit_without_the_source_check_would_be_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """L9 put back: the write checks nothing of the registry."""
    from floodmark.ledger.store import Check

    real = bench.kit.store.commit
    unchecked: Callable[..., object] = lambda ops: real(  # noqa: E731
        [op for op in ops if not (isinstance(op, Check) and "/slices/" in op.path)]
    )
    monkeypatch.setattr(bench.kit.store, "commit", unchecked)
    with pytest.raises(AssertionError):
        a_late_segment_is_never_lost(bench)


def test_a_delete_whose_source_is_filled_meanwhile_changes_nothing(bench: Bench) -> None:
    """L8: the source was empty when the task was made and when it began, and is not when it is committed."""
    bench.kit.put(segment("a", 0, 1), segment("b", 1, 2))
    appends(bench, 0, 1)
    bench.kit.remove("a")
    bench.kit.mark(0)
    task = bench.task(0, Mode.DELETE)
    bench.offer(task)
    claim_all = bench.kit.ledger.dispatch.claim_all

    def claim_and_refill(*args: object, **kwargs: object) -> object:
        bench.kit.put(segment("again", 0, 1))
        return claim_all(*args, **kwargs)  # type: ignore[arg-type]

    bench.kit.ledger.dispatch.claim_all = claim_and_refill  # type: ignore[method-assign,assignment]
    bench.run(bench.deliver(task))
    assert bench.outcomes()[0] == "superseded"
    assert bench.kit.states()[0] == "STALE"


# -- frozen ------------------------------------------------------------------------------------------------------------


def a_missing_input_freezes_its_bucket_alone(bench: Bench) -> None:
    bench.kit.put(*(segment(f"s{hour}", hour, hour + 1) for hour in range(4)))
    bench.view.faults = {"s1": "the file is missing"}
    appends(bench, 0, 1, 2, 3)
    assert bench.kit.states() == {0: "VALID", 2: "VALID", 3: "VALID"}
    assert bench.kit.watermark_hour == 1
    record = bench.kit.ledger.dispatch.records("rides_hourly")[HOUR_MS]
    assert record.frozen
    assert "s1" in record.error
    assert "deleted while it was registered" in record.error
    assert bench.outcomes() == {0: "committed", 1: "frozen", 2: "committed", 3: "committed"}


def test_a_missing_input_freezes_its_bucket_and_no_other(bench: Bench) -> None:
    """INV-9, INV-14."""
    a_missing_input_freezes_its_bucket_alone(bench)


def test_a_freeze_that_later_steps_ignore_would_be_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """K3 put back: the fault is seen and told, and the bucket is built from what is left all the same."""
    monkeypatch.setattr(builder._Run, "_freeze", lambda *_: None)
    with pytest.raises(AssertionError):
        a_missing_input_freezes_its_bucket_alone(bench)


def test_an_input_that_changes_while_it_is_read_freezes_its_bucket(bench: Bench) -> None:
    bench.kit.put(segment("s0", 0, 1), segment("s1", 1, 2))
    bench.view.faults_after = {"s0": "it changed while it was read"}
    appends(bench, 0, 1)
    assert bench.kit.states() == {1: "VALID"}
    assert bench.outcomes() == {0: "frozen", 1: "committed"}


def test_what_was_read_beside_a_file_that_changed_is_built_again_without_it(bench: Bench) -> None:
    """INV-9: the files of a batch are read together, and what the file is now may have rows in any of its buckets."""
    bench.kit.put(segment("a", 0, 1), segment("b", 1, 2))
    bench.view.faults_after = {"a": "has other bytes now"}
    appends(bench, 0, 1)
    assert bench.outcomes() == {0: "frozen", 1: "committed"}
    entry = bench.kit.entry(1)
    assert entry is not None
    assert [bench.view.read[file.name] for file in entry.files] == [["b"]]
    assert bench.view.built == [[0, 1], [1]]


def test_a_job_that_failed_over_a_file_that_changed_freezes_its_buckets_and_no_other(bench: Bench) -> None:
    """INV-9, INV-14: it says which file, whatever Spark says, and does not use up the tries of a bucket that fails. The
    others are built together: halving the batch would find out again what is known."""
    bench.kit.put(*(segment(f"s{hour}", hour, hour + 1) for hour in range(8)))
    bench.view.faults_after = {"s5": "the file is missing"}
    bench.view.fails_with = RuntimeError("An error occurred while calling o1768.getResult.")
    appends(bench, *range(8))
    assert bench.outcomes() == dict.fromkeys(range(8), "committed") | {5: "frozen"}
    assert bench.view.built == [[*range(8)], [0, 1, 2, 3, 4, 6, 7]]
    record = bench.kit.ledger.dispatch.records("rides_hourly")[5 * HOUR_MS]
    assert (record.frozen, "s5.parquet" in record.error) == (True, True)


def test_a_job_that_failed_over_a_file_that_was_replaced_has_not_failed(bench: Bench) -> None:
    """The registry has the new one: the task is superseded, and the next one has its own tries."""
    bench.kit.put(segment("s0", 0, 1))
    bench.view.during_build = lambda: bench.kit.put(segment("s0", 0, 1, crc=2))
    bench.view.faults_after = {"s0": "it changed while it was read"}
    bench.view.fails_with = RuntimeError("An error occurred while calling o1768.getResult.")
    appends(bench, 0)
    assert bench.outcomes() == {0: "superseded"}
    assert records(bench) == {}


def test_a_fault_in_what_the_registry_no_longer_names_is_no_fault(bench: Bench) -> None:
    bench.kit.put(segment("s0", 0, 1))
    bench.view.during_build = lambda: bench.kit.put(segment("s0", 0, 1, crc=2))
    bench.view.faults_after = {"s0": "it changed while it was read"}
    appends(bench, 0)
    assert bench.outcomes() == {0: "superseded"}


# -- failed ------------------------------------------------------------------------------------------------------------


def test_a_bucket_that_cannot_be_computed_fails_alone(bench: Bench) -> None:
    """INV-14: the batch is split until the one to blame stands alone."""
    bench.kit.put(*(segment(f"s{hour}", hour, hour + 1) for hour in range(8)))
    bench.view.poison = {5}
    assert appends(bench, *range(8)) == dict.fromkeys(range(8), "finished")
    assert {hour for hour, outcome in bench.outcomes().items() if outcome == "committed"} == set(range(8)) - {5}
    record = bench.kit.ledger.dispatch.records("rides_hourly")[5 * HOUR_MS]
    assert record.progress is Progress.FAILED
    assert "cannot compute" in record.error


@pytest.mark.scenario("K12")
def test_a_bucket_whose_commit_is_too_large_fails_alone_and_is_quarantined_in_the_end(bench: Bench) -> None:
    """INV-10: before, the batch was refused and the scheduler offered all of it again, for ever."""
    bench.kit.put(segment("a", 0, 3))
    names = (hashlib.sha256(b"%d" % n).hexdigest() for n in range(20_000))
    bench.view.also_written = {1: tuple(DataFile(name, 1, 1) for name in names)}
    assert appends(bench, 0, 1, 2) == dict.fromkeys(range(3), "finished")
    assert bench.outcomes() == {0: "committed", 1: "failed", 2: "committed"}
    assert records(bench) == {1: Progress.FAILED}
    bench.kit.clock.sleep_ms(60_000)
    appends(bench, 1)
    assert records(bench) == {1: Progress.QUARANTINED}
    (record,) = bench.kit.ledger.dispatch.records("rides_hourly").values()
    assert "/floodmark/views/rides_hourly/shards/0 would have" in record.error


def test_a_copy_of_a_message_does_not_make_a_bucket_fail_twice(bench: Bench) -> None:
    """Copies come when offers wait for long. Were each of them run, a bucket that always fails could fill the day."""
    bench.kit.put(segment("a", 0, 1))
    bench.view.poison = {0}
    task = bench.task(0, Mode.APPEND)
    bench.offer(task)
    assert bench.run(bench.deliver(task)) == {0: "finished"}
    failed = bench.kit.ledger.dispatch.records("rides_hourly")
    assert bench.run(bench.deliver(task)) == {0: "finished"}
    assert bench.view.built == [[0]], "the copy was run"
    assert bench.kit.ledger.dispatch.records("rides_hourly") == failed
    assert bench.outcomes() == {0: "covered"}


def test_work_that_is_cut_off_by_a_stop_is_given_back_and_not_counted_as_failed(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 1))
    bench.view.poison = {0}
    bench.stopping = True
    assert isinstance(appends(bench, 0)[0], Unavailable)
    bench.tools.claims.give_back()
    assert records(bench) == {0: Progress.OFFERED}


# -- given back --------------------------------------------------------------------------------------------------------


def test_a_task_ahead_of_the_ledger_is_given_back_and_in_the_end_refused(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 1))
    delivery = bench.deliver(bench.task(0, Mode.OVERWRITE))
    for _ in range(builder.AHEAD_TRIES_MAX - 1):
        assert isinstance(bench.run(delivery)[0], Unavailable)
    refusal = bench.run(delivery)[0]
    assert isinstance(refusal, InvalidInput)
    assert refusal.rule == "task-ahead"


def test_tries_that_failed_for_other_reasons_do_not_make_a_task_ahead(bench: Bench) -> None:
    """A store that was away for a while is no reason to refuse work (INV-10)."""
    bench.kit.put(segment("a", 0, 1))
    delivery = bench.deliver(bench.task(0, Mode.OVERWRITE), tries=10 * builder.AHEAD_TRIES_MAX)
    assert isinstance(bench.run(delivery)[0], Unavailable)


def test_nothing_is_committed_once_the_hold_is_gone(bench: Bench) -> None:
    """INV-11: whoever removed the hold may be deleting the files of this attempt."""
    bench.kit.put(segment("a", 0, 1))

    def expire() -> None:
        bench.kit.clock.ms += 10 * 60_000
        assert bench.kit.ledger.holds.remove_expired("rides") == 1

    bench.view.during_build = expire
    assert isinstance(appends(bench, 0)[0], Unavailable)
    assert bench.kit.states() == {}
    bench.tools.claims.give_back()
    assert records(bench) == {0: Progress.OFFERED}
    bench.view.during_build = lambda: None
    assert bench.run(bench.deliver(bench.task(0, Mode.APPEND))) == {0: "finished"}
    assert bench.outcomes() == {0: "committed"}


def test_a_task_that_loses_its_hold_every_time_fails_and_says_so(bench: Bench) -> None:
    """INV-10: no task is retried for ever. It backs off and is quarantined like any other that fails, never refused."""
    bench.kit.put(segment("a", 0, 1))
    bench.view.during_build = lambda: [bench.kit.store.commit([Delete(path)]) for path in holds(bench)] and None
    task = bench.task(0, Mode.APPEND)
    bench.offer(task)
    delivery = bench.deliver(task)
    for _ in range(builder.HOLD_TRIES_MAX - 1):
        assert isinstance(bench.run(delivery)[0], Unavailable)
        assert records(bench) == {0: Progress.CLAIMED}
    assert bench.run(delivery) == {0: "finished"}
    record = bench.kit.ledger.dispatch.records("rides_hourly")[0]
    assert record.progress is Progress.FAILED
    assert "hold ran out" in record.error
    assert bench.outcomes() == {0: "failed"}


def holds(bench: Bench) -> list[str]:
    return [path for path in bench.kit.store.nodes if "/holds/" in path]  # type: ignore[attr-defined]


def test_a_claim_does_not_outlive_its_work_while_its_worker_lives(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message may be lost with its topic, and the scheduler believes the claim of a worker that lives."""
    bench.kit.put(segment("a", 0, 2))

    def give_up() -> None:
        raise Unavailable("the lake is away")

    bench.view.during_build = give_up
    appends(bench, 0, 1)
    assert records(bench) == {0: Progress.CLAIMED, 1: Progress.CLAIMED}
    with monkeypatch.context() as away:
        away.setattr(bench.kit.ledger.dispatch, "give_back_all", unavailable)
        with pytest.raises(Unavailable):
            bench.tools.claims.give_back()
    bench.tools.claims.give_back()
    assert records(bench) == {0: Progress.OFFERED, 1: Progress.OFFERED}


def test_a_claim_that_is_taken_again_is_not_given_back(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 1))
    header, task = bench.kit.header, bench.task(0, Mode.APPEND)
    bench.offer(task)
    bench.tools.claims.let_go(header, {0: task.task_id})
    bench.tools.claims.take(header, {0: task.task_id})
    bench.tools.claims.give_back()
    assert records(bench) == {0: Progress.CLAIMED}


def unavailable(*_: object, **__: object) -> None:
    raise Unavailable("the store is away")


def test_damaged_data_of_a_view_ends_in_a_dead_letter_and_not_in_a_crash(bench: Bench) -> None:
    bench.kit.put(segment("a", 0, 1))
    task = bench.task(0, Mode.APPEND)
    node = bench.kit.store.nodes["/floodmark/views/rides_hourly"]  # type: ignore[attr-defined]
    bench.kit.store.nodes["/floodmark/views/rides_hourly"] = type(node)(b"garbled", node.version)  # type: ignore[attr-defined]
    assert isinstance(bench.run(bench.deliver(task))[0], InvalidInput)


def test_a_batch_that_would_read_too_much_is_built_in_parts(bench: Bench) -> None:
    bench.kit.put(*(segment(f"s{hour}", hour, hour + 1) for hour in range(4)))
    object.__setattr__(bench.tools, "batch_bytes_max", 200)
    appends(bench, 0, 1, 2, 3)
    assert bench.view.built == [[0, 1], [2, 3]]
    assert bench.kit.watermark_hour == 4


# -- Spark is gone -----------------------------------------------------------------------------------------------------


@pytest.mark.scenario("K11")
def test_tasks_whose_spark_died_come_again_and_have_not_failed(bench: Bench) -> None:
    """No try is counted, nothing is told, and the claims end with the process: to the scheduler its worker has died."""
    bench.kit.put(segment("a", 0, 2))
    tasks = [bench.task(hour, Mode.APPEND) for hour in (0, 1)]
    bench.offer(*tasks)

    def die() -> None:
        raise EngineLost("its JVM ended with exit code -9")

    bench.view.during_build = die
    outcomes = bench.run(*(bench.deliver(task) for task in tasks))
    assert {type(outcome) for outcome in outcomes.values()} == {EngineLost}
    assert bench.view.built == [[0, 1]], "a batch is not taken apart to find out whose fault it was"
    assert bench.sent == []
    bench.tools.claims.give_back()
    dispatch, header = bench.kit.ledger.dispatch, bench.kit.header
    found = dispatch.records("rides_hourly").values()
    assert {(r.progress, r.worker, r.tries, r.error) for r in found} == {(Progress.CLAIMED, "w1", 1, "")}
    offers = [Offer(t.bucket_start_ms, t.task_id, t.lane) for t in tasks]
    dispatch.offer(header, offers, alive={"s1"}, policy=Policy(), offered_by="s1")
    found = dispatch.records("rides_hourly").values()
    assert {(r.progress, r.tries, r.deaths) for r in found} == {(Progress.OFFERED, 1, 1)}
