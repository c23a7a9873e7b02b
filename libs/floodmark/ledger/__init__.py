"""The ledger: the only code that talks to ZooKeeper, and the only one that imports kazoo (INV-1)."""
