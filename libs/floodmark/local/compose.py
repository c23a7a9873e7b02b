"""The stack in containers: what docker-compose.yml describes, under a name and on ports of its own.

Works with Compose v2 (`docker compose`) and with docker-compose 1.29, which has no `up --wait`.
"""

import os
import secrets
import shutil
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from floodmark.core.errors import Unavailable
from floodmark.local.ports import LOOPBACK, pick_free_ports

LAKE = "/lake"
"""Where the services find the lake."""
HEALTHY_WITHIN_S = 300
LOOK_EVERY_S = 0.5
_PORTS = ("ZOOKEEPER_PORT", "KAFKA_PORT", "INGESTER_PORT", "CONSISTENCY_PORT", "JANITOR_PORT", "BROKER_PORT")


class ComposeStack:
    """One stack, whose variables lie in `directory/.env` and whose lake is `directory/lake`."""

    def __init__(self, directory: Path, file: Path) -> None:
        self.lake = directory / "lake"
        ports = zip(_PORTS, pick_free_ports(len(_PORTS)), strict=True)
        self._variables = {
            "COMPOSE_PROJECT_NAME": f"floodmark-{uuid.uuid4().hex[:8]}",
            "LAKE_DIR": str(self.lake),
            "BROKER_ADMIN_TOKEN": secrets.token_hex(16),
            **{name: str(port) for name, port in ports},
        }
        environ_path = directory / ".env"
        self.command = [*_compose(), "--file", str(file), "--env-file", str(environ_path)]
        self.lake.mkdir(parents=True, exist_ok=True)
        environ_path.touch(mode=0o600)
        environ_path.write_text("".join(f"{name}={value}\n" for name, value in self._variables.items()))

    @property
    def zookeeper(self) -> str:
        return f"{LOOPBACK}:{self._variables['ZOOKEEPER_PORT']}"

    def up(self) -> None:
        """Start everything and wait until all of it is healthy."""
        self._run("up", "--detach")
        deadline_s = time.monotonic() + HEALTHY_WITHIN_S
        while not all(map(_is_well, statuses := self.statuses())):
            if time.monotonic() >= deadline_s:
                ill = ", ".join(status for status in statuses if not _is_well(status))
                raise Unavailable(f"not healthy after {HEALTHY_WITHIN_S} s: {ill}")
            time.sleep(LOOK_EVERY_S)

    def statuses(self) -> list[str]:
        """One line for each container: its name and how it is."""
        label = f"label=com.docker.compose.project={self._variables['COMPOSE_PROJECT_NAME']}"
        command = ["docker", "ps", "--all", "--filter", label, "--format", "{{.Names}}: {{.Status}}"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    def down(self) -> None:
        """Remove containers, networks and volumes, and the views' files, which are another user's."""
        self._run("stop")
        self._run("run", "--rm", "--entrypoint", f"rm -rf {LAKE}/views", "views")
        self._run("down", "--volumes", "--remove-orphans")

    def _run(self, *arguments: str) -> None:
        command = [*self.command, *arguments]
        environ = {**os.environ, **self._variables}
        answer = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise Unavailable(f"{' '.join(command)} failed: {answer.stderr[-1_000:].strip()}")


def _is_well(status: str) -> bool:
    return status.endswith("(healthy)") or ": Exited (0)" in status


def _compose() -> Sequence[str]:
    """How Compose is called here."""
    if docker := shutil.which("docker"):
        plugin = [docker, "compose"]
        if subprocess.run([*plugin, "version"], capture_output=True, check=False).returncode == 0:
            return plugin
    if alone := shutil.which("docker-compose"):
        return [alone]
    raise Unavailable("neither `docker compose` nor docker-compose is installed")
