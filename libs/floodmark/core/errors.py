"""Errors, arranged by what the caller may do next.

    InvalidInput      the input can never succeed: dead-letter it and move on
    Unavailable       nothing was attempted: back off and try again
    SessionLost       the same, and waiting is in vain: only another session can try again
    EngineLost        the same for the engine of this process: only another process can try again
    OutcomeUnknown    it may or may not have happened: re-read before deciding anything
    BudgetExhausted   every try lost: stop, and be redelivered

A broken invariant is our own bug. It is an AssertionError and nothing catches it.
"""


class FloodmarkError(Exception):
    """Root of every error this project raises on purpose."""


class InvalidInput(FloodmarkError):
    """The input breaks a rule. `rule` is a stable id, the message names the object and says what would be right."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Unavailable(FloodmarkError):
    """A server could not be reached; nothing was attempted."""


class SessionLost(Unavailable):
    """The session with a server is over and never comes back; nothing was attempted."""


class EngineLost(Unavailable):
    """The engine that computes for this process is gone and never comes back. No work is to blame for it."""


class OutcomeUnknown(FloodmarkError):
    """A request was sent and no answer came: it may have happened."""


class BudgetExhausted(FloodmarkError):
    """Every try of a named budget was lost."""
