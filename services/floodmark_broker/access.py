"""Who may do what: a bearer token is a reader's or an admin's; without tokens, whoever is on this machine is both.

A token is never logged, kept as its hash, and compared in constant time with every token there is.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from floodmark_broker.config import is_loopback


class Role(IntEnum):
    """In order: who may do more may do everything below."""

    READER = 1
    ADMIN = 2


class AccessRefused(Exception):
    """The request is not to be answered. `status` is 401 when nobody is known, 403 when somebody may not."""

    def __init__(self, status: int, rule: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens by their hashes. With none of them everybody on this machine is an admin."""

    tokens: tuple[tuple[bytes, Role], ...] = ()

    @classmethod
    def of(cls, *, read: Iterable[str], admin: Iterable[str]) -> "Access":
        readers = [(_digest(token), Role.READER) for token in read]
        return cls((*readers, *((_digest(token), Role.ADMIN) for token in admin)))

    def role(self, headers: Mapping[str, str]) -> Role:
        """Who asks, or a refusal."""
        if not self.tokens:
            _check_host(headers.get("host", ""))
            return Role.ADMIN
        scheme, _, token = headers.get("authorization", "").partition(" ")
        presented = _digest(token.strip())
        # Every token is compared, so that the time taken tells nothing of which came close.
        found = [role for known, role in self.tokens if hmac.compare_digest(known, presented)]
        if scheme.lower() != "bearer" or not found:
            raise AccessRefused(401, "unauthorized", "send a token: Authorization: Bearer ...")
        return max(found)


def require(role: Role, needed: Role) -> None:
    if role < needed:
        raise AccessRefused(403, "forbidden", f"this needs a token of the role {needed.name.lower()}")


def _check_host(host: str) -> None:
    """A page in a browser can reach loopback through a name of its own, but cannot lie about that name."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if not is_loopback(name):
        raise AccessRefused(403, "host", f"Host {host[:80]!r} is not this machine; use 127.0.0.1 or localhost")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
