"""Gives every node of the ledger to one name, whoever made it. New nodes are that name's from the start.

A change of an ACL does not change a node's version: no compare-and-set is lost to it.
"""

from typing import Any

from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from floodmark.core.errors import Unavailable
from floodmark.ledger.paths import ROOT
from floodmark.ledger.session import Session

ANSWER_WITHIN_S = 60


def protect(session: Session) -> int:
    """How many nodes are the session's name's alone now. Run again, it changes nothing."""
    client = session.client
    assert client.default_acl, "a session without a name owns nothing"
    level, count = [ROOT], 0
    try:
        while level:
            # Level by level, each asked for in one go: there may be many thousand nodes.
            set_ = [(path, client.set_acls_async(path, client.default_acl)) for path in level]
            listed = [(path, client.get_children_async(path)) for path in level]
            count += sum(_there(answer) is not None for _, answer in set_)
            level = [f"{path}/{name}" for path, answer in listed for name in _there(answer) or ()]
    except (KazooException, KazooTimeoutError) as error:
        raise Unavailable(f"{count} nodes were protected, then: {type(error).__name__}") from error
    return count


def _there(answer: Any) -> Any:
    """The answer; None for a node that has gone meanwhile."""
    try:
        return answer.get(timeout=ANSWER_WITHIN_S)
    except NoNodeError:
        return None
