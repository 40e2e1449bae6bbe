"""The model that a run saved, in plain torch, without a cluster."""
