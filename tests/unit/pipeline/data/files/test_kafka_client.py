"""Settings of Kafka's client, and what is said where brokers or files refuse it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.config.kafka import KafkaSection
from shadowsync.pipeline.data.files import kafka_client
from shadowsync.pipeline.data.files.kafka_client import (
    KafkaRefused,
    require_topics_usable,
)
from shadowsync.pipeline.data.files.text import line_blocks
from shadowsync.pipeline.data.files.topic import offsets_of, partitions_of
from shadowsync.pipeline.data.span import Span
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.tests.support.outside.broker import Broker, running_broker
from shadowsync.tests.support.outside.secured_broker import Certificates, SecuredBroker

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
PASSWORD = "p4ss word-ü"
USER = {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password_env": "KAFKA_PASSWORD"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as one:
        one.write("clicks", ["1,a", "0,b", "1,c"])
        yield one


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates.make(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    monkeypatch.setattr(kafka_client, "_FIRST_TRY_SECONDS", 0.3)


def section(**keys: Any) -> KafkaSection:
    return KafkaSection.model_validate(keys)


def by_file(password: Path) -> dict[str, str]:
    return USER | {"sasl_password_env": "", "sasl_password_file": str(password)}


def job_of(kafka: KafkaSection) -> Job:
    data = {
        "format": "csv",
        "header": False,
        "path": ["kafka://127.0.0.1:9/clicks"],
        "columns": {"clicked": {"kind": "label"}, "ad": {"kind": "categorical"}},
        "kafka": kafka.model_dump(),
    }
    return Job.model_validate({"data": data})


def messages(url: str, kafka: KafkaSection) -> list[bytes]:
    """All messages of a topic's first partition, read as a job reads them."""
    path = partitions_of(url, kafka)[0]
    span = Span(0, path, "offsets", *offsets_of(path, kafka))
    found = [block.buffer[: block.stop].tobytes() for block in line_blocks(span, kafka=kafka)]
    return b"".join(found).splitlines()


def test_a_variable_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = section(security_protocol="sasl_plaintext", **USER)
    for environment in ({"KAFKA_PASSWORD": ""}, {}):
        monkeypatch.delenv("KAFKA_PASSWORD", raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(JobFileError, match="the variable KAFKA_PASSWORD is not set, or empty") as raised:
            require_topics_usable(job_of(kafka).data)
        assert raised.value.where == "data.kafka.sasl_password_env"
        assert raised.value.remedy


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0, "the password of data.kafka.sasl_password_file cannot be read (No such file"),
        ("secret-1", 0o644, "others can read the password of data.kafka.sasl_password_file"),
        ("", 0o600, "is not a password in one line"),
        ("secret-1\nsecret-2\n", 0o600, "is not a password in one line"),
    ],
)
def test_a_password_file_that_cannot_be_used(tmp_path: Path, text: str | None, mode: int, said: str) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text, encoding="utf-8")
        file.chmod(mode)
    with pytest.raises(JobFileError) as raised:
        require_topics_usable(job_of(section(security_protocol="sasl_ssl", **by_file(file))).data)
    assert said in str(raised.value)
    assert raised.value.where == str(file)
    assert "secret" not in str(raised.value)


def test_files_of_tls_that_cannot_be_used(certificates: Certificates, tmp_path: Path) -> None:
    certificate, key = certificates.client

    def said(**keys: str) -> str:
        with pytest.raises(JobFileError) as raised:
            require_topics_usable(job_of(section(security_protocol="ssl", **keys)).data)
        return str(raised.value)

    absent = str(tmp_path / "absent")
    assert f"{absent}: data.kafka.ssl_ca_location cannot be read (No such" in said(ssl_ca_location=absent)
    assert "data.kafka: cannot be used (ssl.ca.location failed" in said(ssl_ca_location=key)
    open_key = tmp_path / "open.key"
    shutil.copy(key, open_key)
    open_key.chmod(0o640)
    found = said(ssl_certificate_location=certificate, ssl_key_location=str(open_key))
    assert "others can read the key of data.kafka.ssl_key_location" in found
    open_key.chmod(0o600)
    own = {"ssl_certificate_location": certificate, "ssl_key_location": str(open_key)}
    require_topics_usable(job_of(section(security_protocol="ssl", **own)).data)
    other = certificates.server[1]
    assert "key values mismatch" in said(ssl_certificate_location=certificate, ssl_key_location=other)


def test_messages_come_over_tls_with_a_certificate_of_the_client(
    broker: Broker, certificates: Certificates
) -> None:
    tls = {"security_protocol": "ssl", "ssl_ca_location": certificates.ca}
    own = dict(zip(("ssl_certificate_location", "ssl_key_location"), certificates.client, strict=True))
    rows = [b"1,a", b"0,b", b"1,c"]
    with SecuredBroker(broker, certificates).running() as secured:
        assert messages(secured.url("clicks"), section(**tls)) == rows
    with SecuredBroker(broker, certificates, asks_client=True).running() as secured:
        assert messages(secured.url("clicks"), section(**tls, **own)) == rows
        with pytest.raises(KafkaRefused, match="certificate required") as raised:
            messages(secured.url("clicks"), section(**tls))
        assert "the certificate and key of this client" in raised.value.remedy


def test_a_broker_of_another_authority_is_refused(broker: Broker, certificates: Certificates) -> None:
    with SecuredBroker(broker, certificates).running() as secured:
        url = secured.url("clicks")
        for authority in ({"ssl_ca_location": certificates.other_ca}, {}):
            with pytest.raises(KafkaRefused, match="certificate verify failed") as raised:
                partitions_of(url, section(security_protocol="ssl", **authority))
            assert raised.value.where == url
            assert "ssl_ca_location" in raised.value.remedy


@pytest.mark.parametrize("protocol", ["sasl_ssl", "sasl_plaintext"])
def test_a_user_logs_in_and_a_wrong_password_is_refused(
    broker: Broker,
    certificates: Certificates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    protocol: str,
) -> None:
    """With TLS by a variable, without it by a file."""
    tls = certificates if protocol == "sasl_ssl" else None
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n", encoding="utf-8")
    file.chmod(0o600)
    keys = USER | {"ssl_ca_location": certificates.ca} if tls else by_file(file)
    kafka = section(security_protocol=protocol, **keys)
    with SecuredBroker(broker, tls, user=("me", PASSWORD)).running() as secured:
        url = secured.url("clicks")
        assert messages(url, kafka) == [b"1,a", b"0,b", b"1,c"]
        assert secured.refused == 0
        monkeypatch.setenv("KAFKA_PASSWORD", "another-one")
        file.write_text("another-one", encoding="utf-8")
        with pytest.raises(KafkaRefused, match="SASL authentication error") as raised:
            partitions_of(url, kafka)
        assert secured.refused > 0
    assert "check data.kafka.sasl_mechanism, sasl_username and the password" in raised.value.remedy
    assert "another-one" not in str(raised.value)


def test_brokers_that_do_not_answer_are_no_refusal(
    broker: Broker, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_client, "REPLY_SECONDS", 0.5)
    with SecuredBroker(broker, certificates).running() as secured:
        url = secured.url("clicks")
        with pytest.raises(DataError, match="cannot be read") as raised:
            partitions_of(url)
    assert not isinstance(raised.value, KafkaRefused)
    with pytest.raises(DataError, match=r"Connection refused") as raised:
        partitions_of("kafka://127.0.0.1:9/clicks", section(security_protocol="ssl"))
    assert not isinstance(raised.value, KafkaRefused)
