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
