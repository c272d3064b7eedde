"""What a run is: its settings, where their values come from, and what produced it. Every room may import this one.

schema: the settings, each with its range and help text. profiles: the settings of a task (profiles and variants).
validation: configs that hold, from files and mappings. command_line: options from the words of a command.
provenance: versions, machine and commit of a run.
"""
