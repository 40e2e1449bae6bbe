"""What flows between the nodes, whatever their role: configuration, wire, data, tables, metrics, reports."""
