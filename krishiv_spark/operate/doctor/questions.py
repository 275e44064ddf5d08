"""What is asked, as the options of a data source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from krishiv_spark.options.references import resolved_options
from krishiv_spark.storage import Storage, StoreUrl

__all__ = ["Questions"]

_OWN = ("checkpoint", "target", "topic", "probe")


@dataclass(frozen=True)
class Questions:
    """What is to be looked at.

    Attributes:
        probe: A name that nobody else has: of the folders that are made and go again.
        checkpoint: Where a query's checkpoint will be.
        target: Where its tasks will write files, if that is a folder or a store.
        topic: To which they will write records.
        options: ``storage.…`` and ``kafka.…`` of the query; never shown, for there are secrets.
        tasks: How many.
        cleans: Whether the folders are to go; then nothing else is done.
    """

    probe: str
    checkpoint: str | None = None
    target: str | None = None
    topic: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    tasks: int = 1
    cleans: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Questions:
        """From the options of the data source, with names in lower case. Driver.

        Raises:
            OptionError: If what one of them names cannot be looked up.
        """
        given = {key.lower(): text for key, text in resolved_options(options).items()}
        own = {key: given.pop(key) for key in _OWN if key in given}
        tasks, cleans = int(given.pop("tasks")), given.pop("cleans") == "true"
        return cls(**own, options=given, tasks=tasks, cleans=cleans)

    def as_options(self, *, cleans: bool) -> dict[str, str]:
        """For the data source."""
        own = {key: getattr(self, key) for key in _OWN if getattr(self, key) is not None}
        return {**self.options, **own, "tasks": str(self.tasks), "cleans": str(cleans).lower()}

    @property
    def storage(self) -> Storage:
        """How stores are reached."""
        return Storage.given(self.options)

    @property
    def kafka(self) -> dict[str, str]:
        """Options of the Kafka sink; empty if no brokers are named."""
        given = {key: text for key, text in self.options.items() if key.startswith("kafka.")}
        if "kafka.bootstrap.servers" not in given:
            return {}
        return given if self.topic is None else {**given, "topic": self.topic}

    def folder(self, location: str) -> StoreUrl:
        """The folder in a place that is made for the look, which readers of tables pass over."""
        return StoreUrl.parse(location) / f"_krishiv-doctor-{self.probe}"
