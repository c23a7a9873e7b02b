"""Who leads, and who lives. Both are ephemeral nodes: they go with the session of the process that made them.

Leadership saves duplicated work; nothing depends on it for being right. Two leaders at once are safe, because every
write they make is a compare-and-set.
"""

from floodmark.ledger import paths
from floodmark.ledger.store import Committed, Create, Delete, Store


class Leadership:
    """One candidate for one role. Asked at every step: holding it is a fact of the store, not of this object."""

    def __init__(self, store: Store, role: str, instance: str) -> None:
        self._store = store
        self._path = f"{paths.LEADERS}/{role}"
        self._instance = instance.encode()

    def hold(self) -> bool:
        """Whether this instance leads, taking the lead if nobody has it."""
        node = self._store.read(self._path)
        if node is None:
            return isinstance(self._store.commit([Create(self._path, self._instance, ephemeral=True)]), Committed)
        return node.data == self._instance

    def leader(self) -> str | None:
        node = self._store.read(self._path)
        return None if node is None else node.data.decode()

    def resign(self) -> None:
        """Give the lead up at once, if it is ours, instead of leaving it to the end of the session."""
        node = self._store.read(self._path)
        if node is not None and node.data == self._instance:
            self._store.commit([Delete(self._path, node.version)])


def alive(store: Store, service: str) -> set[str]:
    """The instances of a service whose sessions live."""
    return set(store.children(f"{paths.SERVICES}/{service}"))
