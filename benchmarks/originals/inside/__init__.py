"""Programs that run in the artifact's own Python (3.9 or 3.10), which has its TVM and nothing of Slipstream."""
