"""What one stack is made of: its directory, its ports, its components; remembered in DIR/stack.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from floodmark.core.errors import InvalidInput
from floodmark.local.component import Component
from floodmark.local.files import write_atomically
from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import choose_ports
from floodmark.local.services import Service, ServiceProcess
from floodmark.local.zookeeper import ZooKeeperServer

ZOOKEEPER = "zookeeper"
KAFKA = "kafka"
KAFKA_CONTROLLER = "kafka-controller"
DEFAULT_PORTS = {ZOOKEEPER: 2181, KAFKA: 9092, KAFKA_CONTROLLER: 9093}
HTTP_PORT_BASE = 8180

_HEADER = "# Written by `floodmark up`; change the ports with its flags.\n"
_TITLES = {ZOOKEEPER: "ZooKeeper", KAFKA: "Kafka", KAFKA_CONTROLLER: "Kafka's controller"}


@dataclass(frozen=True, slots=True)
class StackConfig:
    """Everything that decides how a stack runs."""

    directory: Path
    ports: Mapping[str, int]
    services: tuple[Service, ...]

    def components(self) -> tuple[Component, ...]:
        """In the order in which they start."""
        zookeeper = ZooKeeperServer(self.directory, self.ports[ZOOKEEPER])
        kafka = KafkaServer(self.directory, self.ports[KAFKA], self.ports[KAFKA_CONTROLLER])
        services = (
            ServiceProcess(
                self.directory,
                service,
                self.ports[service.name],
                zookeeper_hosts=zookeeper.hosts,
                bootstrap=kafka.bootstrap,
            )
            for service in self.services
        )
        return (zookeeper, kafka, *services)

    def titled_ports(self) -> dict[str, int]:
        """The ports by the names that messages use."""
        return {title_of(name): port for name, port in self.ports.items()}


def title_of(name: str) -> str:
    return _TITLES.get(name, name)


def stack_file(directory: Path) -> Path:
    return directory / "stack.toml"


def configure(directory: Path, *, services: tuple[Service, ...], asked: Mapping[str, int]) -> StackConfig:
    """Settle the ports of a stack from what is asked for now and what it used before."""
    http = {service.name: HTTP_PORT_BASE + n for n, service in enumerate(services)}
    before = read(directory)
    ports = choose_ports(defaults=DEFAULT_PORTS | http, remembered=before.ports if before else {}, asked=asked)
    return StackConfig(directory, ports, services)


def changed_ports(config: StackConfig) -> list[str]:
    """A sentence for each port that is not the remembered one."""
    before = read(config.directory)
    return [
        f"the port of {title_of(name)} changes from {before.ports[name]} to {port}, as asked"
        for name, port in config.ports.items()
        if before and before.ports.get(name, port) != port
    ]


def save(config: StackConfig) -> None:
    """Remember this stack, and the ports of services that do not run this time."""
    before = read(config.directory)
    ports = {**(before.ports if before else {}), **config.ports}
    services = [f'"{service.name}" = "{service.module}"' for service in config.services]
    lines = [_HEADER, "[ports]", *(f'"{name}" = {port}' for name, port in ports.items()), "", "[services]", *services]
    write_atomically(stack_file(config.directory), "\n".join([*lines, ""]))


def read(directory: Path) -> StackConfig | None:
    """The stack that was started here last; None before the first start."""
    path = stack_file(directory)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("stack-file", f"{path} is not TOML: {error}; mend it or delete it") from error
    ports, modules = tables.get("ports", {}), tables.get("services", {})
    for name in (*DEFAULT_PORTS, *modules, *ports):
        port = ports.get(name)
        if not isinstance(port, int) or not 1 <= port <= 65_535:
            raise InvalidInput("stack-file", f"{path} has {name} = {port!r}; a port is a number from 1 to 65535")
    return StackConfig(directory, ports, tuple(Service(name, module) for name, module in modules.items()))
