"""Every interleaving of DROP TABLE with CREATE VIEW, a registration and a CREATE TABLE of the same name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import Put
from floodmark.core.tables import TableHeader
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Store
from tests.simulation.explorer import Actor, Explorer, Nodes, Report
from tests.simulation.ledger_cases import Picture, Without, Wrap, nodes_of
from tests.support.ledger_kit import TABLE, VIEW, Kit, segment
from tests.support.memory_store import MemoryStore

NAME = TABLE.name


def table_of(nodes: Nodes) -> TableHeader:
    return codec.decode_table(nodes[paths.table(NAME)].data, what="table")


@dataclass(frozen=True, slots=True)
class DropOracle:
    """No view stands on a table that is gone, only CREATE TABLE brings one back, and none has what another had."""

    creates: bool = False

    def begin(self, _: Nodes) -> str | None:
        return None

    def wrote(self, note: str | None, before: Nodes, after: Nodes) -> str | None:
        old, new = table_of(before), table_of(after)
        if note is None and old.dropped and not new.dropped and not self.creates:
            return "resurrected: a table that was dropped is there again"
        if note is None and old.dropped and not new.dropped and (new.segment_count or new.recent):
            return "not clean: a table was created with what another had"
        return note

    def wrong_at_end(self, note: str | None, nodes: Nodes, _: Mapping[str, object]) -> str | None:
        table = table_of(nodes)
        if note is None and Picture(nodes).header is not None and table.dropped:
            return "homeless: a view uses a table that was dropped"
        return note or _registry_wrong(nodes, table)


def _registry_wrong(nodes: Nodes, table: TableHeader) -> str | None:
    if table.dropped:
        return None
    prefix, grid = paths.slices(NAME) + "/", table.definition.grid
    own = [node.data for path, node in nodes.items() if path.startswith(prefix) and grid.owns(path.split("/")[5])]
    listed = {s.name for data in own for s in codec.decode_slice_node(data, what="slice").segments}
    if len(listed) != table.segment_count:
        return "not clean: the header does not agree with the slices"
    return None


def told(act: Callable[[Kit], object]) -> Callable[[Kit], str]:
    """Whether it was done, or the rule it was refused by."""

    def run(kit: Kit) -> str:
        try:
            act(kit)
        except InvalidInput as error:
            return error.rule
        return "done"

    return run


def dropper(*, wrap: Wrap = lambda store: store) -> Actor:
    run = told(lambda kit: kit.ledger.dropping.drop(NAME))
    return Actor("dropper", lambda store: Kit(wrap(store), seed=21), run, answers_get_lost=True)


def creator_of_a_view(*, wrap: Wrap = lambda store: store) -> Actor:
    run = told(lambda kit: kit.ledger.views.create(VIEW))
    return Actor("broker", lambda store: warmed_registry(Kit(wrap(store), seed=22)), run, answers_get_lost=True)


def registrar() -> Actor:
    run = told(lambda kit: kit.ledger.registry.apply(NAME, [Put(segment("b", 0, 1))]))
    return Actor("registrar", lambda store: warmed_registry(Kit(store, seed=23)), run, answers_get_lost=True)


def creator_of_the_table() -> Actor:
    run = told(lambda kit: kit.ledger.registry.create_table(TABLE))
    return Actor("creator", lambda store: Kit(store, seed=24), run, answers_get_lost=True)


def warmed_registry(kit: Kit) -> Kit:
    kit.ledger.registry.snapshot(NAME)
    return kit


def table_with_data() -> Nodes:
    kit = Kit(MemoryStore())
    kit.ledger.registry.create_table(TABLE)
    kit.put(segment("a", 0, 1))
    return nodes_of(kit)


def explored(oracle: DropOracle, *actors: Actor, losses_max: int = 0) -> Report:
    report = Explorer(table_with_data(), actors, oracle, losses_max=losses_max).explore()
    print(report)  # noqa: T201 - pytest shows it on request
    assert report.interleavings > 50
    return report


def test_a_view_never_stands_on_a_table_that_was_dropped() -> None:
    """Either the view is refused, or the drop is."""
    report = explored(DropOracle(), dropper(), creator_of_a_view(), losses_max=1)
    assert not report.wrong, report


def test_a_registration_never_brings_a_dropped_table_back() -> None:
    report = explored(DropOracle(), dropper(), registrar(), losses_max=1)
    assert not report.wrong, report


def test_a_table_that_is_created_again_while_the_old_one_is_dropped_and_filled_is_clean() -> None:
    report = explored(DropOracle(creates=True), dropper(), registrar(), creator_of_the_table())
    assert not report.wrong, report


def without_dependents(store: Store) -> Store:
    return Without(store, lambda op: op.path == paths.dependents(NAME))


@pytest.mark.parametrize("who", ["dropper", "broker"])
def test_control_without_the_node_that_both_write_a_view_is_left_without_a_table(who: str) -> None:
    report = explored(
        DropOracle(),
        dropper(wrap=without_dependents if who == "dropper" else lambda store: store),
        creator_of_a_view(wrap=without_dependents if who == "broker" else lambda store: store),
    )
    assert any(rule.startswith("homeless") for rule in report.rules), report
