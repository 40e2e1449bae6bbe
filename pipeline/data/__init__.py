"""From files to batches, and the generator of click logs."""
