"""The janitor: deletes files that nobody refers to or reads, and data past its retention."""
