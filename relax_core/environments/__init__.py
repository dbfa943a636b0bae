"""Environments: several turns and real tools, as one async function `generate(prompt, sampler)`."""
