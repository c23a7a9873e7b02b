"""Every interleaving of two ingesters that look at a file and register it, while the file changes under them.

The files lie in the store as well, so that a look at one is a step like any other.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.ledger.store import Create, Delete, Op, Set, Store
from floodmark.parquet.inspection import Inspected
from floodmark.parquet.lake import LakeFile
from floodmark_ingester import registrar
from floodmark_ingester.registrar import Registrar, Request, Trouble
from tests.simulation.explorer import Actor, Explorer, Nodes, Report
from tests.simulation.ledger_cases import event_count
from tests.support.ledger_kit import HOUR_MS, TABLE, Kit
from tests.support.memory_store import MemoryStore

FILE = "/lake/a"


@dataclass
class StoreLake:
    """One directory, whose files are nodes. A node's content is the file's CRC."""

    store: Store
    location: str = TABLE.location
    directory: None = None

    def relative(self, path: str) -> str:
        return path

    def file(self, path: str) -> LakeFile | None:
        node = self.store.read(f"/lake/{path}")
        return None if node is None else LakeFile(path, 100, f"{node.version}:{node.data!r}", None)

    def has(self, path: str) -> bool:
        return self.file(path) is not None

    def files_at(self, wanted: Sequence[str]) -> list[LakeFile | None]:
        return [self.file(path) for path in wanted]


def inspect(lake: StoreLake, path: str, **_: Any) -> Inspected:
    node = lake.store.read(f"/lake/{path}")
    if node is None:
        raise InvalidInput("file-absent", f"{path} is not there")
    file = LakeFile(path, 100, f"{node.version}:{node.data!r}", None)
    return Inspected(file, 10, int(node.data), 0, HOUR_MS - 1, 0, ())


class AtOnce(Executor):
    """What is submitted runs in the thread of whoever submits it."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(function(*args, **kwargs))
        return done


def ingester(name: str, action: Literal["add", "delete"], may_start: Callable[[Nodes], bool] = lambda _: True) -> Actor:
    """Carries out one announcement about file `a`, once."""

    def prepare(store: Store) -> Registrar:
        made = Registrar(Kit(store, seed=sum(name.encode())).ledger, AtOnce(), lambda _: None)
        made._lakes[TABLE.location] = StoreLake(store)  # type: ignore[assignment]
        return made

    request = Request(TABLE.name, action, "a", None, None, "1" * 32, only_if_absent=action == "delete")
    return Actor(name, prepare, lambda made: made.register([request])[0], may_start)


def producer(*steps: Op, may_start: Callable[[Nodes], bool] = lambda _: True) -> Actor:
    def run(store: Store) -> None:
        for step in steps:
            store.commit([step])

    return Actor("producer", lambda store: store, run, may_start)


@dataclass(frozen=True)
class EndsAs:
    """Once the newest look is written, the registry is what that look saw."""

    newest: str
    crc: int | None

    def begin(self, _: Nodes) -> None: ...

    def wrote(self, _note: None, _before: Nodes, _after: Nodes) -> None: ...

    def wrong_at_end(self, _: None, nodes: Nodes, results: Mapping[str, object]) -> str | None:
        trouble: Trouble | None = results[self.newest]  # type: ignore[assignment]
        store = MemoryStore()
        store.nodes = dict(nodes)
        registered = Kit(store).ledger.registry.snapshot(TABLE.name).by_name.get("a")
        crc = None if registered is None else registered.crc
        if trouble is not None or crc == self.crc:
            return None  # what was not written is tried again
        return f"crc {crc} is registered, the newest look saw {self.crc}"


def start() -> Nodes:
    kit = Kit(MemoryStore())
    kit.ledger.registry.create_table(TABLE)
    kit.store.commit([Create("/lake", b""), Create(FILE, b"1")])
    assert isinstance(kit.store, MemoryStore)
    return dict(kit.store.nodes)


def replaced() -> Report:
    older, newer = ingester("older", "add"), ingester("newer", "add", lambda nodes: nodes[FILE].data == b"2")
    return Explorer(start(), [older, producer(Set(FILE, b"2", 0)), newer], EndsAs("newer", 2)).explore()


def gone() -> Report:
    """Registered by one, removed by its producer, forgotten by another, while the older look goes on."""
    older, first = ingester("older", "add"), ingester("first", "add")
    goes = producer(Delete(FILE), may_start=lambda nodes: event_count(nodes) > 0)
    newer = ingester("newer", "delete", lambda nodes: FILE not in nodes)
    return Explorer(start(), [older, first, goes, newer], EndsAs("newer", None)).explore()


def came_back() -> Report:
    """Found gone by one; then it is there again, with other content, and another registers that."""
    kit = Kit(MemoryStore())
    kit.store.commit([Create("/lake", b"")])
    assert isinstance(kit.store, MemoryStore)
    kit.ledger.registry.create_table(TABLE)
    returns = producer(Create(FILE, b"2"))
    newer = ingester("newer", "add", lambda nodes: FILE in nodes)
    return Explorer(dict(kit.store.nodes), [ingester("older", "delete"), returns, newer], EndsAs("newer", 2)).explore()


CASES = [replaced, gone, came_back]


@pytest.fixture(autouse=True)
def _files_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registrar, "inspect", inspect)


@pytest.mark.scenario("I8")
@pytest.mark.parametrize("case", CASES)
def test_an_older_look_never_wins(case: Callable[[], Report]) -> None:
    report = case()
    print(report)  # noqa: T201 - pytest shows it on request, and with every failure
    assert report.interleavings > 50
    assert not report.wrong, str(report)


@pytest.mark.parametrize("case", CASES)
def test_it_does_without_the_look_inside_the_write(case: Callable[[], Report], monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the explorer would notice."""
    monkeypatch.setattr(registrar._Check, "confirm", lambda *_: None)
    monkeypatch.setattr(registrar, "Seen", lambda _: None)
    assert case().wrong
