"""The system in containers while they are killed, paused, cut off and restarted. E2E_SEED=n repeats a run's choices."""

import os
import random

import pytest

from tests.e2e.faults import Fault, Mischief
from tests.e2e.stack import Containers
from tests.e2e.world import World
from tests.support.eventually import eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(2_400)]
SEED = int(os.environ.get("E2E_SEED", str(random.SystemRandom().getrandbits(32))))


@pytest.mark.scenario("E3")
def test_no_answer_is_wrong_and_no_change_lost_whatever_happens_to_the_containers(system: Containers) -> None:
    """INV-12 and INV-7 for a whole deck of faults: each kind on each service, both servers paused and restarted."""
    print(f"E2E_SEED={SEED}")  # noqa: T201 - a failing run must be repeatable
    world = World(system, random.Random(SEED))
    mischief = Mischief(system, random.Random(SEED), world.achieved)
    cards = len(mischief.deck())
    with world.living() as failed, mischief.running():
        eventually(
            lambda: mischief.dealt >= cards or failed.is_set(), within_s=900, every_s=0.5, what=f"{cards} faults"
        )
    system.await_healthy()
    took_s = world.converge()
    world.check_views()
    print(f"{dict(mischief.done)}, {dict(world.counts)}, converged in {took_s:.1f} s")  # noqa: T201
    print(f"no answer: {world.silences.most_common(8)}")  # noqa: T201
    assert not world.wrong, str(world.wrong[0])
    assert set(mischief.done) == set(Fault)
    assert world.counts["queries"] > 20, world.counts
    assert world.counts["from views"] + world.counts["mixed"] > 0, world.counts
    assert all(world.counts[kind] > 0 for kind in ("late", "replaced", "deleted")), world.counts
