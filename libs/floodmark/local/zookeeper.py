"""A real ZooKeeper on loopback, alone or as an ensemble of three."""

import socket
from pathlib import Path

from floodmark.local.component import Component
from floodmark.local.files import write_atomically
from floodmark.local.jars import zookeeper_classpath
from floodmark.local.jvm import java_command, write_logging
from floodmark.local.ports import LOOPBACK, pick_free_ports

HEAP_MB = 256
_ANSWER_BYTES_MAX = 64 * 1024

_CONFIGURATION = """\
dataDir={data}
clientPort={port}
clientPortAddress={host}
admin.enableServer=false
4lw.commands.whitelist=ruok,srvr,mntr
# Sessions may be as short as two ticks and as long as twenty; the default tick of 2 s makes failover slow to watch.
tickTime=1000
# Every client comes from the same address here, so a limit for each address would be one for the whole system.
maxClientCnxns=0
autopurge.snapRetainCount=3
autopurge.purgeInterval=24
"""
_ALONE = "org.apache.zookeeper.server.ZooKeeperServerMain"
_TOGETHER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class ZooKeeperServer(Component):
    """One ZooKeeper. `more` are lines of its configuration; those of an ensemble's member name all members."""

    def __init__(
        self, directory: Path, port: int, *, name: str = "zookeeper", member_id: int | None = None, more: str = ""
    ) -> None:
        title = "ZooKeeper" if member_id is None else f"ZooKeeper {member_id}"
        super().__init__(directory, name=name, title=title, port=port)
        self._member_id = member_id
        self._more = more

    @property
    def hosts(self) -> str:
        return self.address

    def prepare(self) -> None:
        data = self.home / "data"
        data.mkdir(exist_ok=True)
        write_logging(self.home)
        own = _CONFIGURATION.format(data=data, port=self.port, host=LOOPBACK)
        write_atomically(self.home / "zoo.cfg", own + self._more)
        if self._member_id is not None:
            write_atomically(data / "myid", f"{self._member_id}\n")

    def command(self) -> list[str]:
        return java_command(
            classpath=zookeeper_classpath(),
            main=_ALONE if self._member_id is None else _TOGETHER,
            arguments=[str(self.home / "zoo.cfg")],
            heap_mb=HEAP_MB,
        )

    def is_ready(self) -> bool:
        """A server without a quorum answers too, but tells no mode."""
        return "\nMode:" in four_letter_word(self.port, "srvr")


class ZooKeeperEnsemble:
    """Three ZooKeepers that survive the loss of any one."""

    def __init__(self, directory: Path, ports: tuple[int, int, int]) -> None:
        # Peers find each other anew at each start, so these need not be remembered.
        peer_ports = iter(pick_free_ports(2 * len(ports)))
        quorum = "".join(
            f"server.{number}={LOOPBACK}:{next(peer_ports)}:{next(peer_ports)}\n" for number in range(1, len(ports) + 1)
        )
        self.servers = tuple(
            ZooKeeperServer(
                directory, port, name=f"zookeeper-{n}", member_id=n, more=f"initLimit=10\nsyncLimit=5\n{quorum}"
            )
            for n, port in enumerate(ports, start=1)
        )

    @property
    def hosts(self) -> str:
        return ",".join(server.hosts for server in self.servers)

    def start(self) -> None:
        """All at once: none is ready before two are there."""
        try:
            for server in self.servers:
                server.spawn()
            for server in self.servers:
                server.await_ready()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def restart(self) -> None:
        self.stop()
        self.start()


def four_letter_word(port: int, word: str) -> str:
    """The answer to one of ZooKeeper's four-letter commands; empty when there is none."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
            connection.sendall(word.encode())
            answer = b""
            while (chunk := connection.recv(4096)) and len(answer) < _ANSWER_BYTES_MAX:
                answer += chunk
            return answer.decode(errors="replace")
    except OSError:
        return ""
