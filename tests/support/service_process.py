"""A service as a child process of a test: its log as events, its port, its end."""

import http.client
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher
from floodmark.bus.ports import Outgoing
from floodmark.contracts.envelope import encode, originate
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.local.kafka import KafkaServer
from tests.support.eventually import ANSWERED_WITHIN_S, eventually

ROOT = Path(__file__).parents[2]
INGESTER = ("floodmark_ingester",)
FAST = {
    "FLOODMARK_LOG__FORMAT": "json",
    "FLOODMARK_ZOOKEEPER__SESSION_TIMEOUT_MS": "2000",  # the shortest that a tick of one second allows
    "FLOODMARK_ZOOKEEPER__CONNECT_TIMEOUT_MS": "10000",
    "FLOODMARK_KAFKA__SESSION_TIMEOUT_MS": "6000",  # the shortest that a broker allows
    "FLOODMARK_RUNTIME__GRACE_MS": "3000",
}


@dataclass(frozen=True)
class ServiceUnderTest:
    process: subprocess.Popen[bytes]
    log_path: Path

    def events(self, name: str | None = None, **facts: object) -> list[dict[str, Any]]:
        """The lines logged so far, in order: all, or those with this event name and these fields."""
        lines = self.log_path.read_text().splitlines(keepends=True)
        found = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [e for e in found if name in (None, e["event"]) and facts.items() <= e.items()]

    def await_event(self, name: str, *, within_s: float = 60, **facts: object) -> dict[str, Any]:
        def told() -> list[dict[str, Any]]:
            found = self.events(name, **facts)
            assert found, f"the log says\n{self.log_path.read_text()}"
            return found

        return eventually(told, within_s=within_s, what=f"{name} {facts}")[0]

    def ask(self, page: str) -> tuple[int, str]:
        port = self.await_event("http_port_opened")["port"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED_WITHIN_S)
        try:
            connection.request("GET", page)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self, *, within_s: float = 60) -> int:
        return self.process.wait(within_s)


@contextmanager
def service(
    command: Sequence[str], log_path: Path, *, zookeeper: str, kafka: str, **environ: str
) -> Iterator[ServiceUnderTest]:
    """The service, started; whatever becomes of it, it is gone afterwards."""
    own = {"FLOODMARK_ZOOKEEPER__HOSTS": zookeeper, "FLOODMARK_KAFKA__BOOTSTRAP": kafka}
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=ROOT,
            env={**os.environ, **FAST, **own, **environ},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield ServiceUnderTest(process, log_path)
    finally:
        process.kill()
        process.wait()


def new_table() -> str:
    """A name no other test uses."""
    return f"t{uuid.uuid4().hex[:10]}"


def announce(kafka: KafkaServer, table: str, *paths: str, action: str = "add") -> list[str]:
    """Announce one file for each path, durably and in this order. Returns the trace ids."""
    announced = [SegmentAnnounced.model_validate({"table": table, "action": action, "path": p}) for p in paths]
    envelopes = [
        originate(message, event_id=uuid.uuid4().hex, source="test", time_ms=None, trace_id=uuid.uuid4().hex)
        for message in announced
    ]
    records = [encode(envelope) for envelope in envelopes]
    publisher = KafkaPublisher(KafkaConnection(kafka.bootstrap, "test"))
    publisher.publish([Outgoing("announcements.v1", r.key, r.value, r.headers) for r in records])
    publisher.close()
    return [envelope.trace_id for envelope in envelopes]
