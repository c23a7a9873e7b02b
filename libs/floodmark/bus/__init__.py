"""The message bus: ports, the consuming pump, and the Kafka adapter, the only code that imports confluent-kafka."""
