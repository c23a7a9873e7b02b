"""A TCP proxy on loopback that misbehaves on command, and one that knows enough of ZooKeeper to pick out writes.

    client  --requests-->  proxy  --requests-->  server
            <--answers---         <--answers---

A ZooKeeper packet is a length of four bytes and that many bytes more. The first packet each way is the handshake;
afterwards a request begins with its xid and opcode, and an answer with the xid it answers.
"""

import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

from floodmark.local.ports import LOOPBACK

_CHUNK_BYTES = 64 * 1024
_SET_DATA, _MULTI = 5, 14
_VERSIONED_WRITES = (_SET_DATA, _MULTI)


@dataclass(eq=False)
class Link:
    """One connection of a client and the connection to the server that serves it."""

    client: socket.socket
    server: socket.socket
    requests: int = 0
    answer_to_lose: int | None = None
    """The xid of the write whose answer shall not arrive."""

    def close(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes whoever is reading from it
            end.close()


class TcpProxy:
    """Passes bytes on until told otherwise. Use as a context manager."""

    def __init__(self, upstream_port: int) -> None:
        self._upstream = (LOOPBACK, upstream_port)
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections = 0
        """How many were ever let through."""
        self._links: set[Link] = set()
        self._lock = threading.Lock()
        self._cut = False
        self._requests_flow = _open_gate()
        self._answers_flow = _open_gate()

    def __enter__(self) -> "TcpProxy":
        threading.Thread(target=self._accept, name="proxy-accept", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.thaw()  # so that no thread waits for ever

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    # -- commands --------------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Drop every connection, and each new one at once."""
        with self._lock:
            self._cut = True
            links = list(self._links)
        for link in links:
            link.close()

    def heal(self) -> None:
        self._cut = False

    def freeze(self) -> None:
        """Nothing passes and nothing is closed: what a partition looks like, or a process that is stopped."""
        self._requests_flow.clear()
        self._answers_flow.clear()

    def hold_answers(self) -> None:
        """Requests still pass, answers wait."""
        self._answers_flow.clear()

    def thaw(self) -> None:
        """What waited goes on its way, late."""
        self._requests_flow.set()
        self._answers_flow.set()

    # -- what passes -----------------------------------------------------------------------------------------------

    def receive(self, source: socket.socket) -> bytes:
        """The next piece to pass on whole; empty at the end."""
        return source.recv(_CHUNK_BYTES)

    def lets_request(self, link: Link, piece: bytes) -> bool:
        """Whether a piece may go to the server; if not, the connection ends here."""
        return True

    def lets_answer(self, link: Link, piece: bytes) -> bool:
        """Whether a piece may go to the client; if not, the connection ends here."""
        return True

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            if self._cut:
                client.close()
                continue
            try:
                link = Link(client, socket.create_connection(self._upstream, timeout=5))
            except OSError:
                client.close()
                continue
            self._serve(link)

    def _serve(self, link: Link) -> None:
        link.server.settimeout(None)
        with self._lock:
            self._links.add(link)
            self.connections += 1
        for target in (self._pass_requests, self._pass_answers):
            threading.Thread(target=target, args=(link,), name="proxy-link", daemon=True).start()

    def _pass_requests(self, link: Link) -> None:
        self._pass(link, link.client, link.server, self._requests_flow, self.lets_request)

    def _pass_answers(self, link: Link) -> None:
        self._pass(link, link.server, link.client, self._answers_flow, self.lets_answer)

    def _pass(
        self,
        link: Link,
        source: socket.socket,
        sink: socket.socket,
        flow: threading.Event,
        lets: Callable[[Link, bytes], bool],
    ) -> None:
        with suppress(OSError):
            while piece := self.receive(source):
                flow.wait()
                if not lets(link, piece):
                    break
                sink.sendall(piece)
        link.close()
        with self._lock:
            self._links.discard(link)


class Fault(StrEnum):
    """What becomes of one versioned write. Losing either way ends the connection, as a broken one would."""

    NONE = "none"
    REQUEST_LOST = "the connection breaks before the request arrives"
    ANSWER_LOST = "the server has answered, and the connection breaks before the answer arrives"


@dataclass
class ZooKeeperProxy(TcpProxy):
    """A proxy in front of one ZooKeeper that can pick out multis and versioned sets."""

    upstream_port: int
    delay_ms: int = 0
    """How much later than sent each versioned write arrives."""
    after_loss: Callable[[], None] = lambda: None
    """Acts when the server has answered and the client does not know it yet."""
    writes: int = 0
    """Versioned writes that arrived at this proxy."""
    _faults: deque[Fault] = field(default_factory=deque)

    def __post_init__(self) -> None:
        super().__init__(self.upstream_port)

    def __enter__(self) -> "ZooKeeperProxy":
        super().__enter__()
        return self

    def plan(self, *faults: Fault) -> None:
        """What happens to the next versioned writes, one each; those after them pass."""
        self._faults = deque(faults)

    @property
    def planned(self) -> int:
        """How many faults are still to come."""
        return len(self._faults)

    def receive(self, source: socket.socket) -> bytes:
        head = _read_exactly(source, 4)
        return head + _read_exactly(source, struct.unpack(">i", head)[0]) if head else b""

    def lets_request(self, link: Link, piece: bytes) -> bool:
        link.requests += 1
        if link.requests == 1:
            return True  # the handshake has neither xid nor opcode
        xid, opcode = struct.unpack_from(">ii", piece, 4)
        if opcode not in _VERSIONED_WRITES:
            return True
        self.writes += 1
        time.sleep(self.delay_ms / 1000)  # the slow network itself, not a wait
        fault = self._faults.popleft() if self._faults else Fault.NONE
        if fault is Fault.ANSWER_LOST:
            link.answer_to_lose = xid
        return fault is not Fault.REQUEST_LOST

    def lets_answer(self, link: Link, piece: bytes) -> bool:
        if link.answer_to_lose is None or struct.unpack_from(">i", piece, 4)[0] != link.answer_to_lose:
            return True
        self.after_loss()
        return False


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def _read_exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes, or none when the other side ended."""
    read = b""
    while len(read) < size:
        piece = source.recv(size - len(read))
        if not piece:
            return b""
        read += piece
    return read
