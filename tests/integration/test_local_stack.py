"""The stack on one machine, for real: ZooKeeper and Kafka as processes, driven by the command's own functions."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from floodmark.core.errors import Unavailable
from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import LOOPBACK, is_free, pick_free_port
from floodmark.local.services import SERVICES
from floodmark.local.stack import take_down
from floodmark.local.zookeeper import ZooKeeperEnsemble, ZooKeeperServer
from tests.support.eventually import eventually
from tests.support.servers import plain_client

pytestmark = pytest.mark.stack

COMMAND = """
import typer
from floodmark.cli import stack
app = typer.Typer()
for command in (stack.fetch, stack.up, stack.down, stack.status):
    app.command()(command)
app()
"""
ANY_PORTS = ["--zookeeper-port", "0", "--kafka-port", "0", "--kafka-controller-port", "0", "--http-port-base", "0"]
UP = ["up", "--no-services", *ANY_PORTS]
SLOW_TO_END = """
import os, signal, sys, time
from pathlib import Path
from floodmark.local import stack
from floodmark.local.process import ProcessIdentity, write_record
directory = Path(sys.argv[1])
lock = stack._lock(directory)
assert lock.try_acquire()
write_record(stack._record_path(directory, stack.SUPERVISOR), ProcessIdentity.of(os.getpid()))
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it is waited for, however soon it comes
print("up", flush=True)
signal.sigwait({signal.SIGTERM})
lock.release()
time.sleep(1)  # as long as an interpreter may take to end on a busy machine
"""


class Stack:
    """One directory and the commands that are run on it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(arguments),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**os.environ, **environ},
        )

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command without waiting, in a process group of its own as a shell would."""
        return subprocess.Popen(
            self._command(arguments), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
        )

    def status(self) -> dict[str, dict[str, Any]]:
        return {row["name"]: row for row in json.loads(self.run("status", "--json").stdout)}

    def processes(self) -> list[psutil.Process]:
        """Every living process that names this directory on its command line: servers and detached supervisors."""
        return [process for process in psutil.process_iter() if self._names_me(process)]

    def is_clean(self) -> bool:
        """Nothing runs, and no note says that something does."""
        return not self.processes() and not list((self.directory / "run").iterdir())

    def _names_me(self, process: psutil.Process) -> bool:
        try:
            is_living = process.status() != psutil.STATUS_ZOMBIE
            return is_living and any(f"{self.directory}" in part for part in process.cmdline())
        except psutil.Error:
            return False

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        # The directory is absolute only for the processes the command starts, so that the command does not count.
        return [sys.executable, "-c", COMMAND, *arguments, "--dir", os.path.relpath(self.directory)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path / "my stack")  # with a space, as home directories have them
    yield stack
    if stack.directory.exists():
        stack.run("down")
    assert not stack.processes()


def test_down_returns_when_the_supervisor_has_ended_and_not_when_it_lets_go_of_its_lock(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", SLOW_TO_END, str(tmp_path)], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"up\n"
        assert take_down(tmp_path, report=lambda _: None)
        assert supervisor.poll() == 0


def test_stack_comes_up_tells_its_state_heals_and_leaves_no_process(stack: Stack) -> None:
    """Up, a second up refused, a killed server brought back, down: afterwards nothing runs and nothing is half done."""
    names = ["zookeeper", "kafka", *(service.name for service in SERVICES)]
    up = stack.run("up", "--detach", *ANY_PORTS)
    assert up.returncode == 0, up.stderr
    assert [line.split()[0].lower() for line in up.stdout.splitlines() if " ready on " in line] == names
    before = stack.status()
    assert [(row["name"], row["ready"]) for row in before.values()] == [(name, True) for name in names]
    pids = [row["pid"] for row in before.values()]
    assert len(stack.processes()) >= 3  # both servers and the supervisor: what is_clean looks for can be found

    again = stack.run(*UP)
    assert again.returncode == 1
    assert f"a stack already runs in {stack.directory} (pid " in again.stderr

    os.kill(before["zookeeper"]["pid"], signal.SIGKILL)

    def healed() -> bool:
        now = stack.status()["zookeeper"]
        return bool(now["ready"]) and now["pid"] != before["zookeeper"]["pid"]

    eventually(healed, what="ZooKeeper running again")
    assert "exited with signal SIGKILL" in (stack.directory / "logs" / "up.log").read_text()

    down = stack.run("down")
    assert down.returncode == 0, down.stderr
    assert stack.is_clean()
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert stack.run("status").returncode == 3
    nothing = stack.run("down")
    assert (nothing.returncode, "nothing runs in" in nothing.stdout) == (0, True)


def test_ctrl_c_twice_stops_everything_in_order(stack: Stack) -> None:
    """The terminal's signal reaches the supervisor alone, and an impatient second one leaves nothing behind."""
    foreground = stack.begin(*UP)
    eventually((stack.directory / "run" / "kafka.json").exists, what="Kafka being started")
    os.killpg(foreground.pid, signal.SIGINT)
    os.killpg(foreground.pid, signal.SIGINT)
    output, _ = foreground.communicate(timeout=60)
    assert foreground.returncode == 0, output
    stopped = [line.split()[0] for line in output.splitlines() if " stopped" in line]
    assert stopped == ["Kafka", "ZooKeeper"]
    assert stack.is_clean()


