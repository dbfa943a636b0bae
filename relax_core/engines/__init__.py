"""Training engines: forward, backward, optimizer, checkpoint, behind one protocol."""
