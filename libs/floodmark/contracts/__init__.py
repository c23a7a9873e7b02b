"""What travels between processes: messages, their envelope and their topics. Knows nothing of any Kafka client."""
