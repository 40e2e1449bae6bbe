"""Recovery from deaths while the job trains: readers, embedding shards, and their successors."""
