"""The emulation of a slow network: a relay between the nodes of a job."""
