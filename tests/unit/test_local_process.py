"""Processes are ended by identity, with everything they started, and no other process ever is."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from floodmark.local.process import ProcessIdentity, end_session, kill_session, read_record, write_record
from floodmark.local.waiting import wait_until

# A leader with a child of its own, as a service with a JVM has; both tell that they run.
FAMILY = """
import pathlib, signal, subprocess, sys, time
if {stubborn}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path({told!r}).write_text(str(child.pid))
time.sleep(600)
"""


class Family:
    def __init__(self, told: Path, *, stubborn: bool = False) -> None:
        code = FAMILY.format(told=str(told), stubborn=stubborn)
        self.leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        self.identity = ProcessIdentity.of(self.leader.pid)
        assert wait_until(lambda: told.exists() and told.read_text() != "", timeout_ms=10_000)
        self.child = ProcessIdentity.of(int(told.read_text()))


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    family = Family(tmp_path / "told")
    yield family
    kill_session(family.identity)
    family.leader.wait()


def test_ending_a_session_ends_what_the_leader_started(family: Family) -> None:
    """The child ignores nothing but was never asked: it goes with its leader."""
    end_session(family.identity, grace_ms=10_000)
    assert not family.identity.is_running()
    assert not family.child.is_running()


def test_session_is_found_after_its_leader_was_killed(family: Family) -> None:
    """A crash of the leader does not hide its children."""
    family.leader.kill()
    family.leader.wait()
    assert family.child.is_running()
    kill_session(family.identity)
    assert not family.child.is_running()


def test_process_with_the_same_pid_and_another_birth_is_left_alone(family: Family) -> None:
    """A pid found in an old note may belong to anyone by now."""
    stranger = replace(family.identity, created_s=family.identity.created_s - 3600)
    assert not stranger.is_running()
    end_session(stranger, grace_ms=100)
    assert family.identity.is_running()
    assert family.child.is_running()


@pytest.mark.parametrize("hurry", [False, True])
def test_process_that_ignores_sigterm_is_killed_after_the_grace_or_in_a_hurry(tmp_path: Path, hurry: bool) -> None:
    """Nobody may stay because it does not listen; a second Ctrl-C makes the grace short."""
    stubborn = Family(tmp_path / "told", stubborn=True)
    began = time.monotonic()
    end_session(stubborn.identity, grace_ms=60_000 if hurry else 300, hurry=lambda: hurry)
    assert not stubborn.identity.is_running()
    assert stubborn.leader.wait() == -9
    assert time.monotonic() - began < 30


def test_record_brings_back_the_identity(tmp_path: Path) -> None:
    """What one command noted down, another one finds."""
    path = tmp_path / "run" / "kafka.json"
    identity = ProcessIdentity.of(psutil.Process().pid)
    write_record(path, identity)
    assert read_record(path) == identity
    assert [file.name for file in path.parent.iterdir()] == ["kafka.json"]
    assert read_record(tmp_path / "absent.json") is None
