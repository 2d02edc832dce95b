"""Time of a step of any traced module: its operations, the host that calls them, fresh memory, communication."""
