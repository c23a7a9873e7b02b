"""Containers of the whole system: two of each service, as docker-compose.yml describes them, on a network of their own.

The lake lies under the same path in the containers and outside, so that whoever reads the ledger here finds the files.
What a run leaves behind when it is killed, the next one removes: every container carries the process id of its run.
"""

import os
import random
import re
import secrets
import signal
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Testcontainers reads these when it is imported. Its reaper is a container of its own, whose image is nowhere here.
os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"
os.environ.setdefault("TESTCONTAINERS_HOST_OVERRIDE", "127.0.0.1")

import docker
import psutil
import yaml
from docker.errors import DockerException, ImageNotFound
from docker.models.containers import Container
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

import floodmark
from floodmark.client import Connection
from floodmark.core.ports import SystemClock
from floodmark.ledger.ledger import Ledger, ledger_on
from floodmark.local.ports import pick_free_port
from floodmark.local.services import SERVICES
from tests.support.eventually import eventually
from tests.support.ledger_kit import zookeeper_store
from tests.support.oracle import Oracle, Recomputation
from tests.support.service_process import FAST
from tests.support.system import SMALL_SPARK

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "build" / "e2e"
LOGS = ROOT / "build" / "e2e-logs"
"""Of every container of the last run."""
SERVERS = ("zookeeper", "kafka")
REPLICAS = 2
HTTP_PORT = 8180
HEALTHY_WITHIN_S = 420
"""Four Sparks start at once, and the machine may be small and busy."""
RUN_LABEL = "floodmark.e2e.pid"
FOR_TESTS = {**FAST, **SMALL_SPARK, "FLOODMARK_RUNTIME__GRACE_MS": "10000"}
FOR_TESTS |= {
    # A single ZooKeeper that is restarted under load takes a while; sessions of two seconds would not outlive it.
    "FLOODMARK_ZOOKEEPER__SESSION_TIMEOUT_MS": "6000",
    "FLOODMARK_ZOOKEEPER__CONNECT_TIMEOUT_MS": "30000",
    "FLOODMARK_INGESTER__OUTBOX_EVERY_MS": "1000",
    "FLOODMARK_SCHEDULER__UNCLAIMED_MAX_MS": "10000",
    "FLOODMARK_CONSISTENCY__SWEEP_EVERY_MS": "10000",
    "FLOODMARK_JANITOR__EVERY_MS": "5000",
    "FLOODMARK_JANITOR__GRACE_MS": "30000",
}


def why_not() -> str:
    """Why no containers can be had here; empty when they can."""
    try:
        client = docker.from_env(timeout=10)
        client.ping()
    except DockerException as error:
        return f"no Docker engine answers; deploy/start-engine.sh starts one ({error})"
    try:
        for service in compose({}).values():
            client.images.get(service["image"])
    except ImageNotFound as error:
        return f"{error.explanation}; run make images"
    return ""


