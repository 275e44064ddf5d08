"""Sinks with one planted bug each, and correct ones beside them: the kit must tell them apart.

There are four kinds of outside: an SQLite database, a table in the manner of table formats (data
files and a log of numbered entries), a folder whose files readers see, and a file of lines.
"""

from planted_bugs import collect_formats

from planted_sinks import (
    aborting,
    committing,
    jobs,
    keyed,
    marking,
    numbering,
    replacing,
    staging,
    twins,
    values,
)

TWINS = collect_formats(twins)
BUGS = collect_formats(
    aborting, committing, jobs, keyed, marking, numbering, replacing, staging, values
)
