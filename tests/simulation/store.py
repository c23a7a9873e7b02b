"""ZooKeeper as one simulated process sees it: a session over the one store in memory, that can break, lag and end.

What a write may do, whatever the caller sees of it:

                       answered            not answered
    happened           Committed           OutcomeUnknown, or the process died, or its connection broke
    did not            Conflicted          OutcomeUnknown
                       Unavailable

A watch fires once, late; all of a session's watches fire when its connection breaks. A session that is silent for too
long is over: its ephemeral nodes go, and its owner learns of it when it comes back.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from floodmark.core.errors import OutcomeUnknown, SessionLost, Unavailable
from floodmark.ledger import paths
from floodmark.ledger.store import Check, Committed, Conflicted, Create, Node, Op
from tests.simulation.faults import STALL_MS, Mishaps
from tests.simulation.hub import Life
from tests.support.memory_store import MemoryStore, OneByOne

T = TypeVar("T")


class ObservedStore(MemoryStore):
    """The store itself. `wrote` is told of every write that happened, before anyone else sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.wrote: Callable[[Sequence[Op]], None] = lambda _ops: None

    def commit(self, ops: Sequence[Op], *, session: str = "") -> Committed | Conflicted:
        answer = super().commit(ops, session=session)
        if isinstance(answer, Committed):
            self.wrote(ops)
        return answer


class SimSession:
    """The session of one life. The names are those of the real one."""

    def __init__(self, life: Life, store: ObservedStore, on_lost: Callable[[], None]) -> None:
        self.life = life
        self.store = store
        self.connected = True
        self.over = False
        self.expired = False
        self.breaks = 0
        """How often the connection broke: a call during which it did gets no answer."""
        self.lagging: dict[str, Node] | None = None
        """What its server shows, while that is behind."""
        self.port: SimStore | None = None
        self._cut_until_ms = 0
        self._on_lost = on_lost
        self._watches: dict[int, tuple[str, Callable[[str], None]]] = {}
        self._watches_made = 0

    def announce(self, service: str) -> None:
        """What the runner does before it builds a service."""
        parent = f"{paths.SERVICES}/{service}"
        if self.store.read(parent) is None:
            self.store.commit([Create(parent, b"")])
        self.store.commit([Create(f"{parent}/{self.life.instance}", b"{}", ephemeral=True)], session=self.life.instance)

    def disconnect(self, *, until_ms: int = 0) -> None:
        self._cut_until_ms = max(self._cut_until_ms, until_ms)
        self.connected = False
        self.breaks += 1
        self.lagging = None
        fired, self._watches = list(self._watches.values()), {}
        for path, on_change in fired:
            on_change(path)

    def reconnect(self) -> None:
        if self.life.hub.now_ms < self._cut_until_ms:
            return
        if self.expired:
            self.over = True
            self._on_lost()
        else:
            self.connected = True

    def expire(self) -> None:
        """The servers have not heard from it for too long. It may not know for a while."""
        if not self.expired:
            self.expired = True
            self.breaks += 1
            self.store.expire_session(self.life.instance)

    def watch(self, path: str, on_change: Callable[[str], None]) -> Callable[[str], None]:
        """The callback to hand to the store for a watch of this session."""
        self._watches_made += 1
        number = self._watches_made
        self._watches[number] = (path, on_change)
        hub = self.life.hub

        def tell() -> None:
            if self.life.alive and self._watches.pop(number, None):
                on_change(path)

        return lambda _path: hub.at(hub.now_ms + hub.latency_ms(), tell)


