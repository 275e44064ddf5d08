"""Rules for the voice of krishiv-spark: whole sentences, and phrases that may only become fewer.

No docstring of the repository starts with a question word.

``./run python tests/support/voice.py`` renews the record of phrases after some were removed, or
after a module was moved. It refuses if a phrase occurs more often than before.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from syntax import parse_module, walk_statements

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "support" / "voice_counts.json"
CODE = ("krishiv_spark", "sinks", "sources", "offsets")
PHRASES = {
    "anew": r"anew",
    "are gone": r"(is|are|was|were|has|have|had) gone",
    "as it is": r"as (it is|they are)",
    "aside": r"aside",
    "by itself": r"by (itself|themselves)",
    "ever so often": r"ever so often",
    "for ever": r"for ever",
    "goes before": r"go(es)? before",
    "is over": r"(is|are|was|were) over",
    "is told": r"(is|are|was|were|be|been) told",
    "nobody": r"(no|some|every)body",
    "of its own": r"of (its|their) own",
    "of ours": r"of ours",
    "passed over": r"pass(ed|es|ing)? over",
    "whoever": r"(who|what)ever",
    "without a word": r"without a word",
}
"""By its name, the pattern of a phrase that plain English replaces."""

_JOINT = re.compile(r"""["']?\s*\n\s*(?:#\s*)?(?:f?["'](?!["']))?""")
"""The end of a line inside a docstring, a comment or adjacent string literals."""

_FRAGMENT_STARTS = frozenset(
    ["as", "from", "how", "of", "since", "that", "those", "what", "where", "whether"]
) | frozenset(["which", "who", "whoever", "whom", "whose"])
_SHORTEST = 3

_QUESTION = re.compile(
    r"(how|wh(at|ere|ich|o|om|ose|en|y|ether)|(what|which|who)ever)\b", re.IGNORECASE
)

_LIKE_QUESTION = re.compile(rf"^\s*\w?[\"']+\s*{_QUESTION.pattern}", re.IGNORECASE | re.MULTILINE)
"""A line that may begin a docstring with a question word."""


def find_fragments(text: str) -> list[str]:
    """Return the violations of the rules for help texts and descriptions.

    A text starts with a capital letter, a number or code, ends with a full stop and has at least
    three words. None of its sentences starts with a word that introduces a subordinate clause.
    """
    plain = " ".join(text.split())
    found = []
    if not re.match(r"[A-Z0-9`'$]", plain):
        found.append("does not start with a capital letter")
    if not plain.endswith((".", "...")):
        found.append("does not end with a full stop")
    if len(plain.split()) < _SHORTEST:
        found.append("is shorter than three words")
    for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z`'])", plain):
        first = re.match(r"[A-Za-z]+", sentence)
        if first and first[0].lower() in _FRAGMENT_STARTS:
            found.append(f"has a sentence that starts with {first[0]!r}")
    return found


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each string that is a statement, also below an attribute."""
    for node in walk_statements(module):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def question_docstrings() -> list[str]:
    """Return file, line and text of each docstring that starts with a question word."""
    return [
        f"{path.relative_to(ROOT).as_posix()}:{line}: {text.splitlines()[0]}"
        for folder in sorted(ROOT.glob("[!.]*/"))  # those with a dot have whole environments
        for path in sorted(folder.rglob("*.py"))
        if _LIKE_QUESTION.search(path.read_text())  # since it takes long to parse all files
        for line, text in docstrings(parse_module(path))
        if _QUESTION.match(text.strip())
    ]


def count_phrases() -> dict[str, dict[str, int]]:
    """Return the count of each phrase, for each file of the package that contains one."""
    counts = {}
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = _JOINT.sub(" ", path.read_text())
            found = {
                name: len(re.findall(rf"\b{pattern}\b", text, re.IGNORECASE))
                for name, pattern in PHRASES.items()
            }
            if any(found.values()):
                name = path.relative_to(ROOT).as_posix()
                counts[name] = {phrase: count for phrase, count in found.items() if count}
    return counts


def read_recorded_counts() -> dict[str, dict[str, int]]:
    """Return the counts of the record."""
    counts: dict[str, dict[str, int]] = json.loads(RECORD.read_text())
    return counts


def sum_counts(counts: Mapping[str, Mapping[str, int]]) -> Counter[str]:
    """Return the count of each phrase in all files together."""
    total: Counter[str] = Counter()
    for found in counts.values():
        total.update(found)
    return total


def risen_totals() -> list[str]:
    """Return a line for each phrase that occurs more often than the record allows."""
    now, before = sum_counts(count_phrases()), sum_counts(read_recorded_counts())
    return [
        f"{name}: {before[name]} -> {now[name]}" for name in PHRASES if now[name] > before[name]
    ]


def main() -> int:
    """Renew the record; return 1 if a phrase occurs more often than before."""
    if RECORD.exists() and (risen := risen_totals()):
        sys.stderr.write("\n".join(["more than before, reword these:", *risen, ""]))
        return 1
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in count_phrases().items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
