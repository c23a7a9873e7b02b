"""docs/configuration.md against the settings classes: every setting is there, and nothing else is."""

import re
from pathlib import Path

from floodmark.service.sections import Section
from floodmark.service.settings import ServiceSettings
from floodmark_broker.config import BrokerSettings
from floodmark_consistency.config import ConsistencySettings
from floodmark_ingester.config import IngesterSettings
from floodmark_janitor.config import JanitorSettings
from floodmark_scheduler.config import SchedulerSettings
from floodmark_worker.config import WorkerSettings

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
CLASSES: tuple[type[ServiceSettings], ...] = (
    BrokerSettings,
    ConsistencySettings,
    IngesterSettings,
    JanitorSettings,
    SchedulerSettings,
    WorkerSettings,
)


def settings() -> set[str]:
    found = set()
    for fields in (c.model_fields for c in CLASSES):
        for section, field in fields.items():
            assert isinstance(field.annotation, type)
            assert issubclass(field.annotation, Section)
            found |= {f"{section}.{key}" for key in field.annotation.model_fields}
    return found


def documented() -> set[str]:
    """The names in the first cells of the tables; one without a section belongs to that of the name before it."""
    found: set[str] = set()
    for cell in re.findall(r"^\| (`[a-z].*?) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        section = ""
        for name in re.findall(r"`([a-z_.]+)`", cell):
            section = name.partition(".")[0] if "." in name else section
            found.add(name if "." in name else f"{section}.{name}")
    return found


def test_every_setting_is_documented_and_every_documented_one_exists() -> None:
    """Whoever adds, renames or removes a setting does so on the page too."""
    assert documented() == settings()
