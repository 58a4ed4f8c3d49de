"""Benchmarks: one command for each table in docs/results.md. `python -m benchmarks` lists them."""
