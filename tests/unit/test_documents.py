"""Documents that name each other: whatever one links to is in the repository, and so is the heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "deploy").rglob("*.md"), *(ROOT / "schemas").rglob("*.md"),
]  # fmt: skip
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def broken_links(text: str, folder: Path, own: str = "") -> list[str]:
    found = []
    for target, anchor in _LINK.findall(text):
        if "://" in target or target.startswith("mailto:"):
            continue
        path = folder / target if target else None
        if path is not None and not path.exists():
            found.append(target)
        elif anchor and anchor not in anchors(own if path is None else path.read_text(encoding="utf-8")):
            found.append(f"{target}#{anchor}")
    return found


def anchors(text: str) -> set[str]:
    """As they are made of headings: lower case, no punctuation, a hyphen for each space."""
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in _HEADING.findall(text)}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_document_leads_somewhere(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    assert broken_links(text, document.parent, text) == []


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, here\n")
    text = "[a](there.md) [b](there.md#a-heading-here) [c](gone.md) [d](there.md#other) [e](#own) [f](https://example.org/x)"
    assert broken_links(text, tmp_path, "## Own") == ["gone.md", "there.md#other"]


# -- what the invariants name ------------------------------------------------------------------------------------------

_QUOTED = re.compile(r"`([^`]+)`")
_CODE = re.compile(r"([a-z_/]+\.py)(?:: (.+))?")
_TESTS = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))


def not_there(text: str) -> list[str]:
    """Tests, files and names of code that a document names and that the repository does not have."""
    quoted = _QUOTED.findall(text)
    tests = {name for name in quoted if re.fullmatch(r"test_\w+", name)}
    defined = set(re.findall(r"^ *def (test_\w+)", _TESTS, re.MULTILINE))
    missing = sorted(tests - defined)
    for name in quoted:
        if found := _CODE.fullmatch(name):
            missing += _lacking(found[1], found[2] or "")
    return missing


def _lacking(path: str, names: str) -> list[str]:
    """Of `path: One, Two.three`, the file if it is not there, otherwise those names that it does not have."""
    places = (ROOT / "libs/floodmark" / path, ROOT / "tests" / path, ROOT / path, ROOT / "services" / path)
    contents = [place.read_text(encoding="utf-8") for place in places if place.is_file()]
    if not contents:
        return [path]
    wanted = [part for name in re.split(r",\s*", names) for part in name.split(".")] if names else []
    there = [re.compile(rf"\b{re.escape(name)}\b") for name in wanted]
    return [f"{path}: {name}" for name, word in zip(wanted, there, strict=True) if not any(map(word.search, contents))]


def test_whatever_the_invariants_name_is_there() -> None:
    """A test or a function that was renamed holds nothing under its old name."""
    assert not_there((ROOT / "docs/invariants.md").read_text(encoding="utf-8")) == []


def test_a_name_that_is_not_there_is_found() -> None:
    text = "`core/gone.py` `core/errors.py: InvalidInput, Gone` `test_gone` `test_a_name_that_is_not_there_is_found`"
    assert not_there(text) == ["test_gone", "core/gone.py", "core/errors.py: Gone"]
