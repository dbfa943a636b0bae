"""What a run will need and how fast it may be, from its configuration and its model's shape. docs/scaling.md has the model."""
