"""`shadowsync prepare`: files of text or Parquet to pre-hashed Parquet, and jobs that read it."""
