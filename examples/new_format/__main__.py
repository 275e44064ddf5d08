"""Makes what a new format consists of: ``./run new-format NAME``, and then fill it in.

Every file below ``template/`` is one of this repository, with the format's name in the place of
"sketch". Those that are not there are made; those that are there (docs/formats.md and formats.py)
get it appended. A part of a module is no module, and its file ends with ".template".
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEMPLATE = Path(__file__).parent / "template"


def main(arguments: list[str]) -> int:
    """Make a format, unless there is one of that name."""
    if len(arguments) != 1 or not re.fullmatch("[a-z][a-z0-9]*", arguments[0]):
        print("./run new-format NAME: lower-case letters and digits, as in krishiv-NAME")
        return 2
    (name,) = arguments
    if f'"krishiv-{name}"' in (ROOT / "krishiv_spark" / "formats.py").read_text():
        print(f"krishiv-{name} is there already")
        return 2
    for path in sorted(path for path in TEMPLATE.rglob("*.*") if path.suffix != ".pyc"):
        print(_filled_in(path, name))
    return 0


def _filled_in(template: Path, name: str) -> Path:
    named = str(template.relative_to(TEMPLATE)).replace("sketch", name)
    place = Path(named.removesuffix(".template"))
    text = template.read_text().replace("sketch", name).replace("Sketch", name.capitalize())
    (ROOT / place).parent.mkdir(parents=True, exist_ok=True)
    with (ROOT / place).open("a") as file:
        file.write(text)
    return place


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
