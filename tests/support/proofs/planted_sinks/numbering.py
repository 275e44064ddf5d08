"""Bugs of sinks that take numbered batches."""

import json

from krishiv_spark.sinks.base import CommittedEpoch
from planted_sinks.outside import make_format
from planted_sinks.twins import NumberedWriter


@make_format
class MarksBesideItsTarget(NumberedWriter):
    """The mark is in a file of its own, which an older copy of the target does not take back."""

    def publish(self, epoch, staged):
        super().publish(epoch, staged)
        self.beside(epoch.query).write_text(json.dumps([epoch.number, epoch.digest]))

    def last_committed(self, query):
        file = self.beside(query)
        return CommittedEpoch(*json.loads(file.read_text())) if file.exists() else None

    def beside(self, query):
        return self.folder.with_name(f"{self.folder.name}-{query}")


@make_format
class ForgetsWhoWrote(NumberedWriter):
    """The number alone is looked up, and not the digest that was kept with it."""

    def last_committed(self, query):
        found = super().last_committed(query)
        return None if found is None else CommittedEpoch(found.epoch)
