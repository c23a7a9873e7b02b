"""A real Kafka on loopback: one process that is broker and controller, without ZooKeeper (KRaft)."""

import base64
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from floodmark.bus.probe import kafka_ready
from floodmark.core.errors import Unavailable
from floodmark.local.component import Component
from floodmark.local.files import write_atomically
from floodmark.local.jars import ensure_kafka_jars, kafka_classpath
from floodmark.local.jvm import java_command, write_logging
from floodmark.local.ports import LOOPBACK, is_listening

HEAP_MB = 512
FORMAT_TIMEOUT_S = 60

# One broker on a small machine: everything the defaults keep three times is kept once.
_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
# After a kill -9 the new process is turned away until the old one's session has run out.
broker.session.timeout.ms=4000
broker.heartbeat.interval.ms=1000
num.network.threads=2
num.io.threads=4
log.cleaner.dedupe.buffer.size=16777216
"""


class KafkaServer(Component):
    """One Kafka. Its data does not depend on its ports, which may change between starts.

    One that asks for a login takes more lines of configuration, which win, users to be made when it is formatted, and
    what a client is told to be let in.
    """

    def __init__(
        self,
        directory: Path,
        port: int,
        controller_port: int,
        *,
        more: str = "",
        users: Sequence[str] = (),
        client_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(directory, name="kafka", title="Kafka", port=port)
        self._controller_port = controller_port
        self._more = more
        self._users = users
        self._client_options = client_options
        self._jars: Path | None = None

    @property
    def bootstrap(self) -> str:
        return self.address

    def prepare(self) -> None:
        self._jars = ensure_kafka_jars()
        write_logging(self.home)
        data = self.home / "data"
        if not data.exists():
            self._format(data)
        write_atomically(self.home / "server.properties", self._configuration(data))

    def command(self) -> list[str]:
        return self._java("kafka.Kafka", [str(self.home / "server.properties")])

    def is_ready(self) -> bool:
        """The plain connection comes first because it answers at once when nothing listens."""
        return is_listening(self.port) and kafka_ready(self.bootstrap, self._client_options)

    def _format(self, data: Path) -> None:
        """Formatting happens beside the data directory and ends in a rename, so it is done wholly or not at all."""
        unfinished = self.home / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        properties = self.home / "format.properties"
        write_atomically(properties, self._configuration(unfinished))
        users = [part for user in self._users for part in ("--add-scram", user)]
        command = self._java(
            "kafka.tools.StorageTool", ["format", "-t", new_cluster_id(), "-c", str(properties), *users]
        )
        answer = subprocess.run(
            command,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=FORMAT_TIMEOUT_S,
            check=False,
            start_new_session=True,  # a Ctrl-C is the supervisor's to act on, and must not look like a failed format
        )
        if answer.returncode != 0:
            raise Unavailable(f"formatting Kafka's storage in {unfinished} failed:\n{answer.stdout}{answer.stderr}")
        unfinished.rename(data)
        properties.unlink()

    def _configuration(self, data: Path) -> str:
        own = _CONFIGURATION.format(host=LOOPBACK, port=self.port, controller_port=self._controller_port, data=data)
        return own + self._more

    def _java(self, main: str, arguments: list[str]) -> list[str]:
        assert self._jars is not None, "prepare comes before command"
        return java_command(classpath=kafka_classpath(self._jars), main=main, arguments=arguments, heap_mb=HEAP_MB)


def new_cluster_id() -> str:
    """Kafka's form of a UUID: URL-safe base64 without padding. It must not begin with a dash, or reads as an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
