"""Toy tasks with known values, one module for each way of stepping: host, jax, torch."""
