"""`warpsac bench`: a grid of tasks, variants and seeds, or a search over settings, as one resumable command.

suite (cells, grids, built-in suites), suite_file (YAML), state (where each run stands, from its folder alone),
scheduler (jobs, retries), worker (one program: its process and what runs in it), local and on_ray (launchers), board
(the live table), space (what a search varies), study (its trials, in Optuna), search (its course), command (the options
and the whole course).

Imports report, training and the rooms below; imported by cli alone.
"""
