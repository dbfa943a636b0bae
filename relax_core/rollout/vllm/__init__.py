"""vLLM as a rollout engine. Importing this package imports no vLLM; `engine` and what the workers load do."""
