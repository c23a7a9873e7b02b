"""kazoo's sockets under TLS: what lies in a buffer is ready to be read."""

import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
import trustme

from floodmark.ledger.wire import Wire


@pytest.fixture
def ends() -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Both ends of a TLS connection, as kazoo has its own: it does not block."""
    authority = trustme.CA()
    at_server, at_client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("zookeeper.test").configure_cert(at_server)
    authority.configure_trust(at_client)
    theirs, ours = socket.socketpair()
    accepted: list[ssl.SSLSocket] = []
    thread = threading.Thread(target=lambda: accepted.append(at_server.wrap_socket(theirs, server_side=True)))
    thread.start()
    client = at_client.wrap_socket(ours, server_hostname="zookeeper.test")
    thread.join()
    client.setblocking(False)
    return accepted[0], client


def test_a_second_answer_in_the_same_record_is_ready_although_the_socket_is_empty(
    ends: tuple[ssl.SSLSocket, ssl.SSLSocket],
) -> None:
    """Otherwise it is read when kazoo pings next, and whoever asked waits a third of a session for it."""
    server, client = ends
    wire = Wire(hint="")
    idle, _ = socket.socketpair()
    server.sendall(b"first" + b"second")
    assert wire.select([client, idle], [], [], 10)[0] == [client]
    assert client.recv(5) == b"first"
    started_s = time.monotonic()
    assert wire.select([client, idle], [], [], 60)[0] == [client]
    assert time.monotonic() - started_s < 30
    assert client.recv(100) == b"second"
    assert wire.select([client, idle], [], [], 0)[0] == []


def test_a_buffered_answer_does_not_hide_what_else_is_ready(ends: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    """kazoo is woken through a second socket when there is a request to send."""
    server, client = ends
    wire = Wire(hint="")
    woken, waker = socket.socketpair()
    server.sendall(b"first" + b"second")
    wire.select([client], [], [], 10)
    client.recv(5)
    waker.send(b"\0")
    assert set(wire.select([client, woken], [], [], 10)[0]) == {client, woken}


def test_why_a_connection_came_to_nothing_is_kept(tmp_path: Path) -> None:
    """The only other trace of it is a warning of kazoo's, which is silent because it repeats it at every try."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    wire = Wire(hint="it may want TLS there")
    wire.create_connection(("127.0.0.1", port), timeout=5).close()
    assert wire.trouble == "it took the connection and did not answer; it may want TLS there"
    listener.close()
    with pytest.raises(OSError, match="refused"):
        wire.create_connection(("127.0.0.1", port), timeout=5)
    assert wire.trouble is not None
    assert "refused" in wire.trouble
