"""Prepared data: manifest, reading of parts, agreement with a job."""
