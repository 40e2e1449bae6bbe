"""Rows of tables in a report: placement, growth, the disk, sharing."""
