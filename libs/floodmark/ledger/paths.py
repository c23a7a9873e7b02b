"""Where everything lies. One module writes each kind of node."""

from functools import lru_cache

from floodmark.core.names import checked_name

ROOT = "/floodmark"
TABLES = f"{ROOT}/tables"
VIEWS = f"{ROOT}/views"
DROPPED = f"{ROOT}/dropped"
SERVICES = f"{ROOT}/services"
LEADERS = f"{ROOT}/leaders"


@lru_cache
def table(name: str) -> str:
    return f"{TABLES}/{checked_name(name, what='table')}"


def slices(name: str) -> str:
    return f"{table(name)}/slices"


def slice_(name: str, key: str) -> str:
    return f"{slices(name)}/{key}"


def part(name: str, key: str, number: int) -> str:
    return f"{slice_(name, key)}/{number}"


def dependents(name: str) -> str:
    """Its version moves with every view that is created on the table, and when the table is dropped."""
    return f"{table(name)}/dependents"


def outbox(name: str) -> str:
    return f"{table(name)}/outbox"


def outbox_event(name: str, version: int) -> str:
    return f"{outbox(name)}/{version:020d}"


def holds(name: str) -> str:
    return f"{table(name)}/holds"


def condemned(name: str) -> str:
    return f"{table(name)}/condemned"


def condemned_at(name: str, version: int) -> str:
    return f"{condemned(name)}/{version:020d}"


def refused(name: str) -> str:
    return f"{table(name)}/refused"


@lru_cache
def view(name: str) -> str:
    return f"{VIEWS}/{checked_name(name, what='view')}"


def fence(name: str, incarnation: str) -> str:
    """Exists exactly as long as this incarnation of the view may be written to."""
    return f"{fences(name)}/{incarnation}"


def closed(name: str, incarnation: str) -> str:
    """Stands instead of the fence while this incarnation is taken down, or not yet wholly imported."""
    return f"{fences(name)}/{incarnation}.closed"


def fences(name: str) -> str:
    return f"{view(name)}/fence"


def dropped(incarnation: str) -> str:
    """The note of a view that is gone, and whose files may not be."""
    return f"{DROPPED}/{incarnation}"


def shards(name: str) -> str:
    return f"{view(name)}/shards"


runs = shards
"""The content of the node above the shards: the runs of shards that have no node of their own."""

touched = fences
"""Set by whoever creates the node of a shard outside of runs. Who makes a run of VACANT shards checks that none was."""


def shard(name: str, number: int) -> str:
    return f"{shards(name)}/{number}"


def dispatch(name: str) -> str:
    return f"{view(name)}/dispatch"


def dispatch_shard(name: str, number: int) -> str:
    return f"{dispatch(name)}/{number}"
