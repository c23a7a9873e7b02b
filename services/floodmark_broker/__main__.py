"""Run with `python -m floodmark_broker`."""

from floodmark.service.runner import main
from floodmark_broker.app import build
from floodmark_broker.config import BrokerSettings

main("broker", BrokerSettings, build)
