"""Run with `python -m floodmark_consistency`."""

from floodmark.service.runner import main
from floodmark_consistency.app import build
from floodmark_consistency.config import ConsistencySettings

main("consistency", ConsistencySettings, build)
