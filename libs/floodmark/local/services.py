"""The services of this project, and how each runs on one machine."""

import http.client
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from floodmark.local.component import Component
from floodmark.local.ports import LOOPBACK

SETTINGS_FILE = "floodmark.toml"
"""In the directory of a stack: settings of its services, if somebody put them there."""


@dataclass(frozen=True, slots=True)
class Service:
    """A service by its name and the package that `python -m` runs."""

    name: str
    module: str


SERVICES: tuple[Service, ...] = (
    Service("ingester", "floodmark_ingester"),
    Service("consistency", "floodmark_consistency"),
    Service("scheduler", "floodmark_scheduler"),
    Service("worker", "floodmark_worker"),
    Service("janitor", "floodmark_janitor"),
    Service("broker", "floodmark_broker"),
)


class ServiceProcess(Component):
    """One replica of a service, connected to the stack's own ZooKeeper and Kafka."""

    ready_within_ms = 240_000  # Spark takes ten seconds to start, and many times that on a machine that is busy
    grace_ms = 25_000  # a service has 20 s of its own to finish work; leave it the time to say so

    def __init__(self, directory: Path, service: Service, port: int, *, zookeeper_hosts: str, bootstrap: str) -> None:
        super().__init__(directory, name=service.name, title=service.name, port=port)
        self._module = service.module
        self._configuration_path = directory / SETTINGS_FILE
        self._zookeeper_hosts = zookeeper_hosts
        self._bootstrap = bootstrap

    def prepare(self) -> None:
        """A service is configured by its environment and the stack's floodmark.toml; it has no files of its own."""

    def command(self) -> list[str]:
        return [sys.executable, "-m", self._module]

    def environment(self) -> dict[str, str]:
        own = {
            "FLOODMARK_ZOOKEEPER__HOSTS": self._zookeeper_hosts,
            "FLOODMARK_KAFKA__BOOTSTRAP": self._bootstrap,
            "FLOODMARK_HTTP__HOST": LOOPBACK,
            "FLOODMARK_HTTP__PORT": str(self.port),
            "FLOODMARK_LOG__FORMAT": "json",
            "FLOODMARK_RUNTIME__REPLICA": f"{self.name}-1",
        }
        if self.name == "broker":
            own["FLOODMARK_BROKER__VIEWS_LOCATION"] = str(self._configuration_path.parent / "views")
        if self._configuration_path.exists():
            own["FLOODMARK_CONFIG"] = str(self._configuration_path)
        return {**os.environ, **own}

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