@pytest.mark.parametrize("command", ["down", "up"])
def test_orphans_of_a_killed_supervisor_are_stopped(stack: Stack, command: str) -> None:
    """After a kill -9 of the supervisor its servers live on; `down` ends them, and so does the next `up` first."""
    foreground = stack.begin(*UP)
    record = stack.directory / "run" / "zookeeper.json"
    orphan = eventually(lambda: record.exists() and json.loads(record.read_text())["pid"], what="ZooKeeper's note")
    foreground.kill()
    foreground.communicate(timeout=10)
    assert psutil.pid_exists(orphan)
    # The port is taken by another on purpose: this `up` shall clean, then refuse, and not take time to start.
    with socket.create_server((LOOPBACK, 0)) as server:
        port = str(server.getsockname()[1])
        answer = stack.run("down") if command == "down" else stack.run("up", "--zookeeper-port", port)
    assert f"ZooKeeper (pid {orphan}) was left by a killed supervisor; stopped it" in answer.stdout
    assert stack.is_clean()


def test_taken_port_is_told_before_anything_starts(stack: Stack) -> None:
    """The message says which port, for what, and who has it."""
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        answer = stack.run("up", *ANY_PORTS, "--kafka-port", str(port))
    assert answer.returncode == 1
    assert f"port {port} for Kafka is taken by pid {os.getpid()} (" in answer.stderr
    assert not (stack.directory / "logs").exists()
    assert stack.is_clean()


def test_old_java_is_told_before_anything_starts(stack: Stack, tmp_path: Path) -> None:
    """A fake Java 11 comes first in JAVA_HOME; the stack refuses and says what it found and needs."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.22\"' >&2\n")
    java.chmod(0o755)
    answer = stack.run(*UP, JAVA_HOME=str(tmp_path / "jdk"))
    assert answer.returncode == 1
    assert f"Java 11 found at {java}, need 17 or newer" in answer.stderr
    assert not stack.directory.exists()


def test_failed_detached_start_is_told_to_the_caller(stack: Stack) -> None:
    """`--detach` returns the supervisor's own reason, not a pointer to a log."""
    answer = stack.run("up", "--detach", "--zookeeper-port", "21900", "--kafka-port", "21900")
    assert answer.returncode == 1
    assert "port 21900 is asked for both" in answer.stderr
    assert stack.is_clean()


def test_zookeeper_keeps_its_data_and_leaves_a_neighbour_alone(
    private_zookeeper: ZooKeeperServer, tmp_path: Path
) -> None:
    """A node outlives a stop and a kill -9; another server in another directory does not notice either."""
    neighbour = ZooKeeperServer(tmp_path / "neighbour", pick_free_port())
    neighbour.start()
    try:
        with plain_client(neighbour.hosts) as watching:
            session_id = watching.client_id
            with plain_client(private_zookeeper.hosts) as client:
                client.create("/kept", b"value")
            private_zookeeper.restart()
            private_zookeeper.kill()
            assert is_free(private_zookeeper.port)
            private_zookeeper.start()
            with plain_client(private_zookeeper.hosts) as client:
                assert client.get("/kept")[0] == b"value"
            assert watching.exists("/kept") is None
            assert watching.client_id == session_id
    finally:
        neighbour.stop()


def test_ensemble_serves_while_any_one_is_down(private_ensemble: ZooKeeperEnsemble) -> None:
    """Two of three are a quorum, and the third comes back with what it missed."""
    first, *others = private_ensemble.servers
    first.kill()
    with plain_client(",".join(server.hosts for server in others)) as client:
        client.create("/written-by-two", b"")
    first.start()
    with plain_client(first.hosts) as client:
        client.sync("/")
        assert client.exists("/written-by-two") is not None


def test_kafka_keeps_its_topics_across_restarts_and_a_change_of_ports(private_kafka: KafkaServer) -> None:
    """A topic outlives a stop, also when the next start uses other ports."""
    admin = AdminClient({"bootstrap.servers": private_kafka.bootstrap})
    admin.create_topics([NewTopic("kept", num_partitions=3)])["kept"].result(timeout=20)
    private_kafka.stop()
    directory = private_kafka.home.parent
    moved = KafkaServer(directory, pick_free_port(), pick_free_port())
    moved.start()
    try:
        topics = AdminClient({"bootstrap.servers": moved.bootstrap, "log_level": 0}).list_topics(timeout=20).topics
        assert len(topics["kept"].partitions) == 3
    finally:
        moved.stop()


def test_server_that_cannot_start_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    """The end of the server's own log is part of the message."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        server = ZooKeeperServer(tmp_path, taken.getsockname()[1])
        with pytest.raises(Unavailable, match=r"(?s)ZooKeeper exited with code \d+ before it was ready.*in use"):
            server.start()
    assert server.identity() is None
