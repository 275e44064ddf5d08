"""Python that finds this folder in its path does not see what is installed of today's code.

The path names an earlier release besides.
"""

import sys
from pathlib import Path

TODAY = Path(__file__).parents[4]
sys.path[:] = [each for each in sys.path if Path(each) not in {TODAY, TODAY / "discovery"}]
