"""Metrics, the rules that alert on them and the page that explains them say the same names."""

import ast
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ALERTS = ROOT / "deploy/alerts.yaml"
OPERATIONS = ROOT / "docs/operations.md"
SUFFIXES = {"Counter": ("_total",), "Gauge": ("",), "Histogram": ("_bucket", "_sum", "_count")}
NAMED = re.compile(r"(floodmark_\w+)(?:\{([^}]*)\})?")


def constructed() -> dict[str, tuple[str, set[str]]]:
    """The kind and the labels of every metric that some service constructs, by its name in the source."""
    found: dict[str, tuple[str, set[str]]] = {}
    for path in [*ROOT.glob("libs/**/*.py"), *ROOT.glob("services/**/*.py")]:
        constants: dict[str, ast.expr] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                constants[node.targets[0].id] = node.value
            if not isinstance(node, ast.Call) or not any(word.arg == "registry" for word in node.keywords):
                continue
            if (kind := ast.unparse(node.func).split(".")[-1]) in SUFFIXES:
                labels = [_texts(listed, constants) for listed in node.args[2:]]
                found[ast.literal_eval(node.args[0])] = (kind, set().union(*labels))
    return found


def _texts(labels: ast.expr, constants: dict[str, ast.expr]) -> set[str]:
    """The labels in this expression, which may name a list that stands in the same file."""
    texts = {n.value for n in ast.walk(labels) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    named = [constants[n.id] for n in ast.walk(labels) if isinstance(n, ast.Name)]
    return texts.union(*(_texts(n, constants) for n in named))


def exposed() -> dict[str, set[str]]:
    """The labels of each series that Prometheus sees."""
    return {f"{name}{end}": labels for name, (kind, labels) in constructed().items() for end in SUFFIXES[kind]}


def test_every_rule_alerts_on_a_metric_and_labels_that_exist() -> None:
    """A rule on a name that nobody exposes is never true, and nobody notices."""
    series = exposed()
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    for rule in rules:
        (name, chosen) = NAMED.search(rule["expr"]).groups()  # type: ignore[union-attr]
        assert name in series, rule["alert"]
        used = set(re.findall(r"(\w+)=", chosen or "")) | set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        by = re.search(r"by \(([^)]*)\)", rule["expr"])
        used |= set(by[1].split(", ")) if by else set()
        assert used <= series[name] | {"instance"}, rule["alert"]
    assert len(rules) == len({rule["alert"] for rule in rules}) >= 5


def test_the_page_for_operations_explains_every_metric_with_its_labels() -> None:
    """And none that is not there."""
    there = {f"{name}_total" if kind == "Counter" else name: labels for name, (kind, labels) in constructed().items()}
    cells = [line.split("|")[1] for line in OPERATIONS.read_text().splitlines() if line.startswith("| `floodmark_")]
    told = {
        name: set(filter(None, (labels or "").split(","))) for cell in cells for name, labels in NAMED.findall(cell)
    }
    assert told == there


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_takes_the_rules() -> None:
    """Syntax, expressions and templates, by its own tool."""
    checked = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
