"""Rows of growing tables: which id has one, gets one and loses it."""
