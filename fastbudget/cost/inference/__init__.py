"""What serving a language model takes and costs."""
