"""Sweeps: which cells there are, what each needs, where they run, and how each one ended."""
