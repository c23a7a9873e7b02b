"""Run with `python -m floodmark_janitor`."""

from floodmark.service.runner import main
from floodmark_janitor.app import build
from floodmark_janitor.config import JanitorSettings

main("janitor", JanitorSettings, build)