def compose(variables: Mapping[str, str]) -> dict[str, Any]:
    """The services of docker-compose.yml with these variables, and the defaults of the others."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1], found[2] or "")

    text = re.sub(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)\}", value, (ROOT / "docker-compose.yml").read_text())
    services: dict[str, Any] = yaml.safe_load(text)["services"]
    return services


@dataclass
class Replica:
    """One container, and the port on which this machine finds it: the same one after every restart."""

    name: str
    service: str
    container: Container
    port: int
    network: Network

    @property
    def is_healthy(self) -> bool:
        self.container.reload()
        return self.container.status == "running" and self.container.health == "healthy"

    @property
    def log(self) -> str:
        return self.container.logs(tail=40).decode(errors="replace")

    def keep_log(self) -> None:
        LOGS.mkdir(parents=True, exist_ok=True)
        with (LOGS / f"{self.name}.log").open("wb") as kept:
            kept.writelines(self.container.logs(stream=True, follow=False))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    # -- what may happen to it -------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.container.kill()

    def start(self) -> None:
        self.container.start()

    def pause(self) -> None:
        self.container.pause()

    def unpause(self) -> None:
        """One that ended by itself in the moment it was paused has been started again, and is paused no more."""
        self.container.reload()
        if self.container.status == "paused":
            self.container.unpause()

    def restart(self) -> None:
        self.container.restart(timeout=15)

    def cut_off(self) -> None:
        self.container.client.networks.get(self.network.name).disconnect(self.container, force=True)

    def connect(self) -> None:
        self.network.connect(self.container.id or "", [self.service])


@dataclass
class Containers(Oracle):
    """The system, and this process's view of it: its ledger, its lake, connections to its brokers."""

    directory: Path
    network: Network
    replicas: dict[str, Replica] = field(default_factory=dict)
    recomputations: dict[str, Recomputation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lake = self.directory / "lake"
        self.token = secrets.token_hex(16)
        self.resources = ExitStack()
        for path in (self.lake, self.lake / "views"):
            path.mkdir(parents=True)
            path.chmod(0o777)  # the services are another user
        self._described = compose({"BROKER_ADMIN_TOKEN": self.token, "KAFKA_PORT": "9"})

    def start(self) -> None:
        for name in SERVERS:
            self.add(name, name)
        self.await_healthy()
        for service in SERVICES:
            for number in range(1, REPLICAS + 1):
                self.add(f"{service.name}-{number}", service.name)
        self.await_healthy()
        hosts = f"127.0.0.1:{self.replicas['zookeeper'].port}"
        # Its session is to outlive what is done to ZooKeeper.
        store = self.resources.enter_context(zookeeper_store(hosts, timeout_ms=20_000))
        self.ledger: Ledger = ledger_on(store, clock=SystemClock(), randomness=random.Random())

    def add(self, name: str, service: str) -> None:
        """Start one more container of what docker-compose.yml calls `service`."""
        described = self._described[service]
        port = pick_free_port(avoid=[r.port for r in self.replicas.values()])
        inside = 2181 if service == "zookeeper" else 9092 if service == "kafka" else HTTP_PORT
        container = DockerContainer(described["image"]).with_network(self.network).with_network_aliases(service)
        container.with_envs(**self._environment(service))
        container.ports[str(inside)] = ("127.0.0.1", port)  # type: ignore[assignment] # Docker's way to say: on loopback
        for mount in described.get("tmpfs", ()):
            container.with_tmpfs_mount(*mount.split(":"))
        if service not in SERVERS:
            mode = "ro" if service in ("ingester", "broker") else "rw"
            container.with_volume_mapping(self.lake, str(self.lake), mode)
        container.with_kwargs(hostname=name, labels={RUN_LABEL: str(os.getpid())}, **_limits(described))
        self.resources.callback(container.stop)
        container.start()
        self.replicas[name] = Replica(name, service, container.get_wrapped_container(), port, self.network)

    def _environment(self, service: str) -> dict[str, str]:
        described = dict(self._described[service]["environment"])
        if service in SERVERS:
            return described
        return {**described, **FOR_TESTS, "FLOODMARK_BROKER__VIEWS_LOCATION": str(self.lake / "views")}

    def await_healthy(self, *, within_s: float = HEALTHY_WITHIN_S) -> None:
        def all_healthy() -> bool:
            ill = [r for r in self.replicas.values() if not r.is_healthy]
            assert not ill, f"{[(r.name, r.container.status) for r in ill]}; the first says\n{ill[0].log}"
            return True

        eventually(all_healthy, within_s=within_s, every_s=1, what="every container healthy")

    def of(self, service: str) -> list[Replica]:
        return [r for r in self.replicas.values() if r.service == service]

    def brokers(self, *, timeout_s: float = 120) -> list[Connection]:
        return [floodmark.connect(r.url, token=self.token, timeout_s=timeout_s) for r in self.of("broker")]

    def close(self) -> None:
        """Every container goes, whatever state it is in. What it said stays, for whoever asks why a run failed."""
        try:
            for replica in self.replicas.values():
                replica.keep_log()
        finally:
            self.resources.close()
            wipe(self.directory)


@contextmanager
def containers() -> Iterator[Containers]:
    """The system, up and healthy, and gone afterwards, also when the run is told to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    remove_leftovers()
    directory = RUNS / f"{os.getpid()}-{uuid.uuid4().hex[:8]}"
    with Network(docker_network_kw={"labels": {RUN_LABEL: str(os.getpid())}}) as network:
        made = Containers(directory, network)
        try:
            made.start()
            yield made
        finally:
            made.close()


def remove_leftovers() -> None:
    """Containers, networks and files of runs that were killed before they could clean up."""
    client = docker.from_env()
    for container in client.containers.list(all=True, filters={"label": RUN_LABEL}):
        if not psutil.pid_exists(int(container.labels[RUN_LABEL])):
            container.remove(force=True, v=True)
    for network in client.networks.list(filters={"label": RUN_LABEL}):
        if not psutil.pid_exists(int(network.attrs["Labels"][RUN_LABEL])):
            network.remove()
    for directory in RUNS.glob("*-*"):
        if not psutil.pid_exists(int(directory.name.partition("-")[0])):
            wipe(directory)


def wipe(directory: Path) -> None:
    """Remove a run's files. Those of the views are another user's, so a container does it."""
    inside = {"bind": str(directory), "mode": "rw"}
    remove = ["find", str(directory), "-mindepth", "1", "-delete"]
    docker.from_env().containers.run(
        "floodmark/janitor",
        user="0:0",
        entrypoint=remove,
        volumes={str(directory): inside},
        network_mode="none",
        remove=True,
    )
    directory.rmdir()


def _limits(described: Mapping[str, Any]) -> dict[str, Any]:
    """How docker-compose.yml confines a service, in the words of Docker's library."""
    kept = ("read_only", "cap_drop", "security_opt", "init", "mem_limit", "pids_limit")
    found = {key: described[key] for key in kept if key in described}
    # A service whose session was lost ends and is to be started again; one that is killed here is started by hand.
    found["restart_policy"] = {"Name": described["restart"]}
    if health := described.get("healthcheck"):
        durations = {key: int(health[key].rstrip("s")) * 10**9 for key in ("interval", "timeout", "start_period")}
        found["healthcheck"] = {"test": health["test"], "retries": health["retries"], **durations}
    return found
