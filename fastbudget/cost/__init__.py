"""What a model costs before it is trained: operations, memory, time, money."""
