"""Every interleaving of a few actors over one store, the real code running in each of them.

An actor is ordinary blocking code. One store call is one atomic step. What an actor does next depends only on the
answers its calls have had, because its clock and its randomness are fixed; so it needs no thread. It is run from the
beginning on the answers it has had, and stops at the first call that has none yet:

    moment  =  an actor and the answers it has had         ->  its next call, or what it returned
    state   =  the nodes, every actor's moment, how many answers may still be lost, what the oracle noted
    step    =  one actor's next call made on the nodes; its answer leads that actor to its next moment

Two schedules that lead to the same state have the same future. So each state is explored once, and the interleavings
that pass through it are counted, not walked: the counts are of complete schedules, each with its own choice of lost
answers. `merging=False` walks every one, to check the counting on small cases.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from floodmark.core.errors import OutcomeUnknown
from floodmark.ledger.store import Committed, Conflicted, Node, Op
from tests.support.memory_store import MemoryStore, OneByOne

Nodes = Mapping[str, Node]
Answer = Any
"""What a store call returned, lists as tuples; LOST when no answer came."""
N = TypeVar("N", bound=Hashable)

LOST = "the answer was lost"


@dataclass(frozen=True, slots=True)
class Actor:
    """Someone who acts on the store. `run` gets what `prepare` made of the store, such as a ledger."""

    name: str
    prepare: Callable[["ReplayedStore"], Any]
    """Runs before everything else, on the nodes as they are at the start: what it reads there is no step."""
    run: Callable[[Any], object]
    may_start: Callable[[Nodes], bool] = lambda _: True
    """Once true it must stay true."""
    answers_get_lost: bool = False


class Oracle(Protocol[N]):
    """Judges a run. Whatever it needs to remember from write to write is its note, which is part of the state."""

    def begin(self, nodes: Nodes) -> N: ...

    def wrote(self, note: N, before: Nodes, after: Nodes) -> N: ...

    def wrong_at_end(self, note: N, nodes: Nodes, results: Mapping[str, object]) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Report:
    interleavings: int
    wrong: int
    """Interleavings that broke a rule."""
    took: int
    """How many were looked at when the first wrong one showed."""
    states: int
    rules: frozenset[str]
    witness: tuple[str, ...]
    """The steps of the first wrong one."""

    def __str__(self) -> str:
        found = f"{self.wrong:,} of {self.interleavings:,} interleavings ({self.states:,} states) end wrong"
        if not self.wrong:
            return found
        return "\n  ".join([f"{found}, the first is number {self.took:,}:", *sorted(self.rules), *self.witness])


@dataclass(frozen=True, slots=True)
class Call:
    method: str
    argument: Any

    def on(self, store: MemoryStore) -> Answer:
        answer = getattr(store, self.method)(self.argument)
        return tuple(answer) if isinstance(answer, list) else answer

    def __str__(self) -> str:
        if self.method != "commit":
            return f"{self.method} {self.argument}"
        return "commit " + ", ".join(f"{type(op).__name__} {op.path}" for op in self.argument)


class _Suspended(BaseException):
    """The answers end here. Not an Exception, so that nothing under test catches it."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self.call = call


class ReplayedStore(OneByOne):
    """Answers an actor's calls from a list, and suspends the actor at the first call beyond it."""

    def __init__(self, start: Nodes, answers: Sequence[Answer]) -> None:
        self._start = MemoryStore()
        self._start.nodes = dict(start)
        self._answers: Iterator[Answer] | None = None
        self._given = answers
        self._suspended: _Suspended | None = None

    def begin(self) -> None:
        """From here on, calls are steps."""
        self._answers = iter(self._given)

    def read(self, path: str) -> Node | None:
        found: Node | None = self._answer(Call("read", path))
        return found

    def read_many(self, paths: Sequence[str], /) -> list[Node | None]:
        # Not a snapshot, so each node is a step of its own: the port promises no more than that.
        return [self.read(path) for path in paths]

    def read_current(self, path: str, /) -> Node | None:
        self.sync()
        return self.read(path)

    def children(self, path: str) -> list[str]:
        return list(self._answer(Call("children", path)))

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        assert self._answers is not None, "whoever prepares only reads"
        answer = self._answer(Call("commit", tuple(ops)))
        if answer is LOST:
            raise OutcomeUnknown(LOST)
        assert isinstance(answer, Committed | Conflicted)
        return answer

    def sync(self) -> None:
        """No step: these nodes have one copy, so a sync sees nothing, changes nothing and commutes with everything."""

    def _answer(self, call: Call) -> Answer:
        if self._answers is None:
            return call.on(self._start)
        for answer in self._answers:
            return answer
        # Whatever an actor would clean up on its way out has not happened: the first call is where it stopped.
        self._suspended = self._suspended or _Suspended(call)
        raise self._suspended


