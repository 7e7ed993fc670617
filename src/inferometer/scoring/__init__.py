"""A prediction beside a measurement."""
