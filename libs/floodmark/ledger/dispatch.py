"""Dispatch records in ZooKeeper, sharded as the buckets are. The decisions are in core/dispatch.py."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.core import dispatch
from floodmark.core.dispatch import Policy, Progress, Record, Refusal
from floodmark.core.errors import FloodmarkError
from floodmark.core.tables import ViewHeader
from floodmark.ledger import codec, paths
from floodmark.ledger.engine import Budgets, Done, Engine, Operation, Write
from floodmark.ledger.store import Check, Create, Node, Op, Set

Records = Mapping[int, Record]
Change = Callable[[Records, int], Records]
"""The records of a shard after a change, given the time."""


@dataclass(frozen=True, slots=True)
class Offer:
    start_ms: int
    task_id: str
    lane: str
    trouble: str = ""
    """Why it cannot be sent: then it fails in the write that records it, so that no offer is left without a message."""


@dataclass(frozen=True, slots=True)
class Failure:
    task_id: str
    error: str
    frozen: bool = False


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of claims, by bucket start. In neither: there is no record of this task."""

    taken: set[int]
    ended: set[int]
    """Failed or quarantined already."""


@dataclass(slots=True)
class Offered:
    """What became of the offers to one view."""

    answers: dict[int, Record | Refusal] = field(default_factory=dict)
    """By bucket start."""
    troubles: list[FloodmarkError] = field(default_factory=list)
    """Of the shards whose buckets got no answer."""


@dataclass(slots=True)
class _Offering:
    """The offers to the buckets of one shard, and their answers as of the last try."""

    at: int
    """Which of the views."""
    view: ViewHeader
    number: int
    offers: Sequence[Offer]
    alive: Collection[str]
    policy: Policy
    offered_by: str
    _answers: dict[int, Record | Refusal] = field(default_factory=dict)

    def change(self, records: Records, now_ms: int) -> Records:
        for o in self.offers:
            record = records.get(o.start_ms)
            if record is not None and record == self._answers.get(o.start_ms):
                continue  # our own offer of an earlier try, whose answer was lost
            answer = dispatch.offer(
                record,
                task_id=o.task_id,
                lane=o.lane,
                now_ms=now_ms,
                alive=self.alive,
                policy=self.policy,
                offered_by=self.offered_by,
            )
            if o.trouble and isinstance(answer, Record):
                answer = dispatch.refuse(answer, error=o.trouble, now_ms=now_ms, policy=self.policy)
            self._answers[o.start_ms] = answer
        return {**records, **{s: r for s, r in self._answers.items() if isinstance(r, Record)}}

    def answered(self, *, is_dropped: bool) -> dict[int, Record | Refusal]:
        return {o.start_ms: Refusal.DROPPED for o in self.offers} if is_dropped else self._answers


