"""Watch policies at work.

play, play_command  roll a policy or an untrained agent out on its task; the command line of it
video               mp4 files, and a way for MuJoCo to draw on this machine
viewer              the same live in the browser

Imported by `deploy` and the command line.
"""
