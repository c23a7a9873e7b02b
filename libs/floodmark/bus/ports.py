"""The bus as the services see it. The Kafka adapter implements these; so does the simulator's bus."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from floodmark.core.errors import Unavailable

CommitAnswer = bool | Unavailable
"""True: stored. False: the group moved on without us. Unavailable: not stored, try again later."""


Headers = Sequence[tuple[str, bytes | None]]


class Partition(NamedTuple):
    topic: str
    number: int


class Record:
    """One record as it lies in the log, undecoded.

    Its headers may be given as something that knows them: most records are never asked for theirs.
    """

    __slots__ = ("_headers", "key", "offset", "partition", "value")

    def __init__(
        self,
        partition: Partition,
        offset: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers | Callable[[], Headers | None] = (),
    ) -> None:
        self.partition = partition
        self.offset = offset
        self.key = key
        self.value = value
        self._headers = headers

    @property
    def headers(self) -> Headers:
        return (self._headers() or ()) if callable(self._headers) else self._headers

    @property
    def place(self) -> str:
        """Where this record lies; names it when its sender did not."""
        return f"{self.partition.topic}/{self.partition.number}/{self.offset}"

    def __str__(self) -> str:
        return f"record {self.place}"


@dataclass(frozen=True, slots=True)
class Outgoing:
    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class RebalanceListener(Protocol):
    """Told from inside `Source.poll`, in the polling thread."""

    def assigned(self, partitions: Collection[Partition]) -> None:
        """They begin anew: none of them is paused, whatever was before they went."""

    def revoked(self, partitions: Collection[Partition]) -> None:
        """The partitions go to someone else after this returns: the last moment to commit for them."""

    def lost(self, partitions: Collection[Partition]) -> None:
        """The partitions already belong to someone else: nothing may be committed for them."""


class Source(Protocol):
    """One member of a consumer group. Used by one thread."""

    def subscribe(self, topics: Sequence[str], listener: RebalanceListener) -> None: ...

    def poll(self, *, records_max: int, timeout_ms: int) -> Sequence[Record]:
        """Up to `records_max` records; must be called often, also when full, or the member leaves its group."""

    def pause(self, partitions: Collection[Partition]) -> None: ...

    def resume(self, partitions: Collection[Partition]) -> None: ...

    def commit(self, positions: Mapping[Partition, int]) -> bool:
        """Store the positions. False: the group moved on without us, whoever has the partitions now reads again.

        Raises Unavailable when the bus cannot be reached; the caller commits again later. A bus that hangs is waited
        for, without polling: this is for the last moment, before partitions go.
        """

    def begin_commit(self, positions: Mapping[Partition, int], answered: Callable[[CommitAnswer], None]) -> None:
        """Store the positions without waiting. `answered` is called here or in a later poll; one at a time."""

    def close(self) -> None: ...


class Publisher(Protocol):
    def publish(self, messages: Sequence[Outgoing]) -> None:
        """Return when every message is durable. Safe to call from several threads.

        Raises InvalidInput for a message the bus will never take, Unavailable when none was sent, OutcomeUnknown
        when some may have been.
        """
