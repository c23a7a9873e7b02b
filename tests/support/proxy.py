"""A TCP proxy on loopback that misbehaves on command, and two that know what passes: ZooKeeper's writes, and what Kafka
says of its brokers.

    client  --requests-->  proxy  --requests-->  server
            <--answers---         <--answers---

A packet of ZooKeeper or Kafka is a length of four bytes and that many bytes more. ZooKeeper's first packet each way is
the handshake; afterwards a request begins with its xid and opcode, and an answer with the xid it answers. A request to
Kafka begins with what it asks, its version and a number, and an answer with the number it answers.
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
_METADATA = 3
_METADATA_COMPACT = 9
"""Since this version lengths are short."""


@dataclass(eq=False)
class Link:
    """One connection of a client and the connection to the server that serves it."""

    client: socket.socket
    server: socket.socket
    requests: int = 0
    answer_to_lose: int | None = None
    """The xid of the write whose answer shall not arrive."""
    about_brokers: set[int] = field(default_factory=set)
    """The numbers of requests to Kafka that ask which brokers there are."""

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
        self._left_s = time.monotonic()
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

    @property
    def alone_s(self) -> float:
        """For how long nobody has been connected."""
        with self._lock:
            return 0 if self._links else time.monotonic() - self._left_s

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

    def request(self, link: Link, piece: bytes) -> bytes:
        """What goes to the server for this piece; if nothing does, the connection ends here."""
        return piece

    def answer(self, link: Link, piece: bytes) -> bytes:
        """What goes to the client for this piece; if nothing does, the connection ends here."""
        return piece

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
        self._pass(link, link.client, link.server, self._requests_flow, self.request)

    def _pass_answers(self, link: Link) -> None:
        self._pass(link, link.server, link.client, self._answers_flow, self.answer)

    def _pass(
        self,
        link: Link,
        source: socket.socket,
        sink: socket.socket,
        flow: threading.Event,
        passed: Callable[[Link, bytes], bytes],
    ) -> None:
        with suppress(OSError):
            while piece := self.receive(source):
                flow.wait()
                if not (changed := passed(link, piece)):
                    break
                sink.sendall(changed)
        link.close()
        with self._lock:
            self._links.discard(link)
            self._left_s = time.monotonic()


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
        return _read_packet(source)

    def request(self, link: Link, piece: bytes) -> bytes:
        link.requests += 1
        if link.requests == 1:
            return piece  # the handshake has neither xid nor opcode
        xid, opcode = struct.unpack_from(">ii", piece, 4)
        if opcode not in _VERSIONED_WRITES:
            return piece
        self.writes += 1
        time.sleep(self.delay_ms / 1000)  # the slow network itself, not a wait
        fault = self._faults.popleft() if self._faults else Fault.NONE
        if fault is Fault.ANSWER_LOST:
            link.answer_to_lose = xid
        return b"" if fault is Fault.REQUEST_LOST else piece

    def answer(self, link: Link, piece: bytes) -> bytes:
        if link.answer_to_lose is None or struct.unpack_from(">i", piece, 4)[0] != link.answer_to_lose:
            return piece
        self.after_loss()
        return b""


class KafkaProxy(TcpProxy):
    """A proxy in front of one Kafka that clients do not get past: it tells them its own port for Kafka's.

    On command it says that there are no brokers, as a Kafka does that has just begun to start.
    """

    def __init__(self, upstream_port: int) -> None:
        super().__init__(upstream_port)
        self.knows_no_brokers = False
        self.said_so = 0
        """To how many questions it answered that there are no brokers."""
        self._upstream_told, self._told = (LOOPBACK.encode() + struct.pack(">i", p) for p in (upstream_port, self.port))

    def __enter__(self) -> "KafkaProxy":
        super().__enter__()
        return self

    def receive(self, source: socket.socket) -> bytes:
        return _read_packet(source)

    def request(self, link: Link, piece: bytes) -> bytes:
        asks, version, number = struct.unpack_from(">hhi", piece, 4)
        if asks == _METADATA:
            assert version >= _METADATA_COMPACT, f"this client speaks version {version}, whose arrays look otherwise"
            link.about_brokers.add(number)
        return piece

    def answer(self, link: Link, piece: bytes) -> bytes:
        piece = piece.replace(self._upstream_told, self._told)
        (number,) = struct.unpack_from(">i", piece, 4)
        if number not in link.about_brokers:
            return piece
        link.about_brokers.discard(number)
        if not self.knows_no_brokers:
            return piece
        self.said_so += 1
        return _without_brokers(piece)


def _without_brokers(piece: bytes) -> bytes:
    """An answer about one broker, and one about none instead. Lengths are one byte each and one more than they say."""
    first = 4 + 4 + 1 + 4  # length of the packet, number, no tags, throttle
    at = first + 1
    assert piece[first] == 2, f"there are {piece[first] - 1} brokers, not one"
    at += 4  # node
    at += piece[at]  # host
    at += 4  # port
    at += max(piece[at], 1)  # rack, or none
    at += 1  # no tags
    body = piece[4:first] + b"\1" + piece[at:]
    return struct.pack(">i", len(body)) + body


def _open_gate() -> threading.Event:
    gate = threading.Event()
    gate.set()
    return gate


def _read_packet(source: socket.socket) -> bytes:
    """A whole one, or nothing when the other side ended, be it in the middle."""
    head = _read_exactly(source, 4)
    body = _read_exactly(source, struct.unpack(">i", head)[0]) if head else b""
    return head + body if body else b""


def _read_exactly(source: socket.socket, size: int) -> bytes:
    """So many bytes, or none when the other side ended."""
    read = b""
    while len(read) < size:
        piece = source.recv(size - len(read))
        if not piece:
            return b""
        read += piece
    return read
