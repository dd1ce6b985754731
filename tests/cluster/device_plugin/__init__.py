"""A small device plugin, and what watches GPUs, for the test node: they run in the node's pods."""
