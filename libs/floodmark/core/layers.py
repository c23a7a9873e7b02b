"""A mapping that never changes and is cheap to change: what a change leaves alone is shared with the one before.

    changes     [c]                  looked into first
                [a, b]
    base        [a, b, c, d, e, f]   looked into last

Each layer is less than half as large as the one below; two that are not become one. So a lookup asks a few
dictionaries, and a change costs what it changes, however much there is.
"""

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar, overload

V = TypeVar("V")
D = TypeVar("D")


class Layered(Mapping[str, V]):
    """A persistent mapping. No value is None: in a layer, None says that the key is gone."""

    __slots__ = ("_above", "_base")

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._base: dict[str, V] = dict(items or {})
        self._above: tuple[dict[str, V | None], ...] = ()
        """The changes over it, newest first."""

    def updated(self, changes: Mapping[str, V | None]) -> "Layered[V]":
        """This mapping with these changes, None for what goes. Both stay as they are."""
        if not changes:
            return self
        top, above = dict(changes), list(self._above)
        while above and 2 * len(top) >= len(above[0]):
            top = above.pop(0) | top
        made: Layered[V] = Layered()
        if not above and 2 * len(top) >= len(self._base):
            made._base = _remaining(self._base | top)
        else:
            made._base, made._above = self._base, (top, *above)
        return made

    def __getitem__(self, key: str) -> V:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    @overload
    def get(self, key: str, /) -> V | None: ...
    @overload
    def get(self, key: str, /, default: V | D) -> V | D: ...
    def get(self, key: str, /, default: object = None) -> object:
        for layer in self._above:
            if key in layer:
                found = layer[key]
                return default if found is None else found
        return self._base.get(key, default)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.get(key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self._flat())

    def __len__(self) -> int:
        return len(self._flat())

    def items(self) -> ItemsView[str, V]:
        return self._flat().items()

    def values(self) -> ValuesView[V]:
        return self._flat().values()

    def _flat(self) -> dict[str, V]:
        """All of it in one dictionary."""
        if not self._above:
            return self._base
        merged: dict[str, V | None] = dict(self._base)
        for layer in reversed(self._above):
            merged.update(layer)
        return _remaining(merged)


def _remaining(layer: Mapping[str, V | None]) -> dict[str, V]:
    return {key: value for key, value in layer.items() if value is not None}
