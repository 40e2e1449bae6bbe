"""[data.kafka]: what it takes, what it refuses, and where its files are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError

Load = Callable[..., Job]
USER = 'sasl_mechanism="PLAIN", sasl_username="me"'


@pytest.mark.parametrize(
    ("given", "encrypts", "logs_in"),
    [
        ("{}", False, False),
        ('{security_protocol="SSL"}', True, False),
        (f'{{security_protocol="SASL_SSL", {USER}, sasl_password_env="P"}}', True, True),
        (f'{{security_protocol="sasl_plaintext", {USER}, sasl_password_file="/p"}}', False, True),
    ],
)
def test_protocols_are_known_in_capitals_too(load: Load, given: str, encrypts: bool, logs_in: bool) -> None:
    kafka = load("", f"data.kafka={given}").data.kafka
    assert (kafka.encrypts, kafka.logs_in) == (encrypts, logs_in)
    assert kafka.security_protocol == kafka.security_protocol.lower()


def test_files_are_relative_to_the_job_file_and_stay_where_they_are(
    load: Load, resolved: Callable[[Any], Job], tmp_path: Path
) -> None:
    job = load(
        '[data.kafka]\nsecurity_protocol = "SASL_SSL"\nssl_ca_location = "ca.pem"\n'
        'sasl_mechanism = "SCRAM-SHA-512"\nsasl_username = "me"\nsasl_password_file = "/run/secrets/kafka"\n'
    )
    assert job.data.kafka.ssl_ca_location == str(tmp_path / "jobs" / "ca.pem")
    assert job.data.kafka.sasl_password_file == "/run/secrets/kafka"
    assert resolved(job) == job


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('security_protocol="tls"', "data.kafka.security_protocol: 'tls' given; input should be 'plaintext'"),
        ('sasl_mechanism="GSSAPI"', "data.kafka.sasl_mechanism: 'GSSAPI' given; input should be '', 'PLAIN'"),
        ('ssl_ca_location="ca.pem"', 'data.kafka.ssl_ca_location: given; security_protocol = "plaintext"'),
        ('ssl_ca_location=5', "data.kafka.ssl_ca_location: 5 given"),
        (f'security_protocol="ssl", {USER}', 'not use it: give "sasl_ssl" or "sasl_plaintext"'),
        (
            'security_protocol="ssl", ssl_key_location="k.pem"',
            "data.kafka: give ssl_certificate_location and ssl_key_location together",
        ),
        ('security_protocol="sasl_ssl"', "data.kafka.sasl_mechanism: is missing"),
        (
            'security_protocol="sasl_ssl", sasl_mechanism="PLAIN", sasl_password_env="P"',
            "data.kafka.sasl_username: is missing",
        ),
        (f'security_protocol="sasl_ssl", {USER}', "give either sasl_password_env or sasl_password_file"),
        (
            f'security_protocol="sasl_ssl", {USER}, sasl_password_env="P", sasl_password_file="/p"',
            "give either sasl_password_env or sasl_password_file",
        ),
        ('sasl_password_env="my password"', "data.kafka.sasl_password_env: 'my password' given"),
        ('ssl_ca="ca.pem"', "data.kafka.ssl_ca: unknown key; did you mean"),
    ],
)  # fmt: skip
def test_what_is_refused(load: Load, given: str, said: str) -> None:
    with pytest.raises(JobFileError) as raised:
        load("", f"data.kafka={{{given}}}")
    assert said in str(raised.value)


def test_a_password_is_refused_and_not_repeated(load: Load) -> None:
    with pytest.raises(JobFileError, match="sasl_password: given; a job file is copied") as raised:
        load("", 'data.kafka={sasl_password="hunter-2"}')
    assert "sasl_password_env" in str(raised.value)
    assert "hunter-2" not in str(raised.value)
    with pytest.raises(JobFileError, match="the address of a topic has a user") as raised:
        load("", "data.path=kafka://me:hunter-2@host:9092/clicks")
    assert "hunter-2" not in str(raised.value)
