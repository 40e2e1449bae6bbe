"""Admission, departure and scaling of nodes; a supervisor's reports of processes that have ended."""
