"""Monitoring: status, web page, metrics, profile, samples."""
