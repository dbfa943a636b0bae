"""Checks that need no tensors."""
