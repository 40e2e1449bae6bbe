"""The performance profile of a run: measurements, the bottleneck, the trace."""
