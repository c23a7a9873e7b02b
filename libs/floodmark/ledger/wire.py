"""kazoo's sockets and threads, and what they lack: TLS whose buffers are looked into, and the reason of a failure."""

import ssl
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

_SILENT = "it took the connection and did not answer"


class Wire(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no types
    """One for each client."""

    def __init__(self, *, hint: str) -> None:
        super().__init__()
        self._hint = hint
        self.trouble: str | None = None
        """Why the last try to connect came to nothing, as far as can be seen from here."""

    def create_connection(self, *args: Any, **kwargs: Any) -> Any:
        try:
            connection = super().create_connection(*args, **kwargs)
        except OSError as error:
            hint = "; see zookeeper.tls and zookeeper.tls_ca" if isinstance(error, ssl.SSLError) else ""
            self.trouble = f"{error}{hint}"
            raise
        # Until a session comes of it, this is all there is to say: a server that wants TLS just hangs up.
        self.trouble = f"{_SILENT}; {self._hint}"
        return connection

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], others: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """SUBTLE: a server may put several answers into one TLS record. Reading the first takes the whole record off
        the socket; kazoo then waits on a socket that has nothing, while the next answers lie in a buffer, until its
        next ping a third of a session later. A socket with such a buffer is ready, whatever the system says."""
        buffered = [s for s in readers if isinstance(s, ssl.SSLSocket) and s.pending()]
        ready, writable, odd = super().select(readers, writers, others, 0 if buffered else timeout)
        return [*ready, *(s for s in buffered if s not in ready)], writable, odd
