"""What is too large for one write is written in halves, and those in halves, until each fits.

The one place for this: every operation that puts several things of its caller into one multi goes through `halved`.
Each half is a write of its own and decides anew, so nothing may rely on both being there. What must be atomic is one
item, is never cut, and is refused with its size:

    group commit          one bucket: its entry, the watermark it moves and the checks of its source       INV-2, INV-3
    registry write        one command: its slices, the table's header and its event. A larger batch becomes several
                          registry versions, each with an event of its own
    retirement            one segment: its removal and the condemned file

Marks, coverage, imports and dispatch records are written shard by shard: one node, which its limits keep small enough
(`Limits.shard_bytes`, `core.dispatch.ERROR_BYTES_MAX`). Everything else writes nodes of a fixed, small size.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from floodmark.ledger.store import TooLarge

T = TypeVar("T")
R = TypeVar("R")


def halved(
    items: Sequence[T], write: Callable[[Sequence[T]], R], *, alone: Callable[[T, TooLarge], R] | None = None
) -> Iterator[R]:
    """Write these items in as few writes as fit, in their order.

    `alone` says what becomes of one that does not fit by itself; without it, its error is raised.
    """
    try:
        written = write(items)
    except TooLarge as error:
        if len(items) > 1:
            middle = len(items) // 2
            yield from halved(items[:middle], write, alone=alone)
            yield from halved(items[middle:], write, alone=alone)
        elif alone is None:
            raise
        else:
            yield alone(items[0], error)
    else:
        yield written
