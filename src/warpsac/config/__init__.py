"""What a run is: its settings, where their values come from, and what produced it. Every room may import this one.

schema: the settings, each with its constraint and help text. constraints: how a setting declares its range.
profiles: the settings of a task (profiles and variants). validation: configs that hold, from mappings and files.
command_line: any options from the words of a command. provenance: versions, machine and commit of a run.
"""
