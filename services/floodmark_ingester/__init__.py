"""The ingester: turns announcements of base-table changes into registry entries and events."""
