"""The demo's output besides its progress."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console

screen = Console(highlight=False)


def chart(by_hour: pa.Table) -> None:
    """Mean delay for each hour of the day, as bars."""
    hours = by_hour.append_column("of_day", pc.hour(by_hour["hour"]))
    sums = hours.group_by("of_day").aggregate([("delay", "sum"), ("flights", "sum")])
    screen.print("\n[bold]Mean delay by scheduled hour of departure[/bold], from krishiv-memory")
    for row in sums.sort_by("of_day").to_pylist():
        mean = row["delay_sum"] / row["flights_sum"]
        bar = "█" * max(0, round(mean * 2))
        screen.print(
            f"  {row['of_day']:02d}:00 {bar} {mean:4.1f} min  [dim]{row['flights_sum']:,}[/dim]"
        )


def corrected(latest: pa.Table) -> None:
    """Print the flights with the largest corrections, by the table's current rows."""
    found = latest.filter(latest["correction"]).sort_by([("delay", "descending")]).slice(0, 3)
    screen.print("\n[bold]Latest of all, once they had landed[/bold], from krishiv-iceberg")
    for row in found.to_pylist():
        hours = row["delay"] / 60
        screen.print(
            f"  {row['scheduled']:%d %b} {row['carrier']} {row['origin']} → {row['dest']} "
            f"{hours:5.1f} h  [dim]flight {row['flight_id']:,}[/dim]"
        )


def preview(printed: list[str]) -> None:
    """Print the last epoch of the console sink."""
    starts = [i for i, line in enumerate(printed) if line.startswith("Batch: ")]
    tail = printed[starts[-1] - 1 :] if starts else printed[-12:]
    lines = [line for line in tail if not line.startswith(("DONE", "STARTED"))][:14]
    screen.print("\n[bold]The last preview of krishiv-console[/bold]")
    screen.print("".join(lines), markup=False)


def verdict(problems: Sequence[str], exact: str) -> None:
    """Show the differences, or that there is none."""
    for problem in problems:
        screen.print(f"[red]{problem}[/red]")
    if problems:
        screen.print("[red bold]The result differs from the plain computation.[/red bold]")
    else:
        screen.print(f"\n[green bold]Exact.[/green bold] {exact}")
