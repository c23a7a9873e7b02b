"""Run with `python -m floodmark_ingester`."""

from floodmark.service.runner import main
from floodmark_ingester.app import build
from floodmark_ingester.config import IngesterSettings

main("ingester", IngesterSettings, build)
