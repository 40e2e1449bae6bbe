"""The assignment of rows of tables to embedding nodes."""
