"""Training with Megatron-core: rank processes that share a model, driven from one place."""
