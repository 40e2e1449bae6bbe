"""Consumers of Kafka (confluent-kafka): their settings, and what their errors mean."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, TypeVar

from ...config.data import DataSection
from ...config.kafka import KafkaSection
from ...config.secret_file import read_secret
from ...errors import DataError, JobFileError
from ...types import TOPIC_PREFIX

PLAINTEXT: Final = KafkaSection()
"""Settings of brokers without TLS and users."""

REPLY_SECONDS: Final = 10.0
# A refusal of all brokers is known sooner than that none answers.
_FIRST_TRY_SECONDS: Final = 1.0
REMEDY: Final = "check the servers, and that they are reached from here"
_LIBRARY: Final = "pip install 'shadowsync[kafka]'"
# What OpenSSL says when a broker refuses the client's certificate after the handshake.
_TLS_ALERT: Final = ":SSL routines:"
Answer = TypeVar("Answer")


class KafkaRefused(DataError):
    """Brokers refuse the user or a certificate; a later try gives the same."""


def is_topic(path: str) -> bool:
    """Return whether a path is a topic or one of its partitions."""
    return path.startswith(TOPIC_PREFIX)


def client_settings(kafka: KafkaSection) -> dict[str, str]:
    """Return the settings of librdkafka for a [data.kafka], with the password.

    Do not log or store them. Raises JobFileError for a variable that is not set, and for a file that is not
    there, or that others can read although it is secret.
    """
    settings: dict[str, str] = {"security.protocol": kafka.security_protocol}
    if kafka.encrypts:
        for key in ("ssl_ca_location", "ssl_certificate_location"):
            if path := getattr(kafka, key):
                _require_file(path, key)
                settings[key.replace("_", ".")] = path
        if kafka.ssl_key_location:
            what = "key of data.kafka.ssl_key_location"
            # Read here for its rights only.
            read_secret(Path(kafka.ssl_key_location), what, "give a key in PEM", encoding="utf-8")
            settings["ssl.key.location"] = kafka.ssl_key_location
    if kafka.logs_in:
        settings |= {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.username": kafka.sasl_username,
            "sasl.password": _password(kafka),
        }
    return settings


def _require_file(path: str, key: str) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise JobFileError(
            f"data.kafka.{key} cannot be read ({error.strerror})", where=path, remedy="check its path"
        ) from error


def _password(kafka: KafkaSection) -> str:
    if name := kafka.sasl_password_env:
        if not (password := os.environ.get(name, "")):
            raise JobFileError(
                f"the variable {name} is not set, or empty",
                where="data.kafka.sasl_password_env",
                remedy="set it to the password on every machine that reads the topic",
            )
        return password
    file, remedy = Path(kafka.sasl_password_file), "write the password into it, in one line"
    password = read_secret(file, "password of data.kafka.sasl_password_file", remedy, encoding="utf-8")
    password = password.removesuffix("\n").removesuffix("\r")
    if not password or "\n" in password:
        raise JobFileError("is not a password in one line", where=str(file), remedy=remedy)
    return password


def require_topics_usable(data: DataSection) -> None:
    """Raise what is wrong with the settings of a job's topics, before anything starts.

    Connects to no broker. Raises JobFileError as `client_settings`, and for certificates and keys that cannot
    be used; DataError without the library.
    """
    topics = [path for path in data.paths if is_topic(path)]
    # A prepared folder has the rows.
    if topics and not data.prepared:
        _new_consumer(topics[0], data.kafka, []).close()


class KafkaClient:
    """A consumer of one group of brokers; used by one thread.

    Attributes:
        consumer: confluent_kafka's Consumer.
    """

    def __init__(self, path: str, kafka: KafkaSection) -> None:
        self._path = path
        self._errors: list[Any] = []
        self.consumer = _new_consumer(path, kafka, self._errors)

    def ask(self, call: Callable[[float], Answer]) -> Answer:
        """Return the answer of brokers; `call` takes seconds to wait.

        Raises KafkaRefused if they refuse this client, KafkaException without an answer.
        """
        from confluent_kafka import KafkaError, KafkaException

        try:
            return call(min(_FIRST_TRY_SECONDS, REPLY_SECONDS))
        except KafkaException:
            # Serves the callback that collects errors.
            self.consumer.poll(0)
        if any(error.code() == KafkaError._ALL_BROKERS_DOWN for error in self._errors):
            self.raise_refusal()
        return call(REPLY_SECONDS)

    def raise_refusal(self, more: Any = None) -> None:
        """Raise KafkaRefused if brokers have refused this client.

        `more` is an error besides those of connections.
        """
        for error in (*self._errors, *([] if more is None else [more])):
            if (remedy := _remedy_of_refusal(error)) is not None:
                raise KafkaRefused(f"cannot be read ({error.str()})", where=self._path, remedy=remedy)

    def failure(self, error: Any) -> DataError:
        """Return the DataError for a KafkaError that is no refusal."""
        from confluent_kafka import KafkaError

        connections = [cause for cause in self._errors if cause.code() != KafkaError._ALL_BROKERS_DOWN]
        last = f"; {connections[-1].str()}" if connections else ""
        return DataError(f"cannot be read ({error.str()}{last})", where=self._path, remedy=REMEDY)


@contextmanager
def open_client(path: str, kafka: KafkaSection) -> Iterator[KafkaClient]:
    """Open a client of the brokers that a topic's path names, for a block.

    An error of the library within the block becomes a DataError. Raises KafkaRefused where brokers refuse
    this client, and as `client_settings`.
    """
    library = _library(path)
    client = KafkaClient(path, kafka)
    try:
        yield client
    except library.KafkaException as error:
        client.consumer.poll(0)
        client.raise_refusal(error.args[0])
        raise client.failure(error.args[0]) from error
    finally:
        client.consumer.close()


def _library(path: str) -> Any:
    if find_spec("confluent_kafka") is None:
        raise DataError("a topic needs confluent_kafka", where=path, remedy=_LIBRARY)
    import confluent_kafka

    return confluent_kafka


def _new_consumer(path: str, kafka: KafkaSection, errors: list[Any]) -> Any:
    library = _library(path)
    settings = {
        "bootstrap.servers": path.removeprefix(TOPIC_PREFIX).partition("/")[0],
        # Required by the library; nothing is committed, since the ledger knows what is trained.
        "group.id": "shadowsync",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "log_level": 2,
        "error_cb": errors.append,
    }
    try:
        return library.Consumer(settings | client_settings(kafka))
    except library.KafkaException as error:
        why = error.args[0].str().removeprefix("Failed to create consumer: ")
        raise JobFileError(
            f"cannot be used ({why})",
            where="data.kafka",
            remedy="check that the files are PEM, belong together, and need no passphrase",
        ) from error


def _remedy_of_refusal(error: Any) -> str | None:
    """Return the remedy of a refusal; None for other errors."""
    from confluent_kafka import KafkaError

    code = error.code()
    if code in (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
    ):
        return "check data.kafka.sasl_mechanism, sasl_username and the password"
    if code == KafkaError._SSL or (code == KafkaError._TRANSPORT and _TLS_ALERT in error.str()):
        return (
            "check data.kafka.security_protocol, ssl_ca_location, and the certificate and key of this client"
        )
    if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
        return "let the user of data.kafka read and describe the topic"
    return None
