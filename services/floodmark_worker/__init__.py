"""The worker: builds buckets with Spark and commits them through the ledger."""
