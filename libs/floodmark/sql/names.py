"""Names for what a rewrite makes up: none of them is a name that anybody else uses, so none can capture another."""

from collections.abc import Iterable


def folded(name: str) -> str:
    """One spelling for names that Spark may take for the same: case does not matter to it, in any script."""
    return name.upper().lower()


class Names:
    """A supply of names that are different from all the names it was given, and from each other."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {folded(name) for name in taken}
        self._given: dict[str, str] = {}

    def of(self, wish: str) -> str:
        """The name that stands for this wish, the same each time: the wish itself, or the next one that is free."""
        if wish not in self._given:
            name, number = wish, 0
            while folded(name) in self._taken:
                number += 1
                name = f"{wish}_{number}"
            self._taken.add(folded(name))
            self._given[wish] = name
        return self._given[wish]
