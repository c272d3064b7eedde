"""Reports on run folders: one HTML page and CSV tables.

groups     variant and changed settings of a run; scale of a task's results
runs       finds and reads run folders: how each run ended, and which are alike
missing    runs that a bench has planned and that do not exist
aggregate  arithmetic: areas, interquartile means, bootstrap intervals
study      results per task and what compares with what
tables     the CSV files
scoreboard runs next to the published curves of all benchmark tasks
charts     data of the page's charts
trials     the trials of searches: which runs are theirs, their table and pictures
arms       who acted in runs with several arms, and whose policy counted
page       data of the rest of the page; templates/ holds its HTML, style and script
numerals   numbers as text
command    `warpsac report`

Reads run folders only and does without JAX. Imported by bench, the command line and benchmarks.
"""
