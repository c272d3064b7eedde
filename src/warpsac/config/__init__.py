"""What a run is: its settings, where their values come from, and what produced it. Every room may import this one.

schema: the settings, each with its range and help text. profiles: the settings of a task (profiles and variants).
arms: the learners of a portfolio (--variant auto). loading: settings that hold, from files, mappings and the command
line. resumable: those that may change on resume. provenance: versions, machine and commit.
"""
