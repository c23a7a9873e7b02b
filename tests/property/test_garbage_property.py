"""Any history of writers, readers and a janitor: nothing that is named, may be named or may be read is ever deleted.

The model is what the ledger promises: a commit happens only while its writer's hold stands, a reader takes its hold
before it reads the entries. The janitor lists files, reads holds, reads entries, and others act in between.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from floodmark.core.garbage import AttemptFile, Sighting, Terms, Why, judge, sighted

TERMS = Terms(grace_ms=10, skew_ms=3)
STEP_MS = st.sampled_from([0, 5])
"""At the same moment, or later by more than clocks may be apart."""
OFF_MS = st.sampled_from([-TERMS.skew_ms, 0, TERMS.skew_ms])
HOLDS_MAX = 3
"""Few at a time: a crowd of old holds would keep everything and hide what goes wrong without it."""


@dataclass(eq=False)
class Actor:
    """A writer with the file it wrote, or a reader with the files it found. Its clock is a little off."""

    taken_at_ms: int
    registry_version: int = 0
    reader: str = "somebody"
    needs: set[str] = field(default_factory=set)
    written: str | None = None


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.files: dict[str, AttemptFile] = {}
        self.named: str | None = None
        self.holds: list[Actor] = []
        self.deleted: set[str] = set()
        self.ever_unnamed: dict[str, Sighting] = {}
        # A look of the janitor in progress: what it has read so far.
        self.listed: list[AttemptFile] | None = None
        self.held: list[Actor] | None = None

    # -- writers and readers ---------------------------------------------------------------------------------------

    @rule(off_ms=OFF_MS, ms=STEP_MS)
    def a_writer_takes_a_hold_and_writes(self, off_ms: int, ms: int) -> None:
        self._write(off_ms)
        self.now_ms += ms

    @rule(off_ms=OFF_MS, ms=STEP_MS)
    def a_reader_takes_a_hold_and_reads_the_entry(self, off_ms: int, ms: int) -> None:
        self._hold(Actor(self.now_ms + off_ms, needs={self.named} if self.named else set()))
        self.now_ms += ms

    @precondition(lambda self: any(h.written for h in self.holds))
    @rule(data=st.data(), ms=STEP_MS, lets_go=st.booleans())
    def a_writer_commits(self, data: st.DataObject, ms: int, lets_go: bool) -> None:
        """Its hold stands, or the commit would not happen."""
        writer = data.draw(st.sampled_from([h for h in self.holds if h.written]))
        self.named, writer.written = writer.written, None
        if lets_go:
            self.holds.remove(writer)
        self.now_ms += ms

    @rule(off_ms=OFF_MS, ms=STEP_MS)
    def the_bucket_is_built_anew(self, off_ms: int, ms: int) -> None:
        writer = self._write(off_ms)
        self.named = writer.written
        self.holds.remove(writer)
        self.now_ms += ms

    @precondition(lambda self: self.holds)
    @rule(data=st.data(), ms=STEP_MS)
    def a_hold_goes(self, data: st.DataObject, ms: int) -> None:
        """Let go, or run out and removed."""
        self.holds.remove(data.draw(st.sampled_from(self.holds)))
        self.now_ms += ms

    def _write(self, off_ms: int) -> Actor:
        path = f"0/{len(self.files) + len(self.deleted)}"
        self.files[path] = AttemptFile(path, 0, "a", 1, self.now_ms)
        return self._hold(Actor(self.now_ms + off_ms, written=path))

    def _hold(self, actor: Actor) -> Actor:
        self.holds = [*self.holds, actor][-HOLDS_MAX:]  # the oldest goes
        return actor

    # -- the janitor -----------------------------------------------------------------------------------------------

    @rule(ms=STEP_MS)
    def the_janitor_looks_undisturbed(self, ms: int) -> None:
        self.listed, self.held = list(self.files.values()), list(self.holds)
        self.the_janitor_reads_entries_and_deletes(ms)

    @precondition(lambda self: self.listed is None)
    @rule()
    def the_janitor_lists_files(self) -> None:
        self.listed = list(self.files.values())

    @precondition(lambda self: self.listed is not None and self.held is None)
    @rule()
    def the_janitor_reads_holds(self) -> None:
        self.held = list(self.holds)

    @precondition(lambda self: self.held is not None)
    @rule(ms=STEP_MS)
    def the_janitor_reads_entries_and_deletes(self, ms: int) -> None:
        assert self.listed is not None
        assert self.held is not None
        named, now_ms = {self.named} if self.named else set(), self.now_ms
        seen = sighted(self.ever_unnamed, self.listed, named=named, holds=self.held, now_ms=now_ms, terms=TERMS)
        self.ever_unnamed = seen
        for file in self.listed:
            verdict = judge(file, seen.get(file.path), holds=self.held, now_ms=now_ms, terms=TERMS)
            if verdict.why is Why.GARBAGE:
                self.deleted.add(file.path)
                del self.files[file.path]
        self.listed = self.held = None
        self.now_ms += ms

    @invariant()
    def what_an_entry_names_exists(self) -> None:
        assert self.named not in self.deleted

    @invariant()
    def what_somebody_reads_exists(self) -> None:
        assert all(actor.needs.isdisjoint(self.deleted) for actor in self.holds)

    @invariant()
    def what_can_still_be_committed_exists(self) -> None:
        assert all(actor.written not in self.deleted for actor in self.holds)

    def teardown(self) -> None:
        """When everybody has left, one look and a grace period later exactly the named file is there."""
        self.holds.clear()
        for _ in range(2):
            self.the_janitor_looks_undisturbed(TERMS.grace_ms)
        assert set(self.files) == ({self.named} if self.named else set())


World.TestCase.settings = settings(max_examples=400, stateful_step_count=30, deadline=None)
TestWorld = World.TestCase
