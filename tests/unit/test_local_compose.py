"""The stack in containers, with a Compose that is played by a script."""

from pathlib import Path

import pytest

from floodmark.core.errors import Unavailable
from floodmark.local import compose
from floodmark.local.compose import ComposeStack

FILE = Path("docker-compose.yml")


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only programs on the path: a `docker` that has no `compose`, and docker-compose 1.29."""
    directory = tmp_path / "bin"
    directory.mkdir()
    play(directory, "docker", 'case "$1" in ps) echo "f_broker_1: Up 3 seconds (healthy)";; *) exit 1;; esac')
    play(directory, "docker-compose", f'echo "$LAKE_DIR $@" >> {tmp_path}/calls')
    monkeypatch.setenv("PATH", str(directory))
    return directory


def play(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_stack_has_a_name_ports_and_a_token_of_its_own(tmp_path: Path, tools: Path) -> None:
    """Two of them, or one beside a stack of the user's, do not meet."""
    stacks = [ComposeStack(tmp_path / name, FILE) for name in ("one", "other")]
    written = [(tmp_path / name / ".env").read_text().splitlines() for name in ("one", "other")]
    assert not {*written[0]} & {*written[1]}
    assert stacks[0].zookeeper != stacks[1].zookeeper
    assert (tmp_path / "one" / ".env").stat().st_mode & 0o077 == 0, "the token is nobody else's"


def test_it_is_up_when_every_container_is_healthy_and_goes_with_all_it_made(tmp_path: Path, tools: Path) -> None:
    """Volumes too, and the views' files, before the containers that may delete them."""
    stack = ComposeStack(tmp_path, FILE)
    stack.up()
    stack.down()
    calls = (tmp_path / "calls").read_text().splitlines()
    assert all(call.startswith(f"{stack.lake} --file {FILE} --env-file {tmp_path / '.env'} ") for call in calls)
    assert [call.split()[5] for call in calls] == ["up", "stop", "run", "down"]
    assert calls[-1].endswith("down --volumes --remove-orphans")


@pytest.mark.parametrize("status", ["Up 3 seconds (health: starting)", "Up 1 minute (unhealthy)", "Exited (1) 2 s ago"])
def test_a_container_that_does_not_become_healthy_is_named(
    tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    monkeypatch.setattr(compose, "HEALTHY_WITHIN_S", 0)
    play(
        tools,
        "docker",
        f'case "$1" in ps) echo "f_views_1: Exited (0) 9 s ago"; echo "f_kafka_1: {status}";; *) exit 1;; esac',
    )
    with pytest.raises(Unavailable, match=r"not healthy after 0 s: f_kafka_1") as told:
        ComposeStack(tmp_path, FILE).up()
    assert "f_views_1" not in str(told.value)


def test_what_compose_refuses_is_told_in_its_words(tmp_path: Path, tools: Path) -> None:
    play(tools, "docker-compose", "echo 'pull access denied' >&2; exit 1")
    with pytest.raises(Unavailable, match="pull access denied"):
        ComposeStack(tmp_path, FILE).up()


def test_without_compose_it_says_so(tmp_path: Path, tools: Path) -> None:
    (tools / "docker-compose").unlink()
    with pytest.raises(Unavailable, match="neither `docker compose` nor docker-compose"):
        ComposeStack(tmp_path, FILE)
