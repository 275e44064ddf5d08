"""Cases of ``./run bench --counts`` in interpreters in which something does more than it should."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.counts.count import Count
from benchmarks.counts.record import Record, Verdict

ROOT = Path(__file__).parents[3]

PLANTED = """
{which}
own = getattr(owner, name)

def worse(*args, **named):
    more(*args)
    return own(*args, **named)

setattr(owner, name, worse)
"""


def count_regressions(case, which, servers=None):
    """The counts by which a case shows what was planted, beside the same case without it.

    Args:
        case: Its name.
        which: Code that sets `owner` and `name`, of a function, and `more`, which is called first.
        servers: How those are reached that the case needs.
    """
    record = Record()
    record.keep({case: _counted(case, "", servers)})
    found = {case: _counted(case, PLANTED.format(which=which), servers)}
    return {
        each.count.name for each in record.differences(found) if each.verdict is Verdict.REGRESSION
    }


def _counted(case, text, servers):
    code = f"{text}\nfrom benchmarks.counts.child import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, case],
        input=json.dumps(servers or {}),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return [Count(**each) for each in json.loads(done.stdout)]
