"""The parts that all roles share: configuration, wire, data, metrics, reports."""
