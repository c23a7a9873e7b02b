"""ZooKeeper behind the store port. Every result of a multi is looked at; nothing is retried here."""

from collections.abc import Callable, Sequence
from typing import Any

from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.handlers.threading import KazooTimeoutError

from floodmark.core.errors import OutcomeUnknown, SessionLost, Unavailable
from floodmark.ledger.paths import ROOT
from floodmark.ledger.session import Session
from floodmark.ledger.store import Answer, Check, Committed, Conflicted, Create, Delete, Node, Op, Set

_PRECONDITIONS = (BadVersionError, NoChildrenForEphemeralsError, NoNodeError, NodeExistsError, NotEmptyError)
_COLLATERAL = (RolledBackError, RuntimeInconsistency)
"""What kazoo returns for operations that failed only because another one of the same multi did."""


class ZooKeeperStore:
    """The store over one session. Thread-safe, as kazoo's client is."""

    def __init__(self, session: Session, *, answer_timeout_ms: int = 60_000) -> None:
        self._session = session
        self._client = session.client
        self._timeout_s = answer_timeout_ms / 1000

    def read(self, path: str) -> Node | None:
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        # Asked for all at once: the round trips overlap, and the client, not the server, is the limit.
        self._require_connection()
        pending = [self._client.get_async(path) for path in paths]
        return [self._node(path, answer) for path, answer in zip(paths, pending, strict=True)]

    def read_current(self, path: str) -> Node | None:
        # One behind the other on the same connection: the server answers the read after the sync.
        self._require_connection()
        synced, read = self._client.sync_async(ROOT), self._client.get_async(path)
        try:
            synced.get(timeout=self._timeout_s)
        except (KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"sync failed: {type(error).__name__}") from error
        return self._node(path, read)

    def children(self, path: str) -> list[str]:
        self._require_connection()
        try:
            return list(self._client.get_children_async(path).get(timeout=self._timeout_s))
        except NoNodeError:
            return []
        except (KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"children of {path} could not be read: {type(error).__name__}") from error

    def commit(self, ops: Sequence[Op]) -> Committed | Conflicted:
        (answer,) = self.commit_many([ops])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def commit_many(self, writes: Sequence[Sequence[Op]]) -> list[Answer]:
        # Sent one behind the other without waiting: the round trips overlap, and the server keeps their order.
        pending = [self._sent(ops) for ops in writes]
        return [self._answer(ops, sent) for ops, sent in zip(writes, pending, strict=True)]

    def _sent(self, ops: Sequence[Op]) -> Any:
        """What kazoo will put the answer into, or why nothing was sent."""
        try:
            self._require_connection()
        except Unavailable as error:
            return error
        transaction = self._client.transaction()
        for op in ops:
            _add(transaction, op)
        return transaction.commit_async()

    def _answer(self, ops: Sequence[Op], sent: Any) -> Answer:
        if isinstance(sent, Unavailable):
            return sent
        try:
            return _judge(ops, sent.get(timeout=self._timeout_s))
        except ConnectionClosedError as error:
            return _caused(Unavailable("the ZooKeeper connection is closed"), error)
        except (KazooException, KazooTimeoutError) as error:
            paths = ", ".join(op.path for op in ops[:3])
            return _caused(OutcomeUnknown(f"no answer to a write of {paths}: {type(error).__name__}"), error)
        except Unavailable as error:
            return error

    def sync(self) -> None:
        self._require_connection()
        try:
            self._client.sync_async(ROOT).get(timeout=self._timeout_s)
        except (KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"sync failed: {type(error).__name__}") from error

    def read_watched(self, paths: Sequence[str], on_change: Callable[[str], None]) -> list[Node | None]:
        self._require_connection()
        pending = [self._client.get_async(path, watch=_watch(path, on_change)) for path in paths]
        return [self._node(path, answer) for path, answer in zip(paths, pending, strict=True)]

    def children_watched(self, path: str, on_change: Callable[[str], None]) -> list[str]:
        self._require_connection()
        try:
            pending = self._client.get_children_async(path, watch=_watch(path, on_change))
            return list(pending.get(timeout=self._timeout_s))
        except NoNodeError:
            return []
        except (KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"children of {path} could not be read: {type(error).__name__}") from error

    def ensure_root(self) -> None:
        """The nodes every other one lies under."""
        for path in ("tables", "views", "dropped", "services", "leaders"):
            try:
                self._client.ensure_path(f"{ROOT}/{path}")
            except (KazooException, KazooTimeoutError) as error:
                raise Unavailable(f"{ROOT}/{path} could not be created: {type(error).__name__}") from error

    def _node(self, path: str, answer: Any) -> Node | None:
        try:
            data, stat = answer.get(timeout=self._timeout_s)
        except NoNodeError:
            return None
        except (KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"{path} could not be read: {type(error).__name__}") from error
        return Node(data, stat.version)

    def _require_connection(self) -> None:
        # kazoo would queue the request until the connection is back; a caller should know at once.
        if self._session.over:
            raise SessionLost("the ZooKeeper session is over")
        if not self._session.connected:
            raise Unavailable("not connected to ZooKeeper")


def _watch(path: str, on_change: Callable[[str], None]) -> Callable[[Any], None]:
    """SUBTLE: when a connection breaks, kazoo forgets every watch, though the session lives on, and fires each once
    with an event that has no path. Whoever ignored that would never hear of a change again."""
    return lambda _event: on_change(path)


def _caused(error: Answer, by: Exception) -> Answer:
    """For whoever raises it later."""
    assert isinstance(error, Exception)
    error.__cause__ = by
    return error


def _add(transaction: Any, op: Op) -> None:
    if isinstance(op, Check):
        transaction.check(op.path, op.version)
    elif isinstance(op, Create):
        transaction.create(op.path, op.data, ephemeral=op.ephemeral)
    elif isinstance(op, Set):
        transaction.set_data(op.path, op.data, op.version)
    else:
        assert isinstance(op, Delete), f"{op} is no operation"
        transaction.delete(op.path, op.version)


def _judge(ops: Sequence[Op], results: Sequence[Any]) -> Committed | Conflicted:
    """kazoo returns the exceptions of a failed multi in its list instead of raising them."""
    versions: list[int | None] = []
    for op, result in zip(ops, results, strict=True):
        if isinstance(result, _COLLATERAL):
            continue
        if isinstance(result, _PRECONDITIONS):
            return Conflicted(op)
        if isinstance(result, Exception):
            raise Unavailable(f"ZooKeeper refused a write of {op.path}: {type(result).__name__}")
        versions.append(result.version if isinstance(op, Set) else 0 if isinstance(op, Create) else None)
    assert len(versions) == len(ops), "a multi was rolled back without a reason"
    return Committed(tuple(versions))
