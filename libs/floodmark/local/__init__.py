"""The whole system on one machine: a real ZooKeeper, a real Kafka and every service, as processes on loopback."""
