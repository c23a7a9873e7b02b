"""The ZooKeeper session of one process: its state, and the liveness node that ends with it.

CONNECTED <--> SUSPENDED    the connection broke; whether the session lives is unknown, so nothing proceeds
LOST                        the session is over: others may already have taken this process for dead
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    AuthFailedError,
    KazooException,
    NoAuthError,
    SessionClosedRequireSaslError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import make_digest_acl

from floodmark.core.errors import Unavailable
from floodmark.ledger.access import Access
from floodmark.ledger.paths import ROOT, SERVICES
from floodmark.ledger.wire import Wire

log = structlog.get_logger()
_LOOK_EVERY_MS = 100
_ANSWER_WITHIN_S = 10
_REFUSALS = (AuthFailedError, NoAuthError, SessionClosedRequireSaslError)


class Session:
    """Connects once. A suspended session comes back by itself; a lost one is reported and never revived here."""

    def __init__(
        self, *, hosts: str, timeout_ms: int, on_lost: Callable[[], None], access: Access | None = None
    ) -> None:
        self._hosts = hosts
        self._on_lost = on_lost
        self._access = access or Access()
        self._wire = Wire(hint=_hint(self._access))
        self._client = KazooClient(
            hosts=hosts,
            timeout=timeout_ms / 1000,
            handler=self._wire,
            **_secured(self._access),
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
                self._look_in()
                return
            if give_up():
                break
        self.close()
        why = f": {self._wire.trouble}" if self._wire.trouble else ""
        raise Unavailable(f"no ZooKeeper answered at {self._hosts} within {timeout_ms} ms{why}")

    def _look_in(self) -> None:
        """ZooKeeper takes any name and password; whether they fit shows when a node is read."""
        try:
            self._client.get_async(ROOT).get(timeout=_ANSWER_WITHIN_S)
            acl, _ = self._client.get_acls_async(ROOT).get(timeout=_ANSWER_WITHIN_S)
        except _REFUSALS as error:
            self.close()
            raise Unavailable(f"ZooKeeper at {self._hosts} {_refused(self._access)}") from error
        except (KazooException, KazooTimeoutError):
            return  # not there yet; or a connection that broke, of which the next request will tell
        if self._client.default_acl and acl != self._client.default_acl:
            log.warning("ledger_unprotected", node=ROOT, fix="floodmark ledger protect")

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


def _secured(access: Access) -> dict[str, Any]:
    """What kazoo is told. Every node it makes, in a multi or not, gets the default ACL."""
    told: dict[str, Any] = {}
    if access.username:
        told["auth_data"] = access.credentials()
        told["default_acl"] = [make_digest_acl(access.username, access.password, all=True)]
    if access.tls:
        told |= {"use_ssl": True, "check_hostname": access.check_hostname}
        told |= {"ca": access.ca, "certfile": access.cert, "keyfile": access.key}
        told["keyfile_password"] = access.key_password or None
    return told


def _hint(access: Access) -> str:
    if access.tls:
        return "it may want a certificate of ours (zookeeper.tls_cert, zookeeper.tls_key)"
    return "it may want TLS there (zookeeper.tls)"


def _refused(access: Access) -> str:
    if not access.username:
        return f"lets nobody read {ROOT} without a name: set zookeeper.username and zookeeper.password"
    return (
        f"does not let {access.username!r} read {ROOT}: zookeeper.username or zookeeper.password is not what it was "
        "made with"
    )
