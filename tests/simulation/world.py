"""One run: everything started from a plan, stepped until it rests, judged all the while."""

import gc
import hashlib
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog
from structlog.typing import EventDict

from floodmark.contracts.topics import ALL_TOPICS
from floodmark.ledger import paths
from floodmark.ledger.store import Delete
from floodmark_consistency.app import Consistency
from tests.simulation import rest
from tests.simulation.bus import POLL_AT_PEACE_MS, SimBus
from tests.simulation.faults import Mishaps
from tests.simulation.files import Disk, Stored
from tests.simulation.hub import Hub, Life, Violation
from tests.simulation.messages import Messages
from tests.simulation.oracle import Oracle
from tests.simulation.person import BASE, Person
from tests.simulation.plan import HORIZON_MS, PROCESSES, Act, Plan, drawn
from tests.simulation.processes import Process, Surroundings, substituted
from tests.simulation.sizes import SmallWrites
from tests.simulation.store import ObservedStore

LOOK_EVERY_MS = 1_000
QUIET_MS = 6_000
"""Nothing changed for so long: every period of every service has passed at least once, sweep and janitor included."""
PINNED_MS = 60_000
"""Nothing changed for so long and it is not as it should be: it will never be."""
GIVE_UP_MS = 600_000
"""For so long no view got another bucket. At the edges of a long stretch they may be built one by one."""
STEPS_MAX = 150_000
PARTITIONS = 2
MARKED_WITHIN_MS = 3_000
"""The maximum age of a mark, and some time for the loop to come round."""
PEACE_MS = HORIZON_MS + 500


@dataclass(frozen=True)
class Result:
    plan: Plan
    rule: str
    """Empty when nothing was found wrong."""
    message: str
    steps: int
    virtual_ms: int
    mishaps: tuple[str, ...]
    story: tuple[tuple[int, str, str], ...]

    @property
    def trace(self) -> str:
        """Every step in words; two runs of one seed give the same bytes."""
        begun_ms = self.plan.start_ms
        return "".join(f"{(at - begun_ms) / 1000:8.3f}  {who:<18} {what}\n" for at, who, what in self.story)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.trace.encode()).hexdigest()


