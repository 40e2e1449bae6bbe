"""The folders of runs: their report, how to resume, and several beside each other."""
