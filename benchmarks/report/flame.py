"""Stacks as a flame graph: one SVG, complete in itself, with time from left to right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

__all__ = ["Frame", "flame_graph"]

_WIDTH, _HEIGHT = 1200, 17  # pixels, of the whole and of a frame
_LEAST = 1.0
"""Pixels: a frame that is narrower is left out, with all that it calls."""
_LETTER = 6.3  # pixels
_STYLE = """
text { font: 11px system-ui, sans-serif; fill: #1b1b1b }
rect { stroke: #fff; stroke-width: 0.5 }
.part rect { fill: #d0d4da } .ours rect { fill: #f2a65a } .others rect { fill: #9cc5e8 }
.python rect { fill: #dcdcc8 }
"""


@dataclass(frozen=True)
class Frame:
    """A function, by whose it is.

    Attributes:
        name: Of the function.
        file: Where it is, for people; empty for a part that is none.
        kind: ``part``, ``ours``, ``others`` or ``python``.
    """

    name: str
    file: str = ""
    kind: str = "part"


@dataclass
class _Node:
    weight: int = 0
    below: dict[Frame, _Node] = field(default_factory=dict)

    def add(self, stack: Iterable[Frame], weight: int) -> None:
        node = self
        node.weight += weight
        for frame in stack:
            node = node.below.setdefault(frame, _Node())
            node.weight += weight

    def depth(self, least: float) -> int:
        """Of the frames that are shown."""
        shown = [node for node in self.below.values() if node.weight >= least]
        return 1 + max((node.depth(least) for node in shown), default=0)


def flame_graph(title: str, stacks: Mapping[Sequence[Frame], int], whole_us: float) -> str:
    """Return the graph, with callers above the functions that they call.

    Args:
        title: What the whole is.
        stacks: How often each was seen, the outermost frame first.
        whole_us: What all of them together stand for, in microseconds.
    """
    root = _Node()
    for stack, weight in stacks.items():
        root.add(stack, weight)
    height = _HEIGHT * root.depth(_LEAST * root.weight / _WIDTH)
    boxes = _boxes(Frame(title), root, 0, 0, (_WIDTH / root.weight, whole_us / root.weight))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" role="img" aria-label="{escape(title)}">'
        f"<style>{_STYLE}</style>\n" + "\n".join(boxes) + "\n</svg>\n"
    )


def _boxes(
    frame: Frame, node: _Node, x: float, depth: int, scales: tuple[float, float]
) -> Iterator[str]:
    """Yield a frame, and then its callees; scales are pixels and microseconds of a weight of 1."""
    width = node.weight * scales[0]
    if width < _LEAST:
        return
    yield _box(frame, x, depth, width, f"{node.weight * scales[1]:,.0f} us")
    for below in sorted(node.below, key=_place):
        yield from _boxes(below, node.below[below], x, depth + 1, scales)
        x += node.below[below].weight * scales[0]


def _place(frame: Frame) -> tuple[str, str]:
    """By name, so that two graphs of one program look alike; parts as they were given."""
    return ("", "") if frame.kind == "part" else (frame.name, frame.file)


def _box(frame: Frame, x: float, depth: int, width: float, time: str) -> str:
    y = depth * _HEIGHT
    told = f"{frame.name} {time}" if frame.kind == "part" else frame.name
    room = int((width - 4) / _LETTER)
    text = told if len(told) <= room else f"{told[: room - 1]}\u2026" if room > 3 else ""
    place = f", {frame.file}" if frame.file else ""
    label = f'<text x="{x + 3:.1f}" y="{y + 12}">{escape(text)}</text>' if text else ""
    return (
        f'<g class="{frame.kind}"><title>{escape(frame.name)}{escape(place)}: {time}</title>'
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_HEIGHT}"/>{label}</g>'
    )