class World:
    def __init__(self, plan: Plan, left_out: Collection[str] = ()) -> None:
        self.plan = plan
        self.hub = Hub(str(plan.seed), plan.start_ms)
        self.mishaps = Mishaps(str(plan.seed), plan.mishap_rate, plan.lossy, left_out)
        self.disk = Disk(self.hub, self.mishaps)
        self.store = ObservedStore()
        self.bus = SimBus({topic.name: PARTITIONS for topic in ALL_TOPICS})
        self.oracle = Oracle(self.hub, self.store, self.disk)
        Messages(self.oracle, self.bus, plan)
        relying = self.hub.judging(self.oracle.relying)
        around = Surroundings(
            self.hub,
            self.store,
            self.bus,
            self.disk,
            self.mishaps,
            relying,
            SmallWrites(self.store, plan.write_items_max),
            plan.part_bytes_max,
        )
        self.around = around
        self.person = Person(around, plan, self.oracle)
        self.processes = {
            f"{service}-{n}": Process(around, service, n) for service, count in PROCESSES for n in range(1, count + 1)
        }
        self._vanished: dict[str, tuple[Stored, int]] = {}
        """Each with how often something had been put in its place by then."""
        self._rests_since_ms = 0
        self._last_seen: object = None
        self._buckets, self._grew_at_ms = 0, plan.start_ms
        self._at_rest = False
        self.hub.on_crash = self._crashed

    def run(self) -> Result:
        rule = message = ""
        hub = self.hub
        with substituted(self.around), captured(hub):
            try:
                self._begin()
                hub.run(lambda: self._at_rest, steps_max=STEPS_MAX)
            except Violation as found:
                rule, message = found.rule, str(found)
            finally:
                hub.end([self.person.life, *(life for p in self.processes.values() for life in p.lives)])
        virtual_ms = hub.now_ms - self.plan.start_ms
        mishaps = tuple(self.mishaps.happened)
        return Result(self.plan, rule, message, hub.steps, virtual_ms, mishaps, tuple(hub.story))

    def _begin(self) -> None:
        hub, start_ms = self.hub, self.plan.start_ms

        def open_table() -> None:
            self.person.begin()
            for process in self.processes.values():
                hub.at(hub.now_ms + hub.randomness.randint(0, 400), process.start)

        self.person.life.spawn(open_table, "create table")
        for act in self.plan.acts:
            hub.at(start_ms + 1_000 + act.at_ms, lambda act=act: self._do(act))  # type: ignore[misc]
        hub.at(start_ms + 1_000 + PEACE_MS, self._make_peace)

    def _crashed(self, life: Life, error: Exception) -> None:
        process = next((p for p in self.processes.values() if life in p.lives), None)
        if process is None:
            self.hub.fail(error)
        else:
            process.crashed(life, error)

    # -- what happens --------------------------------------------------------------------------------------------------

    def _do(self, act: Act) -> None:
        self.hub.note("plan", str(act))
        if process := self.processes.get(act.subject):
            self._afflict(process, act)
        elif act.kind == "slow disk":
            self.disk.slow_until_ms = self.hub.now_ms + act.number
        elif act.kind == "lose topic":
            self.bus.delete_topic(act.subject)
        elif act.kind == "rebalance":
            self.bus.group(f"floodmark.{act.subject}").change_places()
            self.bus.wake()
        elif act.kind == "two leaders":
            self._depose(act.subject)
        elif act.kind == "vanish":
            self._vanish(act)
        else:
            self.person.act(act)
            if act.kind == "stream":
                self.hub.at(self.hub.now_ms + act.number - 500, self._judge_debounce)

    def _afflict(self, process: Process, act: Act) -> None:
        does: dict[str, Callable[[], None]] = {
            "crash": process.crash,
            "kill spark": process.kill_spark,
            "stop": process.ask_to_stop,
            "pause": lambda: process.pause(act.number),
            "cut store": lambda: process.cut_store(act.number),
            "cut bus": lambda: process.cut_bus(act.number),
            "lag": lambda: process.lag(act.number),
            "jump clock": lambda: process.jump_clock(act.number),
        }
        does[act.kind]()

    def _judge_debounce(self) -> None:
        """An endless stream of events does not postpone a mark (5.1), as far as its service is well."""
        for process in self.processes.values():
            service, life = process.built, process.life
            if not isinstance(service, Consistency) or life is None or life.paused_until_ms:
                continue
            for hearing in service.marker._hearings.values():
                if self.hub.now_ms - hearing.pending._first_ms > MARKED_WITHIN_MS:
                    raise Violation("5.1 a mark is put off", f"{process.name} hears without marking")

    def _depose(self, role: str) -> None:
        """The leader's node goes while it leads: until its next look there may be two."""
        path = f"{paths.LEADERS}/{role}"
        if self.store.read(path):
            self.store.commit([Delete(path)])

    def _vanish(self, act: Act) -> None:
        """A whole file is away for a while. One that is being written is not: put back, it would never be whole."""
        path = f"{act.subject}.parquet"
        if self.disk.is_whole(BASE, path) and (stored := self.disk.take_away(BASE, path)):
            self._vanished[path] = stored, len(self.disk.puts[path])
            self.hub.at(self.hub.now_ms + act.number, lambda: self._put_back(path))

    def _put_back(self, path: str) -> None:
        """Unless somebody has written there since: what was written may have been deleted again, and stays so."""
        stored, puts = self._vanished.pop(path, (None, 0))
        if stored is not None and len(self.disk.puts[path]) == puts:
            self.disk.put_back(BASE, path, stored)
            crc = zlib.crc32(stored.content)
            if all((s.path, s.crc) != (path, crc) for s in self.oracle.segments.values()):
                self.person.announce_again(path)  # it was refused while it was away

    def _make_peace(self) -> None:
        """From here on nothing goes wrong any more; what is wrong already has to come right."""
        self.hub.note("plan", "peace")
        self.mishaps.rate, self.mishaps.lossy = 0, False
        self.bus.poll_ms = POLL_AT_PEACE_MS
        self.disk.slow_until_ms = 0
        for process in self.processes.values():
            process.jump_clock(0)
        for path in list(self._vanished):
            self._put_back(path)
        self._rests_since_ms = self.hub.now_ms
        self._look()

    # -- rest ----------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Unchanged for long enough, and as it should be: then the run is over."""
        hub, seen = self.hub, self._seen()
        if seen != self._last_seen:
            self._last_seen, self._rests_since_ms = seen, hub.now_ms
        buckets = sum(len(view.entries) for view in self.oracle.views.values())
        if buckets > self._buckets:
            self._grew_at_ms = hub.now_ms
        self._buckets = buckets
        quiet_ms, gives_up = hub.now_ms - self._rests_since_ms, hub.now_ms - self._grew_at_ms > GIVE_UP_MS
        if quiet_ms >= QUIET_MS or gives_up:
            found = list(rest.complaints(self.oracle, self.bus, self.plan, hub.now_ms))
            if not found:
                self._at_rest = True
            elif quiet_ms >= PINNED_MS or gives_up:
                raise Violation(f"{found[0].split(' ')[0]} at rest", "; ".join(found))
        hub.at(hub.now_ms + LOOK_EVERY_MS, self._look)

    def _seen(self) -> object:
        """All that is durable and matters: nodes but for holds and ephemeral ones, and files."""
        passing = (paths.LEADERS, paths.SERVICES, paths.holds("t") + "/")
        nodes = {path: node.version for path, node in self.store.nodes.items() if not path.startswith(passing)}
        return nodes, set(self.disk.files)


@contextmanager
def captured(hub: Hub) -> Iterator[None]:
    """What the services log is part of the story."""

    def keep(_: object, __: str, event: EventDict) -> EventDict:
        life = hub.current.life.instance if hub.current else "-"
        name = event.pop("event")
        facts = " ".join(f"{key}={value}" for key, value in sorted(event.items()) if value is not None)
        hub.note(life, f"{name} {facts}")
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[keep],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        cache_logger_on_first_use=False,
    )
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
        structlog.configure(**before)


def run_seed(seed: int) -> Result:
    return World(drawn(seed)).run()
