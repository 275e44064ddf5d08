"""Sources with one planted bug each, and correct ones beside them: the kit must tell them apart.

The outside is a folder. Another program moves a file of JSON lines into it for each unit, named by
its number: `0.jsonl`, `1.jsonl`. The next file lies beside them, half written, under a hidden name.
A position is the number of the next file.
"""

from planted_bugs import collect_formats

from planted_sources import limits, positions, reading, strangers, twins, unseen

TWINS = collect_formats(twins)
BUGS = collect_formats(limits, positions, reading, strangers, unseen)
