"""Declarative pipelines that a test defines, and runs as their users do: by `spark-pipelines`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import quick_jvm
import yaml
from patience import PATIENCE

FLOWS = Path(__file__).with_name("pipeline_flows.py")
PROGRAM = Path(quick_jvm.home()) / "bin" / "spark-pipelines"


class Pipeline:
    """A source of numbers, and flows from it to sinks.

    Args:
        folder: Of its own, that is not there yet.
        server: The address of the Connect server that runs it.
    """

    def __init__(self, folder: Path, server: str) -> None:
        self._folder, self._server = folder, server
        self._source = folder / "source"
        self._source.mkdir(parents=True)
        (folder / "flows").mkdir()
        shutil.copy(FLOWS, folder / "flows")
        spec = {
            "name": "numbers",
            "storage": (folder / "storage").as_uri(),
            "configuration": {"spark.sql.pipelines.maxFlowRetryAttempts": "0"},
            "libraries": [{"glob": {"include": "flows/**"}}],
        }
        (folder / "spark-pipeline.yml").write_text(yaml.safe_dump(spec))

    def feed(self, numbers: range) -> None:
        """Give the source more rows."""
        aside = self._source / "aside"
        pq.write_table(pa.table({"id": numbers}), aside)
        aside.rename(self._source / f"{numbers.start}.parquet")

    def write_to(self, sinks: dict[str, dict]) -> None:
        """Say which sinks there are, from the next run on: format, options and the column."""
        job = {"source": str(self._source), "sinks": sinks}
        (self._folder / "sinks.json").write_text(json.dumps(job))

    def checkpoints(self, sink: str) -> Path:
        """Return the checkpoints of the flow of a sink, by number."""
        return self._folder / "storage" / "_checkpoints" / sink / f"to_{sink}"

    def run(self, *options: str) -> str:
        """Return the output of the program for a run that succeeds."""
        code, said = self._run(*options)
        assert code == 0, said
        return said

    def fail(self, *options: str) -> str:
        """Return the output of the program for a run that fails."""
        code, said = self._run(*options)
        assert code != 0, said
        return said

    def _run(self, *options: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(PROGRAM), "--remote", self._server, "run", *options],
            cwd=self._folder,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr
