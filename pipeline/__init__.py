"""What all roles share: configuration, wire, data, tables, metrics, reports."""