class Dispatch:
    def __init__(self, engine: Engine, budgets: Budgets) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets

    def records(self, view: str) -> dict[int, Record]:
        """Every record of a view, by bucket start."""
        numbers = sorted(int(name) for name in self._store.children(paths.dispatch(view)))
        nodes = self._store.read_many([paths.dispatch_shard(view, n) for n in numbers])
        found: dict[int, Record] = {}
        for number, node in zip(numbers, nodes, strict=True):
            if node is not None:
                found |= decode_records(node.data, what=paths.dispatch_shard(view, number))
        return found

    def offer(
        self,
        view: ViewHeader,
        offers: Collection[Offer],
        *,
        alive: Collection[str],
        policy: Policy,
        offered_by: str = "",
    ) -> dict[int, Record | Refusal]:
        """`offer_all` for one view, by bucket start. What goes wrong is raised."""
        (offered,) = self.offer_all([(view, offers)], alive=alive, policy=policy, offered_by=offered_by)
        for trouble in offered.troubles:
            raise trouble
        return offered.answers

    def offer_all(
        self,
        offers: Sequence[tuple[ViewHeader, Collection[Offer]]],
        *,
        alive: Collection[str],
        policy: Policy,
        offered_by: str = "",
    ) -> list[Offered]:
        """Record that these tasks are given out: those whose record is now OFFERED are to be sent, no other.
        Those that cannot be sent are recorded as failed.

        One write for each shard of each view, all under way together, and what becomes of one concerns no other.
        """
        offerings = [
            _Offering(at, view, number, [o for o in wanted if o.start_ms in starts], alive, policy, offered_by)
            for at, (view, wanted) in enumerate(offers)
            for number, starts in view.definition.grid.by_shard(o.start_ms for o in wanted).items()
        ]
        operations = [self._operation(o.view, o.number, o.change) for o in offerings]
        outcomes = self._engine.run_all(self._budgets.critical, operations)
        offered = [Offered() for _ in offers]
        for offering, outcome in zip(offerings, outcomes, strict=True):
            if isinstance(outcome, FloodmarkError):
                offered[offering.at].troubles.append(outcome)
            else:
                offered[offering.at].answers |= offering.answered(is_dropped=outcome.result is None)
        return offered

    def claim(self, view: ViewHeader, start_ms: int, *, task_id: str, worker: str) -> bool:
        """A worker takes a task. False: the record is gone or another task's; the entry says what the task is worth."""
        return self.claim_all(view, {start_ms: task_id}, worker=worker).taken == {start_ms}

    def claim_all(self, view: ViewHeader, task_ids: Mapping[int, str], *, worker: str) -> Claimed:
        """A worker takes these tasks, by bucket start. One write for each shard."""
        ended: dict[int, bool] = {}

        def claimed(start_ms: int, record: Record | None, now_ms: int) -> Record | None:
            task_id = task_ids[start_ms]
            ended[start_ms] = dispatch.has_ended(record, task_id=task_id)
            return dispatch.claim(record, task_id=task_id, worker=worker, now_ms=now_ms)

        taken = self._change_each(view, task_ids, claimed)
        return Claimed(taken, {start_ms for start_ms, over in ended.items() if over})

    def give_back_all(self, view: ViewHeader, task_ids: Mapping[int, str], *, worker: str) -> set[int]:
        """A worker lets go of tasks, by bucket start. Returns those that were its own. One write for each shard."""
        return self._change_each(
            view,
            task_ids,
            lambda start_ms, record, now_ms: dispatch.give_back(
                record, task_id=task_ids[start_ms], worker=worker, now_ms=now_ms
            ),
        )

    def fail(
        self, view: ViewHeader, start_ms: int, *, task_id: str, error: str, policy: Policy, frozen: bool = False
    ) -> bool:
        """A try failed: back off, or quarantine the bucket with its error."""
        return self.fail_all(view, {start_ms: Failure(task_id, error, frozen)}, policy=policy) == {start_ms}

    def fail_all(self, view: ViewHeader, failures: Mapping[int, Failure], *, policy: Policy) -> set[int]:
        """These tries failed, by bucket start. Returns those whose record says so. One write for each shard."""

        def failed(start_ms: int, record: Record | None, now_ms: int) -> Record | None:
            f = failures[start_ms]
            return dispatch.fail(
                record, task_id=f.task_id, error=f.error, now_ms=now_ms, policy=policy, frozen=f.frozen
            )

        return self._change_each(view, failures, failed)

    def finish(self, view: ViewHeader, start_ms: int, *, task_id: str) -> bool:
        """The task is done with, whoever did it."""
        return self._remove(view, start_ms, lambda record: record.task_id == task_id)

    def finish_all(self, view: ViewHeader, task_ids: Mapping[int, str]) -> None:
        """These tasks are done with, by bucket start. One write for each shard."""
        for number, starts in view.definition.grid.by_shard(task_ids).items():

            def change(records: Records, _: int, starts: Collection[int] = starts) -> Records:
                done = {s for s in starts if s in records and records[s].task_id == task_ids[s]}
                return {s: r for s, r in records.items() if s not in done}

            self._change(view, number, change)

    def release(self, view: ViewHeader, start_ms: int) -> bool:
        """Let a quarantined bucket be tried again, from the beginning."""
        return self._remove(view, start_ms, lambda record: record.progress is Progress.QUARANTINED)

    # -- the one way to change records -----------------------------------------------------------------------------

    def _change_each(
        self,
        view: ViewHeader,
        starts: Collection[int],
        decide: Callable[[int, Record | None, int], Record | None],
    ) -> set[int]:
        """Change the records of these buckets. Returns those for which there was one to change."""
        decided: dict[int, Record] = {}
        for number, own in view.definition.grid.by_shard(starts).items():

            def change(records: Records, now_ms: int, own: Collection[int] = own) -> Records:
                for start_ms in own:
                    decided.pop(start_ms, None)
                    if (record := decide(start_ms, records.get(start_ms), now_ms)) is not None:
                        decided[start_ms] = record
                return {**records, **{s: decided[s] for s in own if s in decided}}

            if self._change(view, number, change) is None:
                for start_ms in own:
                    decided.pop(start_ms, None)
        return set(decided)

    def _remove(self, view: ViewHeader, start_ms: int, wanted: Callable[[Record], bool]) -> bool:
        def change(records: Records, _: int) -> Records:
            record = records.get(start_ms)
            if record is None or not wanted(record):
                return records
            return {s: r for s, r in records.items() if s != start_ms}

        return bool(self._change(view, view.definition.grid.shard_of(start_ms), change))

    def _change(self, view: ViewHeader, number: int, change: Change) -> bool | None:
        """Change the records of one shard; False when nothing was to change, None when this incarnation is gone."""
        return self._engine.run_one(self._budgets.critical, self._operation(view, number, change)).result

    def _operation(self, view: ViewHeader, number: int, change: Change) -> Operation[bool | None]:
        name = view.definition.name
        path, fence = paths.dispatch_shard(name, number), paths.fence(name, view.incarnation)

        def decide(nodes: Sequence[Node | None]) -> Done[bool | None] | Write[bool | None]:
            node, standing = nodes
            if standing is None:
                return Done(None)
            records = {} if node is None else decode_records(node.data, what=path)
            changed = change(records, self._engine.clock.now_ms())
            if changed == records:
                return Done(result=False)
            data = _encode(changed)
            write: Op = Create(path, data) if node is None else Set(path, data, node.version)
            return Write([Check(fence, 0), write], result=True)

        return Operation(f"dispatch record of {name}", [path, fence], decide)


def _encode(records: Records) -> bytes:
    return codec.pack({"records": [_row(start_ms, record) for start_ms, record in sorted(records.items())]})


def _row(start_ms: int, r: Record) -> list[object]:
    """Columns are only ever added, at the end: a shorter row of an earlier version leaves the rest at its default."""
    held = [r.worker, r.not_before_ms, r.error, r.frozen, r.deaths]
    return [start_ms, r.task_id, str(r.progress), r.lane, r.tries, r.changed_at_ms, *held]


def decode_records(data: bytes, *, what: str) -> dict[int, Record]:
    raw = codec.unpack(data, what=what)
    return codec.decoding(what, lambda: {r[0]: Record(r[1], Progress(r[2]), *r[3:11]) for r in raw["records"]})
