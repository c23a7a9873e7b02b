"""What is done to a container can be undone, whatever became of it meanwhile."""

import pytest

from tests.e2e.stack import Containers

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1_200)]


def test_a_paused_container_is_let_go_and_one_that_was_started_again_needs_nothing(system: Containers) -> None:
    """The engine refuses to unpause what is not paused."""
    replica = system.replicas["janitor-1"]
    replica.pause()
    replica.unpause()
    replica.container.reload()
    assert replica.container.status == "running"
    replica.pause()
    replica.restart()
    replica.unpause()
    system.await_healthy()
