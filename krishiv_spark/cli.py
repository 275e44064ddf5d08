"""The command ``krishiv-spark``."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from types import TracebackType
from typing import Any

import click

from krishiv_spark.errors import KrishivError
from krishiv_spark.messages.exception_chains import raise_alone, scrub
from krishiv_spark.messages.redaction import redact
from krishiv_spark.messages.terminal import show_lines, show_text
from krishiv_spark.operate import commands
from krishiv_spark.spark.logs import write_to_terminal

__all__ = ["main"]

_HOMES = {
    "checkpoint": "checkpoint",
    "dead-letters": "letters",
    "dev": "kafka_cluster",
    "doctor": "setup",
    "epochs": "query",
    "iceberg": "tables",
    "job-schema": "job_files",
    "kafka": "kafka_cluster",
    "log": "recovery",
    "new": "setup",
    "parquet": "tables",
    "replay": "recovery",
    "run": "job_files",
    "status": "query",
    "validate": "job_files",
    "watch": "query",
}
"""The module of `commands` that defines each command. A command imports no other module."""

_OLDER_NAMES = {"vacuum": "parquet"}
"""Names of commands from before each format had a group, with the group that contains them now."""


class _Commands(click.Group):
    """A group that imports a command on use, and shows the package's errors without tracebacks."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_HOMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        module = _HOMES.get(_OLDER_NAMES.get(cmd_name, cmd_name))
        if module is None:
            return None
        home = import_module(f"{commands.__name__}.{module}")
        found: click.Command = getattr(home, cmd_name.replace("-", "_"))
        return found

    def main(self, *given: Any, **named: Any) -> Any:
        sys.excepthook = _show_traceback
        write_to_terminal()
        return super().main(*given, **named)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            # Click declares it final. Click shows the usage of the command with it.
            vars(error)["message"] = show_text(error.message)
            raise
        except (KrishivError, PermissionError) as error:
            raise_alone(click.ClickException(show_text(redact(str(error)))))
        except Exception as error:
            if (shown := scrub(error)) is not error:
                raise_alone(shown)
            raise


def _show_traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print an error that is not the package's. Its text may come from a server or a file."""
    sys.stderr.write(show_lines("".join(traceback.format_exception(kind, error, trace))))


@click.group(cls=_Commands)
@click.version_option(package_name="krishiv-spark")
def main() -> None:
    """Inspect, operate and repair queries and tables of krishiv-spark."""
