"""Checks on numbers: in one process on a CPU, float64 where nothing else is said."""
