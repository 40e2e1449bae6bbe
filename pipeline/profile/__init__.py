"""What a profile states: measurements, where the bottleneck is, the trace, and how they are shown."""
