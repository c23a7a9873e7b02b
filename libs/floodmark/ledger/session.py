"""The ZooKeeper session of one process: its state, and the liveness node that ends with it.

CONNECTED <--> SUSPENDED    the connection broke; whether the session lives is unknown, so nothing proceeds
LOST                        the session is over: others may already have taken this process for dead
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import KazooTimeoutError

from floodmark.core.errors import Unavailable
from floodmark.ledger.paths import SERVICES

log = structlog.get_logger()
_LOOK_EVERY_MS = 100


class Session:
    """Connects once. A suspended session comes back by itself; a lost one is reported and never revived here."""

    def __init__(self, *, hosts: str, timeout_ms: int, on_lost: Callable[[], None]) -> None:
        self._hosts = hosts
        self._on_lost = on_lost
        self._client = KazooClient(
            hosts=hosts,
            timeout=timeout_ms / 1000,
            # A restarted server gives each session its full time again: several tries fall into it.
            connection_retry={"max_tries": -1, "delay": 0.1, "backoff": 2, "max_delay": min(2.0, timeout_ms / 5_000)},
        )
        self._client.add_listener(self._changed)
        self._connected = False
        self._lost = False
        self._closing = False

    @property
    def connected(self) -> bool:
        """Whether the session is known to live. Once lost, never again: the new one that kazoo makes is not ours."""
        return self._connected and not self._lost

    @property
    def over(self) -> bool:
        """Whether it was lost or closed: it will never be connected again."""
        return self._lost or self._closing

    @property
    def client(self) -> Any:
        """The kazoo client, for this package alone. kazoo ships no types."""
        return self._client

    def open(self, *, timeout_ms: int, give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for a session; whoever is told to stop meanwhile need not wait to the end."""
        started = self._client.start_async()
        for _ in range(max(timeout_ms // _LOOK_EVERY_MS, 1)):
            if started.wait(_LOOK_EVERY_MS / 1000):
                return
            if give_up():
                break
        self.close()
        raise Unavailable(f"no ZooKeeper answered at {self._hosts} within {timeout_ms} ms")

    def announce(self, service: str, instance: str, facts: Mapping[str, str | int]) -> None:
        """Say that this process lives. The node goes with the session, however the process ends."""
        path = f"{SERVICES}/{service}/{instance}"
        try:
            self._client.create(path, json.dumps(dict(facts)).encode(), ephemeral=True, makepath=True)
        except (KazooException, KazooTimeoutError) as error:
            raise Unavailable(f"liveness node {path} could not be created: {type(error).__name__}") from error

    def close(self) -> None:
        self._closing = True
        self._client.stop()
        self._client.close()

    def _changed(self, state: str) -> None:
        """Called on kazoo's own thread, which must not block."""
        was, self._connected = self._connected, state == KazooState.CONNECTED
        if self._closing:
            return
        if state == KazooState.LOST:
            self._lost = True
            log.error("zookeeper_session_lost", hosts=self._hosts)
            self._on_lost()
        elif state == KazooState.SUSPENDED:
            log.warning("zookeeper_connection_suspended", hosts=self._hosts)
        elif not was:
            log.info("zookeeper_connected", hosts=self._hosts)
