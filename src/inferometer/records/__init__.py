"""Runs, what is measured on them, and the files they come from."""
