"""The figures of a running job for other programs: Prometheus and TensorBoard."""
