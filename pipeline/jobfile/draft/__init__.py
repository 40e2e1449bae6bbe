"""A first job file for undescribed data."""
