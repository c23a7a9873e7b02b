"""The detached supervisor: `python -m floodmark.local REQUEST PIPE`, started by `floodmark up --detach` only."""

import sys
from datetime import UTC, datetime

from floodmark.local.detached import EventPipe, StackRequest, supervise
from floodmark.local.events import Event
from floodmark.local.progress import describe


def log(event: Event) -> None:
    """Standard output is DIR/logs/up.log."""
    sys.stdout.write(f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {describe(event)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(supervise(StackRequest.decode(sys.argv[1]), log=log, pipe=EventPipe(int(sys.argv[2]))))
