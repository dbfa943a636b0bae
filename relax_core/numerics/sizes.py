"""Sizes that the arithmetic and its estimate share."""

CHUNK_LOGITS = 2**26
"""Logits in a chunk of the head when no chunk size is given: 256 MiB of float32."""
