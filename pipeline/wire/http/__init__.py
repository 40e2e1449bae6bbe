"""HTTP servers beside a node: their socket, their bounds, who may ask."""
