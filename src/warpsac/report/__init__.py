"""Reports on run folders: one HTML page and CSV tables. Reads folders only and does without jax.

folders -> runs (what is there, how it ended) -> study (what compares with what) -> tables, page
"""
