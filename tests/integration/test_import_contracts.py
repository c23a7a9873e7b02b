"""The direction of imports is held by a machine, and the machine really says no."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINT = Path(sys.executable).with_name("lint-imports")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what import-linter looks at, free to be broken."""
    for source in ("libs", "services"):
        shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(tree: Path) -> tuple[int, str]:
    # The copies come before the installed packages.
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "libs"), str(tree / "services")])}
    command = [LINT, "--no-cache"]
    answer = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return answer.returncode, " ".join((answer.stdout + answer.stderr).split())


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("libs/floodmark/core/offsets.py", "import kazoo", "The core knows no client library"),
        ("libs/floodmark/core/offsets.py", "from floodmark.bus import ports", "Dependencies point inwards"),
        ("libs/floodmark/service/health.py", "import kazoo.client", "Only the ledger talks to ZooKeeper"),
        ("libs/floodmark/ledger/paths.py", "import confluent_kafka", "Only the bus talks to Kafka"),
        ("libs/floodmark/catalog/status.py", "import sqlglot", "Only floodmark.sql and floodmark.query import sqlglot"),
        ("libs/floodmark/query/plan.py", "import pyspark", "Only floodmark.spark, and the worker that starts it"),
        ("libs/floodmark/sql/rules.py", "from floodmark.bus import ports", "Dependencies point inwards"),
        ("libs/floodmark/local/files.py", "import floodmark_ingester", "Libraries never import services"),
    ],
)
def test_an_import_against_the_direction_breaks_the_contract_by_name(
    tree: Path, module: str, line: str, contract: str
) -> None:
    """One line in the wrong place, and the check fails with the name of the rule."""
    with (tree / module).open("a") as file:
        file.write(f"\n{line}\n")
    code, output = lint(tree)
    assert code == 1, output
    broken = output.split("Broken contracts", maxsplit=1)
    assert len(broken) == 2, output
    assert contract in broken[1], output


def test_the_tree_as_it_is_keeps_every_contract(tree: Path) -> None:
    """Otherwise the failures above could have any cause."""
    code, output = lint(tree)
    assert code == 0, output
    assert "0 broken" in output
