"""Teeth: bugs of the kind this system must not have, each put back by a switch, to see that the simulator bites.

A bug is a substitution of real functions, made here and nowhere else; production code has no switches.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

Substitution = tuple[object, str, object]
"""An owner, the name of one of its attributes, and what is to stand there."""


@dataclass(frozen=True)
class Bug:
    name: str
    about: str
    made: Callable[[], list[Substitution]]


BUGS: dict[str, Bug] = {}


def bug(make: Callable[[], list[Substitution]]) -> Callable[[], list[Substitution]]:
    """Register a bug: its name is the function's, and its docstring says what is wrong."""
    name = make.__name__.replace("_", "-")
    assert make.__doc__, f"bug {name} says nothing of itself"
    BUGS[name] = Bug(name, make.__doc__.strip(), make)
    return make


@contextmanager
def switched_on(name: str | None) -> Iterator[None]:
    """One bug, or none, for as long as this lasts."""
    made = BUGS[name].made() if name else []
    before = [(owner, attribute, vars(owner)[attribute]) for owner, attribute, _ in made]
    try:
        for owner, attribute, wrong in made:
            setattr(owner, attribute, wrong)
        yield
    finally:
        for owner, attribute, right in before:
            setattr(owner, attribute, right)
