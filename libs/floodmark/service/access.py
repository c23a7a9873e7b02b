"""Who may do what: a bearer token is a reader's or an admin's; without tokens, whoever is on this machine is both.

A token is never logged, kept as its hash, and compared in constant time with every token there is. A service that takes
requests, and not only shows its pages, asks here who sends them.

A page in a browser may post forms and plain text to any address, loopback too, in its user's name. JSON it may post
only where it is welcome, and here it never is: so a body has to be JSON, and its header has to say so.
"""

import hashlib
import hmac
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from pydantic import Field, SecretStr

from floodmark.service.port import Answer, Page, Request

_WITH_BODY = ("POST", "PUT", "PATCH")

Token = Annotated[SecretStr, Field(min_length=16, max_length=1_024)]


class Role(IntEnum):
    """In order: who may do more may do everything below."""

    READER = 1
    ADMIN = 2


class AccessRefused(Exception):
    """The request is not to be answered. `status` is 401 when nobody is known, 403 when somebody may not, 415 when a
    page in a browser could have sent it."""

    def __init__(self, status: int, rule: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Access:
    """The tokens by their hashes. With none of them everybody on this machine is an admin."""

    tokens: tuple[tuple[bytes, Role], ...] = ()

    @classmethod
    def of(cls, *, read: Iterable[SecretStr] = (), admin: Iterable[SecretStr] = ()) -> "Access":
        given = [(token, Role.READER) for token in read] + [(token, Role.ADMIN) for token in admin]
        return cls(tuple((_digest(token.get_secret_value()), role) for token, role in given))

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


def guarded(access: Access, needed: Role, page: Callable[[Request, Role], Answer]) -> Page:
    """The page, for those who may; everybody else is told why not."""

    def answer(request: Request) -> Answer:
        try:
            role = access.role(request.headers)
            require(role, needed)
            _check_kind(request)
            return page(request, role)
        except AccessRefused as error:
            challenge = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
            return Answer.json(error.status, {"rule": error.rule, "reason": str(error)}, challenge)

    return answer


def check_reach(host: str, *, has_tokens: bool, settings: str) -> None:
    """Whoever can be reached from elsewhere asks for a token. `settings` names those that hold them."""
    if not has_tokens and not is_loopback(host):
        raise ValueError(f"http.host {host} can be reached from elsewhere: set {settings}, or listen on 127.0.0.1")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a listener there. A name other than localhost could mean anything."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _check_host(host: str) -> None:
    """A page in a browser can reach loopback through a name of its own, but cannot lie about that name."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if not is_loopback(name):
        raise AccessRefused(403, "host", f"Host {host[:80]!r} is not this machine; use 127.0.0.1 or localhost")


def _check_kind(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (request.body or request.method in _WITH_BODY) and kind != "application/json":
        raise AccessRefused(
            415,
            "content-type",
            f"the body came as {kind[:80] or 'nothing'}; send JSON with the header Content-Type: application/json",
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
