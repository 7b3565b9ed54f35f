"""Scripts that measure, and the result files they wrote. Run from the repository's root: python -m benchmarks.NAME."""
