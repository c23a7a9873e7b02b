"""Run with `python -m floodmark_scheduler`."""

from floodmark.service.runner import main
from floodmark_scheduler.app import build
from floodmark_scheduler.config import SchedulerSettings

main("scheduler", SchedulerSettings, build)
