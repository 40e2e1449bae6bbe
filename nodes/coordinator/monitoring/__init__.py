"""Monitoring of a running job: status, web page and metrics, profile, samples of the replicas."""
