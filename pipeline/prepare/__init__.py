"""`shadowsync prepare`: text or Parquet files to pre-hashed Parquet."""
