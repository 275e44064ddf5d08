"""A sink that posts rows to a service, at least once: the service can store no mark."""

import json
from collections.abc import Iterator, Sequence
from urllib.request import Request, urlopen

from pyarrow import RecordBatch, types
from pydantic import Field

from krishiv_spark import datasource, errors, options
from krishiv_spark.sinks import AtLeastOnceWriter, Epoch, OutputMode, Task

_HELD = types.is_boolean, types.is_integer, types.is_floating, types.is_string


class _Options(options.Options):
    url: str = Field(description="Rows are posted to this URL, a line of JSON each.")
    token: options.SecretStr | None = Field(default=None, description="Sent as bearer token.")
    timeout: options.Duration = Field(default=10_000, description="Time-out of each request.")


class _Writer(AtLeastOnceWriter[int]):
    options_type = _Options
    options: _Options

    def check(self) -> None:  # planner
        if self.mode is OutputMode.REPLACE:
            raise errors.OptionError("webhook: what was sent cannot be replaced; use append")
        for field in self.schema:
            if not any(holds(field.type) for holds in _HELD):
                raise errors.SchemaError(f"column {field.name!r}: JSON has no {field.type}")

    def stage(self, batches: Iterator[RecordBatch], task: Task, plan: None) -> int:  # executor
        sent = 0
        for batch in batches:  # one request each: a task is never in memory as a whole
            self._post("".join(f"{json.dumps(row)}\n" for row in batch.to_pylist()))
            sent += batch.num_rows
        return sent

    def _post(self, text: str) -> None:
        token = self.options.token
        headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
        request = Request(self.options.url, text.encode(), headers)
        with urlopen(request, timeout=self.options.timeout / 1000):
            """Any other status raises an error, so the task fails and is tried again."""

    def publish(self, epoch: Epoch, staged: Sequence[int]) -> None:  # committer
        """Do nothing: the tasks have sent all rows."""


class WebhookDataSource(datasource.KrishivDataSource):
    """Register it with ``spark.dataSource.register``, then write ``.format("webhook")``."""

    format_name, writer_type = "webhook", _Writer
