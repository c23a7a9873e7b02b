"""The consistency service with a hole: it throws away one event in twenty, as if Kafka had lost it.

Run as `python -m tests.integration.lossy_consistency SEED`. Everything but the ear of the marker is the real service.
"""

import random
import sys

import structlog

from floodmark.bus.delivery import Delivery
from floodmark.contracts.messages import Message, SegmentsChanged
from floodmark.service.runner import main
from floodmark_consistency import app
from floodmark_consistency.config import ConsistencySettings
from floodmark_consistency.marker import Marker

log = structlog.get_logger()

LOST_SHARE = 0.05
chance = random.Random(int(sys.argv[1]))


class LossyMarker(Marker):
    def offer(self, delivery: Delivery[Message]) -> None:
        if chance.random() >= LOST_SHARE:
            super().offer(delivery)
            return
        event = delivery.message
        assert isinstance(event, SegmentsChanged)
        log.info("event_thrown_away", table=event.table, segments=[change.name for change in event.changes])
        delivery.finish()


if __name__ == "__main__":
    app.Marker = LossyMarker  # type: ignore[misc]
    main("consistency", ConsistencySettings, app.build)
