"""Time of a training step: a mechanistic model, its constants, and what this machine was measured to do."""
