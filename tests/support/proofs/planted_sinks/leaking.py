"""Sinks that post to a service with a token, and show it in one place each when that is down."""

import logging
from urllib.error import URLError
from urllib.request import urlopen

from krishiv_spark.errors import SinkError
from krishiv_spark.options import Options
from krishiv_spark.sinks import AtLeastOnceWriter
from planted_sinks.outside import make_format

_log = logging.getLogger(__name__)


class Service(Options):
    url: str
    token: str  # which should be a SecretStr: nothing knows that it is one


class Posting(AtLeastOnceWriter):
    options_type = Service

    def check(self):
        pass

    def stage(self, batches, task, plan):  # noqa: ARG002
        return sum(batch.num_rows for batch in batches)

    def publish(self, epoch, staged):  # noqa: ARG002
        try:
            urlopen(self.options.url, timeout=1)
        except URLError as error:
            raise SinkError(f"{self.options.url} cannot be asked: {error}") from None


@make_format
class SaysItInTheError(Posting):
    def publish(self, epoch, staged):  # noqa: ARG002
        raise SinkError(f"the service does not take {self.options.token}")


@make_format
class KeepsTheCause(Posting):
    def publish(self, epoch, staged):  # noqa: ARG002
        try:
            raise ValueError(f"bad header {self.options.token}")
        except ValueError as error:
            raise SinkError("the service cannot be asked") from error


@make_format
class LogsIt(Posting):
    def stage(self, batches, task, plan):
        _log.debug("posting with %s", self.options.token)
        return super().stage(batches, task, plan)


@make_format
class SendsItToTheCommitter(Posting):
    def stage(self, batches, task, plan):  # noqa: ARG002
        return self.options.token


@make_format
class AsksNobody(Posting):
    def publish(self, epoch, staged):
        pass
