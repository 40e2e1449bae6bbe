"""The commands that have a file of their own: click only, the rest is imported when one runs."""
