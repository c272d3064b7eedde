"""Many runs as one command: a grid of tasks, variants and seeds, trained in programs of their own.

What has been done is read from the run folders alone, so a bench may end in any way and go on later.
"""
