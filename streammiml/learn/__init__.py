"""Training: streaming fits, schedule, checkpoints."""
