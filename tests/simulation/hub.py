"""Virtual time and who runs next: every thread of every simulated process is a greenlet, and one loop steps them all.

    heap of (when, who) --earliest--> switch to it --> it runs until its next port call, which takes time --> heap

A port call (store, bus, file, sleep) is the only place where another may run, as it is the only place where anything
another process could notice happens. How long each call takes is drawn from the seed, and that is what decides the
interleaving. Nothing here looks at a real clock, so a seed runs the same way every time.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any, ParamSpec

from greenlet import greenlet

P = ParamSpec("P")
Entry = tuple[int, int, "Task | None", int, Callable[[], None] | None]


class Killed(BaseException):
    """The process of this greenlet is dead. Not an Exception, so that nothing under test goes on after it."""


class Violation(Exception):
    """A rule was broken. `rule` is short and stable; the message tells the case."""

    def __init__(self, rule: str, message: str) -> None:
        super().__init__(f"{rule}: {message}")
        self.rule = rule


class Life:
    """One run of one process: from its start to its end, crash or stop. What it knew dies with it."""

    def __init__(self, hub: "Hub", name: str, number: int = 0, *, skew_ms: int = 0) -> None:
        self.hub = hub
        self.name = name
        self.instance = f"{name}.{number}"
        self.alive = True
        self.paused_until_ms = 0
        self.skew_ms = skew_ms
        self.tasks: dict[Task, None] = {}
        self.calls = 0
        self.die: Callable[[], None] | None = None
        """Ends this life at once, as `kill -9` does."""
        self.randomness = random.Random(f"{hub.seed}/{self.instance}")
        self.timing = random.Random(f"{hub.seed}/timing/{self.instance}")
        """How long its calls take. Each has its own: what is left out of a plan then changes little elsewhere."""

    # -- the clock port ------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.hub.now_ms + self.skew_ms

    def monotonic_ms(self) -> int:
        return self.hub.now_ms

    def sleep_ms(self, duration_ms: int) -> None:
        self.hub.sleep(max(1, duration_ms))

    # -- threads -------------------------------------------------------------------------------------------------------

    def spawn(self, work: Callable[[], None], name: str = "") -> "Task":
        return self.hub.spawn(self, work, name)

    def perish(self) -> None:
        """Die in the middle of what this very thread does."""
        assert self.die is not None, f"{self.name} has nobody to start it again"
        self.die()
        raise Killed

    def kill(self) -> None:
        """Everything it was doing ends here. Whatever its `finally` blocks still try meets a dead process."""
        self.alive = False
        current = self.hub.current
        for task in list(self.tasks):
            if task is not current:
                task.end()
        self.tasks.clear()


class Task:
    """One thread of a process."""

    def __init__(self, hub: "Hub", life: Life, work: Callable[[], None], name: str) -> None:
        self.life = life
        self.name = name
        self.token = 0
        self.done = False
        self.waiting_to_end: list[Task] = []
        self._hub = hub
        self._work = work
        self.greenlet = greenlet(self._run, hub.loop)

    def _run(self) -> None:
        try:
            self._work()
        except Killed:
            pass
        finally:
            self.done = True
            self.life.tasks.pop(self, None)
            for waiter in self.waiting_to_end:
                self._hub.wake(waiter)

    def end(self) -> None:
        """Unwind it. A dead process has no effects any more, so this takes no virtual time."""
        if not self.done and self.greenlet:
            before, self._hub.current = self._hub.current, self
            self.greenlet.parent = greenlet.getcurrent()
            self.greenlet.throw(Killed())
            self._hub.current = before
        self.done = True


class Hub:
    """The loop, its clock, and the notes of what happened."""

    def __init__(self, seed: str, start_ms: int) -> None:
        self.seed = seed
        self.now_ms = start_ms
        self._timing = random.Random(f"{seed}/timing")
        self.current: Task | None = None
        self.steps = 0
        self.story: list[tuple[int, str, str]] = []
        self.loop = greenlet.getcurrent()
        self.failure: Exception | None = None
        self.on_crash: Callable[[Life, Exception], None] = lambda _life, error: self.fail(error)
        self._heap: list[Entry] = []
        self._sequence = 0
        # Most calls are quick; one in a while takes long enough for anything to come in between.
        self._quick_max_ms = self._timing.choice((2, 8, 30))
        self._slow_share = self._timing.choice((0.0, 0.02, 0.1))

    # -- for whoever schedules -----------------------------------------------------------------------------------------

    def spawn(self, life: Life, work: Callable[[], None], name: str = "") -> Task:
        def guarded() -> None:
            try:
                work()
            except Exception as error:
                self.on_crash(life, error)

        task = Task(self, life, guarded, name)
        life.tasks[task] = None
        self._push(self.now_ms + self.randomness.randint(0, 3), task)
        return task

    def at(self, when_ms: int, act: Callable[[], None]) -> None:
        """Call this then. For what happens to processes, not inside one."""
        self._sequence += 1
        heapq.heappush(self._heap, (when_ms, self._sequence, None, 0, act))

    def run(self, until: Callable[[], bool], *, steps_max: int) -> None:
        """Step until this holds. Raises what was found wrong."""
        heap = self._heap
        while not until():
            if self.steps >= steps_max:
                raise Violation("INV-10 no rest", f"still busy after {self.steps} steps")
            when_ms, _, task, token, act = heapq.heappop(heap)
            if task is None:
                self.now_ms = max(self.now_ms, when_ms)
                assert act is not None
                act()
            elif task.token == token and not task.done and task.life.alive:
                if task.life.paused_until_ms > when_ms:
                    self._push(task.life.paused_until_ms + self.randomness.randint(0, 5), task)
                    continue
                self.now_ms = max(self.now_ms, when_ms)
                self.steps += 1
                self.current = task
                task.greenlet.switch()
                self.current = None
            if self.failure is not None:
                raise self.failure

    def fail(self, error: Exception) -> None:
        """Something is wrong; the first to be noticed counts."""
        if self.failure is None:
            self.failure = error

    def judging(self, judge: Callable[P, None]) -> Callable[P, None]:
        """What is found wrong inside a service counts, even if the service catches it."""

        def judged(*args: P.args, **named: P.kwargs) -> None:
            try:
                judge(*args, **named)
            except Violation as found:
                self.fail(found)
                raise

        return judged

    # -- for whoever runs ----------------------------------------------------------------------------------------------

    @property
    def randomness(self) -> random.Random:
        return self._timing if self.current is None else self.current.life.timing

    def latency_ms(self) -> int:
        chance = self.randomness
        if self._slow_share and chance.random() < self._slow_share:
            return chance.randint(50, 1_500)
        return chance.randint(1, self._quick_max_ms)

    def sleep(self, duration_ms: int) -> None:
        """Let others run for so long."""
        task = self.running
        self._push(self.now_ms + duration_ms, task)
        self._switch(task)

    def wait(self, timeout_ms: int) -> None:
        """As sleep, but `wake` may end it sooner."""
        self.sleep(timeout_ms)

    def wake(self, task: "Task | None") -> None:
        if task is not None and not task.done:
            self._push(self.now_ms + self.randomness.randint(0, 3), task)

    def join(self, task: Task) -> None:
        me = self.running
        while not task.done:
            task.waiting_to_end.append(me)
            self._switch(me)

    @property
    def running(self) -> Task:
        task = self.current
        assert task is not None, "a port is called from outside a process"
        if not task.life.alive:
            raise Killed
        return task

    def note(self, who: str, what: str) -> None:
        self.story.append((self.now_ms, who, what))

    def _push(self, when_ms: int, task: Task) -> None:
        task.token += 1
        self._sequence += 1
        heapq.heappush(self._heap, (when_ms, self._sequence, task, task.token, None))

    def _switch(self, task: Task) -> None:
        self.loop.switch()
        self.current = task
        if not task.life.alive:
            raise Killed

    def end(self, lives: list[Life]) -> None:
        """Unwind what is left, so that nothing of this run outlives it."""
        for life in lives:
            life.kill()


# -- what production code takes from `threading` and `concurrent.futures` ----------------------------------------------


class Lock:
    """A lock that may be held through a port call."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._held = False
        self._waiting: list[Task] = []

    def __enter__(self) -> None:
        while self._held:
            me = self._hub.running
            self._waiting.append(me)
            self._hub.sleep(60_000)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            self._hub.wake(task)


