"""Rows of growing tables: which id has a row, who gets one, and who loses it."""
