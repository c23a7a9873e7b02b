"""The consistency service with a hole: it throws away one event in twenty, as if Kafka had lost it.

Run as `python -m tests.integration.lossy_consistency SEED`. Everything but the ear of the marker is the real service.
"""

import random
import sys
from collections.abc import Sequence

import structlog

from floodmark.bus.delivery import Delivery
from floodmark.contracts.changes import Changes
from floodmark.service.runner import main
from floodmark_consistency import app
from floodmark_consistency.config import ConsistencySettings
from floodmark_consistency.marker import Marker

log = structlog.get_logger()

LOST_SHARE = 0.05
chance = random.Random(int(sys.argv[1]))


class LossyMarker(Marker):
    def offer(self, deliveries: Sequence[Delivery[Changes]]) -> None:
        heard = []
        for delivery in deliveries:
            if chance.random() >= LOST_SHARE:
                heard.append(delivery)
                continue
            event = delivery.message
            log.info("event_thrown_away", table=event.table, segments=[change.name for change in event.changes])
            delivery.finish()
        super().offer(heard)


if __name__ == "__main__":
    app.Marker = LossyMarker  # type: ignore[misc]
    main("consistency", ConsistencySettings, app.build)
