"""The state of a job: data and transitions, without I/O."""
