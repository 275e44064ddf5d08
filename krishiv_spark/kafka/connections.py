"""Connections to one cluster: messages to its brokers, and errors that say what failed.

kafka-python brings connections, TLS, SASL and message classes; its I/O thread runs beside the
caller.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from krishiv_spark.kafka.connection import Connection
from krishiv_spark.kafka.failures import KafkaFailedError, KafkaRefusedError, is_retriable
from krishiv_spark.kafka.network import LEAST_LOADED, Network, Node
from krishiv_spark.messages.exception_chains import raise_alone
from krishiv_spark.messages.redaction import excerpt
from krishiv_spark.runtime.retry import Backoff

__all__ = ["Connections"]

_BEFORE_LOGIN = ("ECONNREFUSED", "DNS", "Handshake failed", "timed out", "unreachable")
"""Signs in what is said of brokers that they were not asked for a login yet."""


class Connections:
    """One process's connections to a cluster. Any thread may use them.

    Args:
        connection: How the cluster is reached.
        at_start: Whether nothing is under way that a cluster would be waited for: unless a time is
            given, it then gets ten seconds.

    Raises:
        KafkaFailedError: If no broker answers in time, the login is refused, or a file that the
            settings name is not on this machine.
    """

    def __init__(self, connection: Connection, *, at_start: bool = False) -> None:
        from kafka.errors import KafkaError

        self.connection = connection
        missing = connection.missing_file()
        if missing is not None:
            raise self.failed(
                "reach the cluster", f"there is no file on this machine for {missing}"
            )
        self._network = Network(connection.values)
        self._end = weakref.finalize(self, self._network.close)
        self._end.atexit = False  # the thread is a daemon
        self._is_deaf = False
        try:
            self._network.bootstrap(connection.patience_s(at_start=at_start))
        except KafkaError as error:
            why, hint = self._troubles(error), self._login_hint(error)
            self.close()
            raise_alone(self.failed("reach the cluster", why, hint))

    def close(self) -> None:
        """End the I/O thread and the connections; so does the garbage collector."""
        self._end()

    @property
    def is_usable(self) -> bool:
        """Whether it may be of use to another task.

        It is not when its thread has ended, nor when no broker at all has answered it for as long
        as something was tried: all of them may have moved to other addresses.
        """
        return self._network.is_alive and not self._is_deaf

    def _troubles(self, error: Exception) -> str:
        """Why no broker could be reached: what each of them said last, or else the whole."""
        found = self._network.troubles()
        return "; ".join(f"{address}: {_meaning(said)}" for address, said in found.items()) or str(
            error
        )

    def _login_hint(self, error: Exception) -> str:
        """A broker that refuses a login may close the connection before it is heard."""
        from kafka.errors import SaslAuthenticationFailedError

        user = self.connection.values.get("sasl_plain_username")
        if user is None:
            return ""
        heard = isinstance(error, SaslAuthenticationFailedError)
        told = self._network.troubles().values()
        if not heard and any(sign in text for sign in _BEFORE_LOGIN for text in told):
            return ""
        return f"{'' if heard else 'or '}the login of user {user!r} is refused: see its password"

    def failed(self, what: str, error: object, hint: str = "") -> KafkaFailedError:
        """An error that says what could not be done, where, why, and what to do.

        Raise it by `raise_alone` while kafka-python's error is being handled.
        """
        from kafka.errors import AuthorizationError

        kind = KafkaRefusedError if isinstance(error, AuthorizationError) else KafkaFailedError
        # A broker that refuses may repeat what it was sent.
        why = excerpt(str(error), self.connection.secrets())
        why = f"{why}; {hint}" if hint else why
        return kind(f"Kafka at {self.connection.bootstrap}: cannot {what}: {why}")

    # --- messages

    def submit(self, request: Any, node: Node) -> Any:
        """Send a message without waiting.

        Returns:
            kafka-python's future of the response.
        """
        return self._alive(self._network.submit, request, node)

    def wait(self, future: Any) -> Any:
        """Wait for the response of a future, or kafka-python's error, raised."""
        return self._alive(self._network.wait, future)

    def ask(self, messages: Sequence[tuple[Node, Any]], within_s: float | None = None) -> list[Any]:
        """Send messages side by side.

        Args:
            messages: Each with the node that it goes to.
            within_s: How long the answers are awaited, all of them together; None for as long as
                one request may take (``request.timeout.ms``).

        Returns:
            For each its response, or kafka-python's error in its place.
        """
        found: list[Any] = self._alive(self._network.ask, messages, within_s)
        return found

    def _alive(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the network.

        Raises:
            KafkaFailedError: If its thread has ended.
        """
        try:
            return function(*args)
        except Exception as error:
            if self._network.is_alive:
                raise
            why = f"the thread of its connections has ended: {type(error).__name__}: {error}"
            raise_alone(self.failed("go on", why))

    def ask_any(
        self, what: str, message: Any, code_of: Callable[[Any], int] = lambda r: int(r.error_code)
    ) -> Any:
        """Ask whichever broker has least to do, again and again until one has an answer.

        Args:
            what: What is tried, for messages.
            message: A request of kafka-python's, of any version of its API.
            code_of: The number of the error in a response; 0 for none.

        Returns:
            The response that has no error.

        Raises:
            KafkaFailedError: If the response has an error that does not pass, if there is none in
                ``default.api.timeout.ms``, or if the login is refused.
        """
        begun_s = time.monotonic()
        error: Exception | None = None
        for left_s in Backoff(self.connection.api_timeout_s).attempts():
            (answer,) = self.ask([(LEAST_LOADED, message)], left_s)
            error = _error(answer, code_of)
            if error is None:
                return answer
            if not is_retriable(error):
                raise self.failed(what, error)
        self.note_silence(begun_s)
        raise self.failed(what, f"{error}, time is up")

    def note_silence(self, since_s: float) -> None:
        """Time is up for something: if no broker has answered since then, all may be elsewhere.

        Args:
            since_s: When it was begun, by the monotonic clock.
        """
        self._is_deaf = self._is_deaf or self._network.heard_s < since_s

    # --- brokers

    def learn_brokers(self, metadata: Any) -> None:
        """Take in a broker's answer to Metadata, which names all of them."""
        self._network.learn(metadata)

    def nodes(self) -> list[int]:
        """The brokers of the cluster, as far as is known."""
        return self._network.nodes()


_MEANINGS = {
    "ECONNREFUSED": "nobody listens there ({said}): correct 'kafka.bootstrap.servers'",
    "DNS": "the host is not known ({said}): correct 'kafka.bootstrap.servers'",
    "CERTIFICATE_VERIFY_FAILED": "its certificate is not trusted ({said}): correct "
    "'kafka.ssl.truststore.location'",
    "WRONG_VERSION_NUMBER": "it speaks no TLS ({said}): correct 'kafka.security.protocol', or the "
    "port in 'kafka.bootstrap.servers'",
}
"""By a sign in what is said of a broker, what that means, and what to do."""


def _meaning(said: str) -> str:
    known = next((means for sign, means in _MEANINGS.items() if sign in said), "{said}")
    return known.format(said=said)


def _error(answer: Any, code_of: Callable[[Any], int]) -> Exception | None:
    from kafka.errors import KafkaError, for_code

    error: Exception | None = None
    if isinstance(answer, KafkaError):
        error = answer
    elif code := code_of(answer):
        error = for_code(code)()
    return error
