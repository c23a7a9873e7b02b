"""`floodmark ledger protect`: what is there gets an owner, when authentication is turned on or a password changes."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from click.testing import Result
from kazoo.exceptions import NoAuthError
from typer.testing import CliRunner

from floodmark.cli.main import app
from floodmark.core.errors import Unavailable
from floodmark.ledger.access import Access
from floodmark.ledger.paths import ROOT
from floodmark.ledger.store import Create, Node
from floodmark.local.zookeeper import ZooKeeperServer
from tests.support.ledger_kit import zookeeper_store
from tests.support.servers import plain_client

FIRST, SECOND = Access("floodmark", "the first password"), Access("floodmark", "the second password")
PATHS = [f"{ROOT}/tables/rides", f"{ROOT}/tables/rides/slices", f"{ROOT}/tables/rides/slices/0"]
Cli = Callable[..., Result]


@pytest.fixture
def hosts(zookeeper: ZooKeeperServer) -> str:
    return f"{zookeeper.hosts}/{uuid.uuid4().hex}"


@pytest.fixture
def protect(hosts: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """The command, run in this process as somebody."""

    def run(access: Access, *arguments: str) -> Result:
        if access.username:
            monkeypatch.setenv("FLOODMARK_ZOOKEEPER__USERNAME", access.username)
            monkeypatch.setenv("FLOODMARK_ZOOKEEPER__PASSWORD", access.password)
        return CliRunner().invoke(app, ["ledger", "protect", "--zookeeper", hosts, *arguments])

    return run


def fill(hosts: str, access: Access | None = None) -> None:
    with zookeeper_store(hosts, access=access) as store:
        store.commit([Create(path, b"data") for path in PATHS])


def test_an_open_ledger_becomes_its_owners_alone_and_no_version_moves(hosts: str, protect: Cli) -> None:
    """Every node, from the root to the last; a build under way still commits, since versions are what it checks."""
    fill(hosts)
    result = protect(FIRST)
    assert (result.exit_code, result.stdout) == (0, "9 nodes are floodmark's alone\n"), result.output
    with zookeeper_store(hosts, access=FIRST) as store:
        assert store.read_many(PATHS) == [Node(b"data", 0)] * 3
    with plain_client(hosts.partition("/")[0]) as client:
        for path in (ROOT, *PATHS):
            with pytest.raises(NoAuthError):
                client.get(f"/{hosts.partition('/')[2]}{path}")
    assert protect(FIRST).stdout == "9 nodes are floodmark's alone\n"


def test_a_new_password_takes_over_with_the_help_of_the_former(hosts: str, protect: Cli, tmp_path: Path) -> None:
    """An ACL holds a hash of name and password: under the new one alone nothing can be read, let alone changed."""
    fill(hosts, FIRST)
    former = tmp_path / "former"
    former.write_text(f"{FIRST.password}\n")
    refused = protect(SECOND)
    assert refused.exit_code == 69
    assert "zookeeper.password is not what it was made with" in refused.stderr
    result = protect(SECOND, "--former-password-file", str(former))
    assert result.exit_code == 0, result.output
    with zookeeper_store(hosts, access=SECOND) as store:
        assert store.read_many(PATHS) == [Node(b"data", 0)] * 3
    with pytest.raises(Unavailable, match=r"zookeeper.password"), zookeeper_store(hosts, access=FIRST):
        pass


def test_without_a_name_there_is_nobody_to_give_it_to(hosts: str, protect: Cli) -> None:
    """A refusal that names the settings; nothing was asked of ZooKeeper."""
    result = protect(Access())
    assert result.exit_code == 1
    assert result.stderr == "error: nobody: set zookeeper.username and zookeeper.password first\n"


def test_an_open_ledger_under_a_name_is_warned_of(hosts: str) -> None:
    """New nodes would be protected and the old ones not, which looks safe and is not."""
    fill(hosts)
    with structlog.testing.capture_logs() as logs, zookeeper_store(hosts, access=FIRST):
        pass
    warned = [line for line in logs if line["event"] == "ledger_unprotected"]
    assert [line["log_level"] for line in warned] == ["warning"]
    with structlog.testing.capture_logs() as logs, zookeeper_store(f"{hosts}-new", access=FIRST):
        pass
    assert not [line for line in logs if line["event"] == "ledger_unprotected"]
