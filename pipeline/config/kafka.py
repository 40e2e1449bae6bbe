"""`[data.kafka]`: how the brokers of Kafka topics are reached."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, model_validator

from .sections import Section

PATH_SETTINGS: Final = (
    "ssl_ca_location",
    "ssl_certificate_location",
    "ssl_key_location",
    "sasl_password_file",
)
"""Settings that name files."""

# Kafka's own tools write protocols in capitals, librdkafka in small letters.
Protocol = Annotated[
    Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"],
    BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value),
]
Mechanism = Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]


class KafkaSection(Section):
    """How the brokers of Kafka topics are reached: encryption (TLS) and user (SASL).

    Names and meaning are those of Kafka's clients. Files are in PEM, and relative to the folder of the job
    file. Each process that reads a topic reads the password itself, so every machine with a coordinator or a
    reader needs the variable or the file; job, report and logs have the name of it only. Nothing here is part
    of what nodes must agree on, and a resumed run may change it.
    """

    security_protocol: Protocol = Field(
        default="plaintext",
        description='"ssl" and "sasl_ssl" encrypt; "sasl_ssl" and "sasl_plaintext" log in.',
    )
    ssl_ca_location: str = Field(
        default="", description='Certificates to trust; "": those that the system trusts.'
    )
    ssl_certificate_location: str = Field(
        default="", description="Certificate of this client, if the brokers ask for one."
    )
    ssl_key_location: str = Field(
        default="",
        description="Private key of the certificate, without a passphrase; only its user may read it.",
    )
    sasl_mechanism: Mechanism = Field(default="", description="How the user proves the password.")
    sasl_username: str = Field(default="", description="Name of the user.")
    sasl_password_env: Annotated[str, Field(pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = Field(
        default="", description="Environment variable that has the password."
    )
    sasl_password_file: str = Field(
        default="", description="File that has the password, in one line; only its user may read it."
    )

    @property
    def encrypts(self) -> bool:
        """Whether connections are encrypted."""
        return self.security_protocol in ("ssl", "sasl_ssl")

    @property
    def logs_in(self) -> bool:
        """Whether the client logs in with a password."""
        return self.security_protocol.startswith("sasl_")

    @model_validator(mode="before")
    @classmethod
    def _no_password(cls, value: Any) -> Any:
        if isinstance(value, dict) and "sasl_password" in value:
            raise ValueError(
                "data.kafka.sasl_password: given; a job file is copied into the run's folder, so give"
                " sasl_password_env, a variable's name, or sasl_password_file"
            )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> KafkaSection:
        keys = {key for key in type(self).model_fields if key != "security_protocol" and getattr(self, key)}
        for key in sorted(keys):
            of_tls = key.startswith("ssl_")
            if not (self.encrypts if of_tls else self.logs_in):
                protocols = '"ssl" or "sasl_ssl"' if of_tls else '"sasl_ssl" or "sasl_plaintext"'
                raise ValueError(
                    f'data.kafka.{key}: given; security_protocol = "{self.security_protocol}" does not use'
                    f" it: give {protocols}"
                )
        if bool(self.ssl_certificate_location) != bool(self.ssl_key_location):
            raise ValueError("data.kafka: give ssl_certificate_location and ssl_key_location together")
        if not self.logs_in:
            return self
        for key in ("sasl_mechanism", "sasl_username"):
            if key not in keys:
                raise ValueError(
                    f'data.kafka.{key}: is missing; security_protocol = "{self.security_protocol}" needs it'
                )
        if bool(self.sasl_password_env) == bool(self.sasl_password_file):
            raise ValueError("data.kafka: give either sasl_password_env or sasl_password_file")
        return self
