"""Watch policies: `play` rolls one out on its task, `video` writes mp4 files, `viewer` shows it in the browser.

Used by the command line and by `deploy`; imports what is below `training`, and its signals.
"""
