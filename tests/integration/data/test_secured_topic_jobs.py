"""Jobs whose topic needs TLS and a user: they train, refuse, and keep the password to themselves."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.files import kafka_client
from shadowsync.pipeline.errors import ExitCode, JobFileError
from shadowsync.pipeline.jobfile.load import load_resolved
from shadowsync.pipeline.saved_model.evaluate import evaluate_model
from shadowsync.pipeline.saved_model.model import SavedModel
from shadowsync.tests.integration.data.test_followed_input import stop
from shadowsync.tests.integration.data.test_topic_jobs import COLUMNS, rows, wait_for
from shadowsync.tests.support.jobs.commands import said
from shadowsync.tests.support.jobs.in_process_cluster import ClusterMaker
from shadowsync.tests.support.outside.broker import Broker, running_broker
from shadowsync.tests.support.outside.secured_broker import Certificates, SecuredBroker

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
USER, PASSWORD = "reader-of-clicks", "nobody-writes-this-down"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with running_broker() as one:
        yield one


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Certificates.make(folder)


@pytest.fixture
def secured(broker: Broker, certificates: Certificates) -> Iterator[SecuredBroker]:
    with SecuredBroker(broker, certificates, asks_client=True, user=(USER, PASSWORD)).running() as one:
        yield one


@pytest.fixture(autouse=True)
def password(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLICKS_PASSWORD", PASSWORD)
    monkeypatch.setattr(kafka_client, "_FIRST_TRY_SECONDS", 0.3)


@pytest.fixture
def reading(in_process: ClusterMaker, secured: SecuredBroker, certificates: Certificates) -> ClusterMaker:
    """A job on the topic "clicks" of the secured broker, with changes of its [data]."""
    certificate, key = certificates.client
    kafka = {
        "security_protocol": "SASL_SSL",
        "ssl_ca_location": certificates.ca,
        "ssl_certificate_location": certificate,
        "ssl_key_location": key,
        "sasl_mechanism": "PLAIN",
        "sasl_username": USER,
        "sasl_password_env": "CLICKS_PASSWORD",
    }
    section: dict[str, Any] = {
        "format": "csv",
        "header": False,
        "path": secured.url("clicks"),
        "columns": COLUMNS,
        "eval_path": None,
        "kafka": kafka,
    }
    return lambda **data: in_process({"data": section | data})


def files_with(folder: Path, text: str) -> list[str]:
    return [
        str(file.relative_to(folder))
        for file in sorted(folder.rglob("*"))
        if file.is_file() and text.encode() in file.read_bytes()
    ]


def test_a_followed_topic_is_trained_on_and_the_password_is_in_no_file(
    reading: ClusterMaker, broker: Broker, secured: SecuredBroker
) -> None:
    broker.write("clicks", rows(1, 600))
    broker.write("held-out", rows(5, 200))
    follow = {"follow": True, "follow_seconds": 0.1, "eval_path": secured.url("held-out")}
    own = reading(**follow).start()
    wait_for(own, 600)
    broker.write("clicks", rows(2, 300), partition=2)
    wait_for(own, 900)
    stop(own)
    own.ended(distinct=900)
    assert own.run.evaluation.examples == 200
    assert secured.refused == 0
    assert files_with(own.run.folder, PASSWORD) == []
    assert PASSWORD not in "".join(node.text() for nodes in own.nodes.values() for node in nodes)
    # The control: the search finds what is there.
    assert "job.json" in files_with(own.run.folder, USER)
    assert "CLICKS_PASSWORD" in str(load_resolved(own.run.folder / "job.json"))
    # The saved model reads a topic by the same settings.
    model = SavedModel.open(own.run.folder)
    assert evaluate_model(model, [secured.url("held-out")])["examples"] == 200
    command = ["predict", str(own.run.folder), "--data", secured.url("held-out"), "--out", "scores.parquet"]
    said(*command)
    assert pq.read_metadata("scores.parquet").num_rows == 200


def test_a_wrong_password_ends_a_job_before_any_node_joins(
    reading: ClusterMaker, broker: Broker, secured: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.write("clicks", rows(1, 10))
    monkeypatch.setenv("CLICKS_PASSWORD", "another-one")
    own = reading().start()
    assert own.wait() == ExitCode.DATA
    assert "SASL authentication error" in own.coordinator.text()
    assert "check data.kafka.sasl_mechanism, sasl_username and the password" in own.coordinator.text()
    assert "another-one" not in own.coordinator.text()
    assert secured.refused > 0


def test_credentials_that_are_refused_later_end_a_followed_job(
    reading: ClusterMaker, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.write("clicks", rows(1, 300))
    own = reading(follow=True, follow_seconds=0.1).start()
    wait_for(own, 300)
    monkeypatch.setenv("CLICKS_PASSWORD", "another-one")
    assert own.wait() == ExitCode.DATA, own.coordinator.text()
    report = own.run.report
    assert report.examples.distinct == 300
    assert "the topic cannot be trained on: " in report.outcome
    assert "SASL authentication error" in report.outcome


def test_a_run_without_the_password_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CLICKS_PASSWORD")
    job = tmp_path / "job.toml"
    job.write_text(
        '[data]\nformat = "criteo_tsv"\npath = "kafka://127.0.0.1:9/clicks"\n[data.kafka]\n'
        'security_protocol = "SASL_SSL"\nsasl_mechanism = "PLAIN"\nsasl_username = "me"\n'
        'sasl_password_env = "CLICKS_PASSWORD"\n',
        encoding="utf-8",
    )
    text = said("run", str(job), code=ExitCode.USAGE)
    assert "data.kafka.sasl_password_env: the variable CLICKS_PASSWORD is not set" in text
    assert not (tmp_path / "runs").exists()


def test_a_reader_without_the_password_does_not_join(
    reading: ClusterMaker, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.write("clicks", rows(1, 10))
    own = reading()
    own.start_coordinator()
    monkeypatch.delenv("CLICKS_PASSWORD")
    reader = own.join("reader")
    assert reader.wait() == JobFileError.exit_code
    assert "the variable CLICKS_PASSWORD is not set" in reader.text()
    own.coordinator.interrupt()
    assert own.wait() == ExitCode.INTERRUPTED
