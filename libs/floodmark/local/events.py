"""What happens to a stack, as values: shown on a terminal, written to a log, sent through a pipe."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Kind(StrEnum):
    NOTED = "noted"  # something the user should know; `detail` is the whole sentence
    STARTING = "starting"
    READY = "ready"
    EXITED = "exited"  # unasked
    STOPPING = "stopping"
    STOPPED = "stopped"
    UP = "up"  # every component is ready
    FAILED = "failed"  # the stack did not come up; `detail` says why


@dataclass(frozen=True, slots=True)
class Event:
    kind: Kind
    component: str = ""
    detail: str = ""
    elapsed_ms: int = 0


Report = Callable[[Event], None]


def encode(event: Event) -> str:
    """One line of JSON."""
    return json.dumps(asdict(event)) + "\n"


def decode(line: str) -> Event:
    fields = json.loads(line)
    return Event(**{**fields, "kind": Kind(fields["kind"])})
