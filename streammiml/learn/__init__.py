"""Training: settings, plan, loop, validation, checkpoints and run folders."""
