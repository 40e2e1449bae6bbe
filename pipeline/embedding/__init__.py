"""The embedding tables: how they are split, stored, looked up and updated."""
