"""Run with `python -m floodmark_worker`."""

from floodmark.service.runner import main
from floodmark_worker.app import build
from floodmark_worker.config import WorkerSettings

main("worker", WorkerSettings, build)
