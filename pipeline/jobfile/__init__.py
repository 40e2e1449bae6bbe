"""Job files: loading, validation, and the reference page."""
