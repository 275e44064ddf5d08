"""A command of krishiv-spark, run in this process."""

from click.testing import CliRunner

from krishiv_spark.cli import main


class Command:
    """A command, by the words that each call of it begins with."""

    def __init__(self, *words):
        self._words = words

    def run(self, *more):
        return CliRunner().invoke(main, [*self._words, *map(str, more)])

    def said(self, *more):
        """Run it, which has to succeed, and return its output."""
        return self._output(0, *more)

    def refused(self, *more, code=1):
        """Run it, which has to end with an exit code, and return its output."""
        return self._output(code, *more)

    def _output(self, code, *more):
        done = self.run(*more)
        assert done.exit_code == code, done.output
        return done.output
