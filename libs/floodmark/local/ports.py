"""Ports on loopback: which are free, who has the others, and which a stack will use."""

import errno
import random
import socket
from collections.abc import Callable, Iterable, Mapping

import psutil

from floodmark.core.errors import InvalidInput, Unavailable

LOOPBACK = "127.0.0.1"
# Below the range from which operating systems draw the source ports of outgoing connections (32768 and up), so that
# a port found free is still free when a server binds it seconds later.
_PICK_FROM = range(20_000, 32_000)
_PICKS_MAX = 1_000


def is_free(port: int) -> bool:
    """Whether a server could listen on this loopback port now. Connections still closing down do not count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
    return True


def is_listening(port: int) -> bool:
    """Whether something accepts connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False


def pick_free_port(avoid: Iterable[int] = ()) -> int:
    """A free port, drawn at random so that two stacks starting together hardly ever draw the same."""
    avoided = set(avoid)
    draw = random.SystemRandom()
    for _ in range(_PICKS_MAX):
        port = draw.choice(_PICK_FROM)
        if port not in avoided and is_free(port):
            return port
    raise Unavailable(f"no free port among {_PICKS_MAX} drawn from {_PICK_FROM.start} to {_PICK_FROM.stop - 1}")


def pick_free_ports(count: int) -> tuple[int, ...]:
    ports: list[int] = []
    while len(ports) < count:
        ports.append(pick_free_port(avoid=ports))
    return tuple(ports)


def holder_of(port: int) -> str:
    """Who listens on a port, as far as the operating system lets us see: `pid 123 (java)`."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            is_listener = connection.status == psutil.CONN_LISTEN and connection.pid is not None
            if is_listener and connection.laddr and connection.laddr.port == port:
                return f"pid {connection.pid} ({psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass  # the answer only makes a message friendlier
    return "another process"


def require_free(ports: Mapping[str, int]) -> None:
    """Refuse a set of named ports when two are equal or one is taken, before anything is started."""
    owners: dict[int, str] = {}
    for name, port in ports.items():
        if port in owners:
            raise InvalidInput("ports-differ", f"port {port} is asked for both {owners[port]} and {name}")
        owners[port] = name
    for name, port in ports.items():
        if not is_free(port):
            raise Unavailable(f"port {port} for {name} is taken by {holder_of(port)}")


def choose_ports(
    *,
    defaults: Mapping[str, int],
    remembered: Mapping[str, int],
    asked: Mapping[str, int],
    free: Callable[[int], bool] = is_free,
    pick: Callable[[Iterable[int]], int] = pick_free_port,
) -> dict[str, int]:
    """One port for each name in `defaults`: the one asked for, else the one used before, else the default.

    Zero means any: the one used before while it is free, otherwise a newly picked one.
    """
    wanted = {name: asked.get(name, remembered.get(name, default)) for name, default in defaults.items()}
    chosen = {name: port for name, port in wanted.items() if port != 0}
    for name in (name for name, port in wanted.items() if port == 0):
        before = remembered.get(name)
        keep = before is not None and before not in chosen.values() and free(before)
        chosen[name] = before if keep and before is not None else pick(chosen.values())
    return {name: chosen[name] for name in defaults}