class Event:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._set = False
        self._waiting: list[Task] = []

    def set(self) -> None:
        self._set = True
        for task in self._waiting:
            self._hub.wake(task)

    def wait(self, timeout_s: float) -> bool:
        if not self._set:
            me = self._hub.running
            self._waiting.append(me)
            self._hub.wait(int(timeout_s * 1000))
            self._waiting.remove(me)
        return self._set


class Thread:
    def __init__(self, *, target: Callable[[], None], name: str, daemon: bool, hub: Hub) -> None:
        self._target = target
        self._name = name
        self._hub = hub
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._hub.running.life.spawn(self._target, self._name)

    def join(self) -> None:
        assert self._task is not None
        self._hub.join(self._task)


class Threads:
    """Stands where a module says `threading`."""

    def __init__(self, hub: Hub, starting: Callable[[], None]) -> None:
        self._hub = hub
        self._starting = starting

    def Event(self) -> Event:  # noqa: N802 - the name it replaces
        return Event(self._hub)

    def Thread(self, **given: Any) -> Thread:  # noqa: N802 - the name it replaces
        self._starting()
        return Thread(**given, hub=self._hub)


class Pool:
    """A thread pool of one process."""

    def __init__(self, life: Life, threads_max: int) -> None:
        self._life = life
        self._free = threads_max
        self._waiting: list[Callable[[], None]] = []

    def submit(self, work: Callable[[], None], /) -> None:
        self._waiting.append(work)
        if self._free:
            self._free -= 1
            self._life.spawn(self._serve, "pool")

    def map(self, work: Callable[[Any], Any], items: Any) -> list[Any]:
        return [work(item) for item in items]

    def shutdown(self, **_: object) -> None:
        """Threads here end with their process."""

    def _serve(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()
        self._free += 1