class SimStore(OneByOne):
    """The store port over one session."""

    def __init__(self, session: SimSession, mishaps: Mishaps) -> None:
        self._session = session
        self._store = session.store
        self._hub = session.life.hub
        self._mishaps = mishaps

    def ensure_root(self) -> None:
        """The store begins with these nodes."""

    # -- reads -----------------------------------------------------------------------------------------------------

    def read(self, path: str) -> Node | None:
        return self._read(lambda: self._nodes.get(path))

    def read_many(self, wanted: Sequence[str], /) -> list[Node | None]:
        # Not a snapshot: something may come between any two of them.
        cut = self._hub.randomness.randint(0, len(wanted))
        if cut in (0, len(wanted)):
            return self._read(lambda: [self._nodes.get(path) for path in wanted])
        first = self._read(lambda: [self._nodes.get(path) for path in wanted[:cut]])
        return first + self._read(lambda: [self._nodes.get(path) for path in wanted[cut:]])

    def read_current(self, path: str) -> Node | None:
        self.sync()
        return self.read(path)

    def children(self, path: str) -> list[str]:
        return self._read(lambda: self._children(path))

    def sync(self) -> None:
        def catch_up() -> None:
            self._session.lagging = None

        self._read(catch_up)

    def read_watched(self, wanted: Sequence[str], on_change: Callable[[str], None], /) -> list[Node | None]:
        def look() -> list[Node | None]:
            for path in wanted:
                if self._nodes.get(path) is not None:
                    tell = self._session.watch(path, on_change)
                    self._store.read_watched([path], tell)
                    if self._nodes.get(path) != self._store.read(path):
                        tell(path)  # its server is behind: the change it has not seen yet fires the watch
            return [self._nodes.get(path) for path in wanted]

        return self._read(look)

    def children_watched(self, path: str, on_change: Callable[[str], None], /) -> list[str]:
        def look() -> list[str]:
            names = self._children(path)
            tell = self._session.watch(path, on_change)
            self._store.children_watched(path, tell)
            if set(names) != set(self._store.children(path)):
                tell(path)
            return names

        return self._read(look)

    @property
    def _nodes(self) -> dict[str, Node]:
        return self._store.nodes if self._session.lagging is None else self._session.lagging

    def _children(self, path: str) -> list[str]:
        prefix = path + "/"
        below = (p[len(prefix) :] for p in self._nodes if p.startswith(prefix))
        return sorted(name for name in below if "/" not in name)

    def _read(self, look: Callable[[], T]) -> T:
        self._require_connection()
        if self._mishaps.breaks_read(self._session.life):
            self._blink()
            raise Unavailable("the connection broke")
        before = self._session.breaks
        self._hub.sleep(self._hub.latency_ms())
        if self._session.breaks != before:
            raise Unavailable("the connection broke")
        return look()

    # -- writes ----------------------------------------------------------------------------------------------------

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        self._require_connection()
        session, before = self._session, self._session.breaks
        outcome = self._mishaps.of_write(session.life)
        if outcome == "away":
            self._blink()
            raise Unavailable("the connection broke before the request was sent")
        if outcome == "stalls":
            session.life.paused_until_ms = self._hub.now_ms + self._hub.randomness.randint(*STALL_MS)
        first_ms, then_ms = self._hub.latency_ms(), self._hub.latency_ms()
        self._hub.sleep(first_ms)
        if outcome == "dies before":
            session.life.perish()
        if session.breaks != before or outcome == "gone":
            if outcome == "gone":
                self._blink()
            raise OutcomeUnknown("the connection broke before the request arrived")
        answer = self._store.commit(ops, session=session.life.instance)
        session.lagging = None  # a server that answers a write has seen it
        self._tell(ops, answer, outcome)
        if outcome == "dies after":
            session.life.perish()
        self._hub.sleep(then_ms)
        if session.breaks != before or outcome == "lost":
            if outcome == "lost":
                self._blink()
            raise OutcomeUnknown("the connection broke before the answer arrived")
        return answer

    def _tell(self, ops: Sequence[Op], answer: Committed | Conflicted, outcome: str) -> None:
        paths_ = ", ".join(f"{type(op).__name__} {_short(op.path)}" for op in ops if not isinstance(op, Check))
        word = "wrote" if isinstance(answer, Committed) else f"lost the race for {_short(answer.op.path)}:"
        end = ", and never heard the answer" if outcome == "lost" else ""
        self._hub.note(self._session.life.instance, f"{word} {paths_}{end}")

    def _blink(self) -> None:
        """An answer is lost together with the connection, which is back a moment later."""
        session, hub = self._session, self._hub
        session.disconnect()
        hub.at(hub.now_ms + hub.randomness.randint(20, 400), session.reconnect)

    def _require_connection(self) -> None:
        session = self._session
        _ = self._hub.running  # a dead process calls nobody
        if session.over:
            raise SessionLost("the ZooKeeper session is over")
        if not session.connected:
            self._hub.sleep(self._hub.randomness.randint(1, 20))
            if session.over:
                raise SessionLost("the ZooKeeper session is over")
            raise Unavailable("not connected to ZooKeeper")


def _short(path: str) -> str:
    return path.removeprefix("/floodmark/")
