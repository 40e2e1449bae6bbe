"""report.json, report.md and the curves."""
