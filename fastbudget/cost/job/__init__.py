"""A whole training job: the data to train on, what happens beside the steps, and what all of it costs."""
