"""A store in memory with ZooKeeper's semantics that matter, and wrappers that make any store misbehave on purpose.

It passes the same contract suite as the real one: tests/integration/test_store_contract.py.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from floodmark.core.errors import OutcomeUnknown, Unavailable
from floodmark.ledger import paths
from floodmark.ledger.store import Answer, Check, Committed, Conflicted, Create, Delete, Node, Op, Set, Store


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


class Committing(Protocol):
    def commit(self, ops: Sequence[Op], /) -> Committed | Conflicted: ...


def answer_to(store: Committing, ops: Sequence[Op]) -> Answer:
    try:
        return store.commit(ops)
    except (Unavailable, OutcomeUnknown) as error:
        return error


class OneByOne:
    """Makes writes that may be under way together one after the other, in their order: one way they may go."""

    def commit_many(self: "Committing", writes: Sequence[Sequence[Op]]) -> list[Answer]:
        return [answer_to(self, ops) for ops in writes]


REQUEST_BYTES_MAX = 1_048_575
"""What ZooKeeper takes (`jute.maxbuffer`)."""


def request_bytes(ops: Sequence[Op]) -> int:
    """The size of a multi on the wire: for each operation a header, its path, its data, and flags, version or ACL."""
    data = sum(4 + len(op.data) for op in ops if isinstance(op, Create | Set))
    return 8 + 9 + data + sum(9 + 4 + len(op.path) + (31 if isinstance(op, Create) else 4) for op in ops)


class MemoryStore(OneByOne):
    """Nodes with versions in a dictionary; a commit is applied whole or not at all.

    One that is larger than ZooKeeper takes gets no answer: the server drops the connection.
    """

    def __init__(self, *, request_bytes_max: int = REQUEST_BYTES_MAX) -> None:
        self.request_bytes_max = request_bytes_max
        self.nodes: dict[str, Node] = {"/": Node(b"", 0)}
        self.ephemeral: dict[str, str] = {}
        """The session that made each ephemeral node."""
        self._data_watches: dict[str, list[Callable[[str], None]]] = {}
        self._child_watches: dict[str, list[Callable[[str], None]]] = {}
        for path in (paths.ROOT, paths.TABLES, paths.VIEWS, paths.DROPPED, paths.SERVICES, paths.LEADERS):
            self.nodes[path] = Node(b"", 0)

    def read(self, path: str) -> Node | None:
        return self.nodes.get(path)

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        return [self.read(path) for path in wanted]

    def read_current(self, path: str) -> Node | None:
        self.sync()
        return self.read(path)

    def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = (p[len(prefix) :] for p in self.nodes if p.startswith(prefix) and p != "/")
        return [name for name in below if "/" not in name]

    def commit(self, ops: Sequence[Op], *, session: str = "") -> Committed | Conflicted:
        if request_bytes(ops) > self.request_bytes_max:
            raise OutcomeUnknown(f"no answer to a write of {request_bytes(ops)} bytes")
        before, ephemeral_before = dict(self.nodes), dict(self.ephemeral)
        versions: list[int | None] = []
        for op in ops:
            if not self._holds(op):
                self.nodes, self.ephemeral = before, ephemeral_before
                return Conflicted(op)
            versions.append(self._apply(op, session))
        self._fire(ops)
        return Committed(tuple(versions))

    def sync(self) -> None: ...

    def read_watched(self, wanted: Sequence[str], on_change: Callable[[str], None]) -> list[Node | None]:
        for path in wanted:
            if path in self.nodes:
                self._data_watches.setdefault(path, []).append(on_change)
        return self.read_many(wanted)

    def children_watched(self, path: str, on_change: Callable[[str], None]) -> list[str]:
        if path in self.nodes:
            self._child_watches.setdefault(path, []).append(on_change)
        return self.children(path)

    def expire_session(self, session: str = "") -> None:
        """This session is over, and the ephemeral nodes it made go with it."""
        ended = sorted(path for path, owner in self.ephemeral.items() if owner == session)
        for path in ended:
            del self.nodes[path], self.ephemeral[path]
        self._fire([Delete(path) for path in ended])

    def _fire(self, ops: Sequence[Op]) -> None:
        """Tell, once each, those who watch what these operations changed; at once, where ZooKeeper takes a moment."""
        for op in ops:
            if isinstance(op, Check):
                continue
            if not isinstance(op, Create):
                self._tell(self._data_watches, op.path)
            if not isinstance(op, Set):
                self._tell(self._child_watches, parent_of(op.path))
            if isinstance(op, Delete):
                self._tell(self._child_watches, op.path)

    def _tell(self, watches: dict[str, list[Callable[[str], None]]], path: str) -> None:
        for on_change in watches.pop(path, ()):
            on_change(path)

    def _holds(self, op: Op) -> bool:
        node = self.nodes.get(op.path)
        if isinstance(op, Create):
            parent = parent_of(op.path)
            return node is None and parent in self.nodes and parent not in self.ephemeral
        if isinstance(op, Delete) and self.children(op.path):
            return False
        return node is not None and op.version in (-1, node.version)

    def _apply(self, op: Op, session: str) -> int | None:
        if isinstance(op, Create):
            self.nodes[op.path] = Node(op.data, 0)
            if op.ephemeral:
                self.ephemeral[op.path] = session
            return 0
        if isinstance(op, Set):
            self.nodes[op.path] = Node(op.data, self.nodes[op.path].version + 1)
            return self.nodes[op.path].version
        if isinstance(op, Delete):
            del self.nodes[op.path]
            self.ephemeral.pop(op.path, None)
        else:
            assert isinstance(op, Check)
        return None


@dataclass
class Watched:
    """Passes everything on and counts it. `before_commit` may act as a peer between a decision and its write."""

    inner: Store
    reads: int = 0
    commits: list[Sequence[Op]] = field(default_factory=list)
    together: list[int] = field(default_factory=list)
    """How many writes were under way together, each time that several could be."""
    before_commit: Callable[[int], None] = lambda _: None

    def read(self, path: str) -> Node | None:
        self.reads += 1
        return self.inner.read(path)

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        self.reads += bool(wanted)
        return self.inner.read_many(wanted)

    def read_current(self, path: str) -> Node | None:
        self.reads += 1
        return self.inner.read_current(path)

    def children(self, path: str) -> list[str]:
        return self.inner.children(path)

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        self.commits.append(ops)
        self.before_commit(len(self.commits))
        return self.inner.commit(ops)

    def commit_many(self, writes: Sequence[Sequence[Op]]) -> list[Answer]:
        self.together.append(len(writes))
        for ops in writes:
            self.commits.append(ops)
            self.before_commit(len(self.commits))
        return self.inner.commit_many(writes)

    def sync(self) -> None:
        self.inner.sync()


@dataclass
class ReadPaths(Watched):
    """Remembers which nodes were read."""

    paths: list[str] = field(default_factory=list)

    def read(self, path: str) -> Node | None:
        self.paths.append(path)
        return super().read(path)

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        self.paths += wanted
        return super().read_many(wanted)


@dataclass
class Faulty(OneByOne, Watched):
    """Follows a script, one word for each commit: `ok`, `lost` (applied, no answer), `gone` (not applied, no answer),
    `away` (refused at once). After the script everything is `ok`. `after_loss` acts before the answer is looked up."""

    script: Iterator[str] = field(default_factory=lambda: iter(()))
    after_loss: Callable[[], None] = lambda: None

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        self.commits.append(ops)
        self.before_commit(len(self.commits))
        word = next(self.script, "ok")
        if word == "away":
            raise Unavailable("the store is away")
        if word == "gone":
            raise OutcomeUnknown("the connection broke before the request arrived")
        answer = self.inner.commit(ops)
        if word == "lost":
            assert isinstance(answer, Committed), f"a lost answer was meant to be a success, it was {answer}"
            self.after_loss()
            raise OutcomeUnknown("the connection broke before the answer arrived")
        return answer


@dataclass
class LaggingStore(OneByOne):
    """A member behind the others: it shows its clients an old state until they sync. Writes go to the leader."""

    leader: MemoryStore
    shown: dict[str, Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.sync()

    def read(self, path: str) -> Node | None:
        return self.shown.get(path)

    def read_many(self, wanted: Sequence[str]) -> list[Node | None]:
        return [self.read(path) for path in wanted]

    def read_current(self, path: str) -> Node | None:
        self.sync()
        return self.read(path)

    def children(self, path: str) -> list[str]:
        seen = MemoryStore()
        seen.nodes = self.shown
        return seen.children(path)

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        answer = self.leader.commit(ops)
        self.sync()  # a session sees its own writes, those that lost as well, and with them all before
        return answer

    def sync(self) -> None:
        self.shown = dict(self.leader.nodes)
