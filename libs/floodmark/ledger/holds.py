"""Readers' holds: while one stands, no file that its reader may have listed is deleted (INV-11).

A hold is a persistent node with an expiry, not an ephemeral one: a reader that loses its session keeps its hold until
it runs out, and a reader that dies does not keep it for ever. A reader takes its hold first and lists files after.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from floodmark.core.errors import BudgetExhausted, InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.ports import new_id
from floodmark.ledger import codec, paths
from floodmark.ledger.engine import Budgets, Done, Engine, Write
from floodmark.ledger.registry import Registry
from floodmark.ledger.store import Conflicted, Create, Delete, Set

TAKES_MAX = 3
"""How often to take a hold anew that had run out by the time the store answered."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A reader may still read what was registered at this version, or written before this time."""

    table: str
    hold_id: str
    reader: str
    registry_version: int
    taken_at_ms: int
    expires_at_ms: int

    @property
    def path(self) -> str:
        return f"{paths.holds(self.table)}/{self.hold_id}"


class Holds:
    def __init__(self, engine: Engine, budgets: Budgets, registry: Registry) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets
        self._registry = registry

    def take(self, table: str, reader: str, *, ttl_ms: int) -> Hold:
        """Take a hold on what the table has now. List files only after this returns."""
        if ttl_ms < 1:
            raise InvalidInput("hold-ttl", f"a hold of {reader} on {table} for {ttl_ms} ms holds nothing")
        hold_id = new_id(self._engine.randomness)
        path = f"{paths.holds(table)}/{hold_id}"

        def attempt() -> Done[Hold] | Write[Hold]:
            found = self._store.read(path)
            if found is not None and not self.ran_out(landed := _decode(table, hold_id, found.data)):
                return Done(landed)
            version = self._registry.header(table).version
            # Sampled in this very try: an expiry from before a long wait could already be over when it is written.
            now_ms = self._engine.clock.now_ms()
            hold = Hold(table, hold_id, reader, version, now_ms, now_ms + ttl_ms)
            data = _encode(hold)
            return Write([Create(path, data) if found is None else Set(path, data, found.version)], hold)

        for _ in range(TAKES_MAX):
            hold = self._engine.run(f"hold {table} for {reader}", self._budgets.critical, attempt).result
            if not self.ran_out(hold):
                return hold
        raise BudgetExhausted(f"hold {table} for {reader}: ran out {TAKES_MAX} times before the store answered")

    def ran_out(self, hold: Hold) -> bool:
        return hold.expires_at_ms <= self._engine.clock.now_ms()

    def renew(self, hold: Hold, *, ttl_ms: int) -> Hold | None:
        """Keep a hold for longer. None: it ran out and may be gone, so what it protected may be gone too."""
        path = hold.path

        def attempt() -> Done[Hold | None] | Write[Hold | None]:
            found = self._store.read(path)
            now_ms = self._engine.clock.now_ms()
            if found is None or _decode(hold.table, hold.hold_id, found.data).expires_at_ms <= now_ms:
                return Done(None)
            renewed = replace(hold, expires_at_ms=now_ms + ttl_ms)
            return Write([Set(path, _encode(renewed), found.version)], renewed)

        return self._engine.run(f"renew hold on {hold.table}", self._budgets.critical, attempt).result

    def release(self, hold: Hold) -> None:
        """Let go. A hold that is gone already is fine; one that cannot be reached runs out by itself."""
        try:
            self._store.commit([Delete(hold.path)])
        except (Unavailable, OutcomeUnknown):
            return

    def live(self, table: str) -> list[Hold]:
        """Holds that have not run out, lowest registry version first."""
        self._store.sync()
        now_ms = self._engine.clock.now_ms()
        return sorted((h for h in self.all(table) if h.expires_at_ms > now_ms), key=lambda h: h.registry_version)

    def lowest(self, table: str) -> Hold | None:
        """The hold that sees furthest back. A file forgotten by the registry at or before its version is in no hold."""
        return next(iter(self.live(table)), None)

    def remove_expired(self, table: str) -> int:
        """Delete holds that ran out; returns how many."""
        now_ms = self._engine.clock.now_ms()
        removed = 0
        for hold in self.all(table):
            path = f"{paths.holds(table)}/{hold.hold_id}"
            node = self._store.read(path)
            if node is None or _decode(table, hold.hold_id, node.data).expires_at_ms > now_ms:
                continue
            # The version is checked: a renewal that came in between wins.
            removed += not isinstance(self._store.commit([Delete(path, node.version)]), Conflicted)
        return removed

    def all(self, table: str) -> list[Hold]:
        """Every hold there is, run out or not."""
        names = self._store.children(paths.holds(table))
        nodes = self._store.read_many([f"{paths.holds(table)}/{name}" for name in names])
        return [_decode(table, name, node.data) for name, node in zip(names, nodes, strict=True) if node is not None]


class HoldKeeper:
    """Renews one hold from its own thread, so that a busy reader cannot forget it. Use as a context manager."""

    def __init__(self, holds: Holds, hold: Hold, *, ttl_ms: int, on_lost: Callable[[], None]) -> None:
        self._holds = holds
        self.hold = hold
        self._ttl_ms = ttl_ms
        self._on_lost = on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"hold-{hold.table}", daemon=True)
        self.lost = False

    def __enter__(self) -> "HoldKeeper":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._holds.release(self.hold)

    def _run(self) -> None:
        while not self._stop.wait(self._ttl_ms / 3000):
            try:
                renewed = self._holds.renew(self.hold, ttl_ms=self._ttl_ms)
            except (Unavailable, OutcomeUnknown, BudgetExhausted):
                if not self._holds.ran_out(self.hold):
                    continue  # it stands until it expires; the next try may succeed
                renewed = None
            if renewed is None:
                self.lost = True
                self._on_lost()
                return
            self.hold = renewed


def _encode(hold: Hold) -> bytes:
    return codec.pack(
        {"r": hold.reader, "v": hold.registry_version, "t": hold.taken_at_ms, "x": hold.expires_at_ms},
    )


def _decode(table: str, hold_id: str, data: bytes) -> Hold:
    what = f"{paths.holds(table)}/{hold_id}"
    raw = codec.unpack(data, what=what)
    return codec.decoding(what, lambda: Hold(table, hold_id, raw["r"], raw["v"], raw["t"], raw["x"]))
