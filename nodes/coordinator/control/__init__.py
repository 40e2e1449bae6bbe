"""Automatic control of gap, elastic rate and update shares."""