class Moment:
    """One actor after some answers. There is one object for each, so that moments compare by identity."""

    def __init__(self, actor: Actor, start: Nodes, answers: tuple[Answer, ...] = ()) -> None:
        self.actor = actor
        self._start = start
        self._answers = answers
        self._later: dict[Answer, Moment] = {}
        self.call: Call | None = None
        self.result: object = None
        store = ReplayedStore(start, answers)
        prepared = actor.prepare(store)
        store.begin()
        try:
            self.result = actor.run(prepared)
        except _Suspended as suspended:
            self.call = suspended.call

    def after(self, answer: Answer) -> "Moment":
        if answer not in self._later:
            self._later[answer] = Moment(self.actor, self._start, (*self._answers, answer))
        return self._later[answer]


@dataclass(frozen=True, slots=True)
class _State(Generic[N]):
    content: int
    """Number of the store's content."""
    moments: tuple[Moment, ...]
    losses_left: int
    note: N


@dataclass(frozen=True, slots=True)
class _Tally:
    interleavings: int
    wrong: int


@dataclass
class Explorer(Generic[N]):
    """Walks depth first over everything that can happen next, in every state that can come about."""

    start: Nodes
    actors: Sequence[Actor]
    oracle: Oracle[N]
    losses_max: int = 0
    merging: bool = True
    _contents: list[Nodes] = field(default_factory=list)
    _numbers: dict[frozenset[tuple[str, Node]], int] = field(default_factory=dict)
    _made: dict[tuple[int, Moment], list[tuple[str, Answer, int]]] = field(default_factory=dict)
    _known: dict[_State[N], _Tally] = field(default_factory=dict)
    _steps_taken: list[tuple[Moment, str]] = field(default_factory=list)
    _passed: int = 0
    _states: int = 0
    _took: int = 0
    _rules: set[str] = field(default_factory=set)
    _witness: tuple[str, ...] = ()

    def explore(self) -> Report:
        moments = tuple(Moment(actor, self.start) for actor in self.actors)
        first = _State(self._number(self.start), moments, self.losses_max, self.oracle.begin(self.start))
        tally = self._walk(first)
        assert tally.interleavings == self._passed, "every interleaving is counted once"
        return Report(tally.interleavings, tally.wrong, self._took, self._states, frozenset(self._rules), self._witness)

    def _walk(self, state: _State[N]) -> _Tally:
        if self.merging and (known := self._known.get(state)):
            self._passed += known.interleavings
            return known
        self._states += 1
        tallies = []
        for step, later in self._steps(state):
            self._steps_taken.append(step)
            tallies.append(self._walk(later))
            self._steps_taken.pop()
        if tallies:
            tally = _Tally(sum(t.interleavings for t in tallies), sum(t.wrong for t in tallies))
        else:
            tally = self._judge(state)
        if self.merging:
            self._known[state] = tally
        return tally

    def _judge(self, state: _State[N]) -> _Tally:
        waiting = [m.actor.name for m in state.moments if m.call is not None]
        assert not waiting, f"{', '.join(waiting)} may never start"
        self._passed += 1
        results = {m.actor.name: m.result for m in state.moments}
        rule = self.oracle.wrong_at_end(state.note, self._contents[state.content], results)
        if rule is None:
            return _Tally(1, 0)
        self._rules.add(rule)
        if not self._took:
            self._took = self._passed
            self._witness = tuple(f"{m.actor.name}: {m.call}{word}" for m, word in self._steps_taken)
        return _Tally(1, 1)

    def _steps(self, state: _State[N]) -> Iterator[tuple[tuple[Moment, str], _State[N]]]:
        """Everything that can happen next: whose call and how it went, and the state it leads to."""
        nodes = self._contents[state.content]
        for place, moment in enumerate(state.moments):
            if moment.call is None or not moment.actor.may_start(nodes):
                continue
            for word, answer, content in self._outcomes(state.content, moment):
                losses_left = state.losses_left - (answer is LOST)
                if losses_left < 0:
                    continue
                moments = (*state.moments[:place], moment.after(answer), *state.moments[place + 1 :])
                note = state.note
                if content != state.content:
                    note = self.oracle.wrote(note, nodes, self._contents[content])
                later = _State(content, moments, losses_left, note)
                yield (moment, word), later

    def _outcomes(self, content: int, moment: Moment) -> list[tuple[str, Answer, int]]:
        """How one call on this content may go: a word for it, the answer the actor gets, and the content after it."""
        known = self._made.get((content, moment))
        if known is None:
            known = self._made[content, moment] = list(self._make(content, moment))
        return known

    def _make(self, content: int, moment: Moment) -> Iterator[tuple[str, Answer, int]]:
        assert moment.call is not None
        store = MemoryStore()
        store.nodes = dict(self._contents[content])
        answer = moment.call.on(store)
        if moment.call.method != "commit":
            yield "", answer, content
            return
        after = self._number(store.nodes)
        landed = isinstance(answer, Committed)
        yield (" -> landed" if landed else " -> conflict"), answer, after
        if moment.actor.answers_get_lost:
            yield " -> did not land, answer lost", LOST, content
            if landed:
                yield " -> landed, answer lost", LOST, after

    def _number(self, nodes: Nodes) -> int:
        """The number of this content of the store; equal contents have one number."""
        content = frozenset(nodes.items())
        if content not in self._numbers:
            self._numbers[content] = len(self._contents)
            self._contents.append(dict(nodes))
        return self._numbers[content]
