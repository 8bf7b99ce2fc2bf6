"""How busy a node's devices are, whoever made them. What cannot be read is unknown: never 0, never 100."""
