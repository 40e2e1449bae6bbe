"""The commands; they import only click until one runs."""
