"""Is what somebody says about a training run possible? Read the claim, then check it against hardware and model."""
