"""Caches of keys and values: one that grows, one of a fixed size, one that holds a window."""
