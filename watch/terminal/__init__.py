"""The figures of a running job on the terminal."""
