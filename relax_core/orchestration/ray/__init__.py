"""Every role of a run in actors of a Ray cluster."""
