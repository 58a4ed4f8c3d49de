"""Bayesian code diffusion: similar operators form families, and what one has learned the others start from."""
