"""A Spark standalone cluster on loopback from the pip package: one master, two workers, each a process."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from floodmark.local.ports import pick_free_port, pick_free_ports
from tests.support.eventually import eventually

SPARK_HOME = Path(pyspark.__file__).parent


@contextmanager
def standalone_cluster(directory: Path) -> Iterator[str]:
    """The master's address, once both workers have registered."""
    port = pick_free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as processes:
        master_log = _start(
            processes,
            directory / "master.log",
            "org.apache.spark.deploy.master.Master",
            ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(pick_free_port())],
        )
        eventually(lambda: "I have been elected leader" in master_log.read_text(), within_s=120, what="the master")
        for number, (rpc, ui) in enumerate((pick_free_ports(2), pick_free_ports(2))):
            own = ["--host", "127.0.0.1", "--port", str(rpc), "--webui-port", str(ui)]
            size = ["--cores", "1", "--memory", "1g", "--work-dir", str(directory / f"work-{number}")]
            _start(
                processes,
                directory / f"worker-{number}.log",
                "org.apache.spark.deploy.worker.Worker",
                [*own, *size, url],
            )
        eventually(lambda: master_log.read_text().count("Registering worker") == 2, within_s=120, what="both workers")
        yield url


def _start(processes: ExitStack, log_path: Path, main_class: str, arguments: list[str]) -> Path:
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [str(SPARK_HOME / "bin" / "spark-class"), main_class, *arguments],
            env={
                **os.environ,
                "SPARK_HOME": str(SPARK_HOME),
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stop() -> None:
        process.kill()  # spark-class replaces itself by java: this is the server, not a shell around it
        process.wait()

    processes.callback(stop)
    return log_path
