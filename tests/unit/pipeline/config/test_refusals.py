"""What is said of a job file that cannot be used: the key, what was given, and what would do."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from shadowsync.pipeline.config.job import Job
from shadowsync.pipeline.errors import JobFileError
from shadowsync.pipeline.jobfile.load import load_job
from shadowsync.pipeline.text.sizes import SIZE_HINT

Refusal = Callable[..., str]

DATA = '[data]\nformat = "parquet"\npath = "train.parquet"\n'
AT_LEAST_1 = "input should be greater than or equal to 1"


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ("[trainer]\nworker = 2", "trainer.worker: unknown key; did you mean 'workers'?"),
        ("[trainr]\nworkers = 2", "trainr: unknown key; did you mean 'trainer'?"),
        (
            "[checkpoint]\nevery_example = 5",
            "checkpoint.every_example: unknown key; did you mean 'every_examples'?",
        ),
        (
            "[network]\nspeed = 2",
            "network.speed: unknown key; known here: advertise, bandwidth, bind, delay, delay_links, "
            "shared_memory, transport",
        ),
        (
            "[qqq]\nx = 2",
            "qqq: unknown key; known here: checkpoint, codecs, data, embedding, model, network, report, run, "
            "start, sync, tables, trainer, validation, watch",
        ),
        (
            "[model]\nint = 2",
            "model.int: unknown key; known here: attention, bottom, dropout, embedding_dim, focal_gamma, "
            "item, label_smoothing, layer_norm, loss, name, negatives, options, output_bias, "
            "positive_weight, query, scores, table_kind, table_rows, top",
        ),
    ],
)
def test_unknown_key(refusal: Refusal, sections: str, said: str) -> None:
    assert refusal(DATA + sections) == said


# One of each kind of limit; docs/job-file.md has all, and a test compares it. All that our validators say.
@pytest.mark.parametrize(
    ("key", "given", "said"),
    [
        ("run.name", '"a b"', "'a b' given; string should match pattern"),
        ("run.name", '"../x"', "'../x' given; string should match pattern"),
        ("run.name", "5", "5 given; input should be a valid string"),
        ("run.seed", "-1", "-1 given; input should be greater than or equal to 0"),
        ("run.seed", "2147483648", "2147483648 given; input should be less than 2147483648"),
        ("run.deterministic", '"yes"', "'yes' given; input should be a valid boolean"),
        ("run.deterministic", "1", "1 given; input should be a valid boolean"),
        ("run.node_timeout_seconds", "0", "0 given; input should be greater than 0"),
        ("run.start_timeout_seconds", "inf", "inf given; input should be a finite number"),
        ("data.epochs", "1.0", "1.0 given; input should be a valid integer"),
        ("data.eval_path.0", "[7]", "7 given; input should be a valid string"),
        ("model.table_rows", "0", f"0 given; {AT_LEAST_1}"),
        ("model.table_rows", "2147483648", "2147483648 given; input should be less than 2147483648"),
        ("model.table_rows", '"many"', "'many' given; input should be a valid integer"),
        ("model.table_rows.1", "[1, 0]", f"0 given; {AT_LEAST_1}"),
        ("model.table_rows.0", '["a", 1]', "'a' given; input should be a valid integer"),
        ("model.bottom", "64", "64 given; input should be a valid list"),
        ("model.bottom.1", "[64, 0]", f"0 given; {AT_LEAST_1}"),
        ("model.top.0", "[1.5]", "1.5 given; input should be a valid integer"),
        ("model.options", "3", "3 given; input should be a valid dictionary"),
        ("model.options.d", "{d = 2024-01-01}", "2024-01-01 given; write it as text, in quotes"),
        ("trainer.workers", "true", "True given; input should be a valid integer"),
        ("trainer.batch", "1000001", "1000001 given; input should be less than or equal to 1000000"),
        ("trainer.optimizer", '"rmsprop"', "'rmsprop' given; input should be 'sgd', 'adagrad', 'adam' or"),
        ("trainer.clip_norm", "0.0", "0.0 given; input should be greater than 0"),
        ("trainer.device", '"gpu"', "'gpu' given; string should match pattern"),
        ("trainer.lr", "nan", "nan given; input should be a finite number"),
        ("trainer.lr", '"0.1"', "'0.1' given; input should be a valid number"),
        ("trainer.credit", "1025", "1025 given; input should be less than or equal to 1024"),
        ("embedding.weight_decay", "inf", "inf given; input should be a finite number"),
        ("embedding.memory_bytes", '"4Gb4"', f"'4Gb4' given; {SIZE_HINT}"),
        ("embedding.memory_bytes", "1e9", f"1000000000.0 given; {SIZE_HINT}"),
        ("embedding.memory_bytes", "-1", "-1 given; input should be greater than or equal to 0"),
        ("sync.gap", "2.5", "2.5 given; input should be a valid integer"),
        ("sync.start_iterations", "100", "100 given; set sync.gap, which the gap grows to"),
        ("sync.start_duty", "0.1", "0.1 given; set sync.start_iterations, for which it holds"),
        ("codecs.center_up", '"int9"', "'int9' is not a codec; did you mean 'int8'?"),
        ("codecs.center_down", '"bf"', "'bf' is not a codec; give one of float32, sparse, bfloat16, int8"),
        ("codecs.peers_up", '"top_k"', "'top_k' is not a codec; did you mean 'topk'?"),
        ("codecs.peers_down", '""', "'' is not a codec; give one of float32"),
        ("codecs.vectors", '"int8"', "'int8' given; this link has no error feedback, use one of float32"),
        ("codecs.gradients", '"topk"', "'topk' given; this link has no error feedback, use one of float32"),
        ("codecs.topk_bits", "3", "3 given; input should be 2, 4 or 8"),
        ("network.delay", '"50"', "'50' given; write a number and its unit: 50ms, 0.2s or 800us"),
        ("network.bandwidth", '"100mbps"', "'100mbps' given; write a number and its unit: 100mbit, 2.5gbit"),
    ],
)
def test_wrong_value(refusal: Refusal, key: str, given: str, said: str) -> None:
    section, name = key.split(".")[:2]
    assert refusal(DATA, f"{section}.{name}={given}").startswith(f"{key}: {said}")
    if section != "data":
        assert refusal(f"{DATA}[{section}]\n{name} = {given}\n").startswith(f"{key}: {said}")


@pytest.mark.parametrize(
    "given", ["2024-01-01", "2024-01-01T07:30:00", "2024-01-01 07:30:00.5+02:00", "07:30:00"]
)
@pytest.mark.parametrize(
    "key",
    [
        "run.name",
        "trainer.batch",
        "trainer.credit",
        "data.split.validation_from",
        "sync.options.since",
        "none.at",
    ],
)
def test_dates_are_texts(refusal: Refusal, key: str, given: str) -> None:
    """TOML has dates, and no key takes one."""
    section, _, name = key.rpartition(".")
    said = f"{key}: {tomllib.loads(f'at = {given}')['at']} given; write it as text, in quotes"
    assert refusal(f"{DATA}[{section}]\n{name} = {given}\n") == said
    listed = said.replace(f"{key}:", f"{key}.1:")
    assert refusal(f"{DATA}[{section}]\n{name} = [1, {given}]\n") == listed


@pytest.mark.parametrize("given", ["0", '"many"', "[1, 0]", '["a", 1]', "true", "1.5"])
def test_table_rows_are_explained_once(refusal: Refusal, given: str) -> None:
    """The schema takes a number or a list; only what was written is spoken of."""
    assert refusal(DATA, f"model.table_rows={given}").count("given") == 1


def test_number_of_tables(refusal: Refusal, load: Callable[..., Job]) -> None:
    sections = "[model]\ntable_rows = [4, 5]\n"
    assert refusal(DATA + sections) == (
        "model.table_rows: 2 numbers given; give one number, or one for each of the 26 tables "
        "(data.categorical_features)"
    )
    assert load(sections, "data.categorical_features=2").column_rows == (4, 5)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "[data]: is missing; add it"),
        ('[data]\nformat = "parquet"\n', "data.path: is missing; give it a value"),
        ('[data]\npath = "x"\n', "data.format: is missing; give it a value"),
        ('[data]\nformat = "parquet"\npath = []\n', "data.path: [] given; list should have at least 1 item"),
        (
            '[data]\nformat = "parquet"\npath = ["x", 1]\n',
            "data.path.1: 1 given; input should be a valid str",
        ),
        ('[data]\nformat = "parquet"\npath = 7\n', "data.path: 7 given; input should be a valid list"),
        ('[data]\nformat = "orc"\npath = "x"\n', "data.format: 'orc' given; input should be 'criteo_tsv'"),
        ("data = 5", "data: 5 given; it is a section, write [data] and its keys below"),
        (f"run = 5\n{DATA}", "run: 5 given; it is a section, write [run] and its keys below"),
        ("[data\n", "is not valid TOML (Expected ']'"),
        ("[data]\n[data]\n", "is not valid TOML ("),
    ],
)
def test_wrong_file(refusal: Refusal, text: str, said: str) -> None:
    assert refusal(text).startswith(said)


def test_several_errors_in_one_line(refusal: Refusal) -> None:
    keys = ["workers", "count", "batch", "credit", "lr"]
    sections = "[trainer]\n" + "".join(f"{key} = 0\n" for key in keys)
    said = refusal(DATA + sections)
    assert all(f"trainer.{key}: 0 given" in said for key in keys)
    assert "more" not in said
    said = refusal(DATA + sections + "[sync]\nevery = 0\nduty = 0\n")
    assert said.count("given") == 5
    assert said.endswith("; and 2 more")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.toml", "no such job file; give the path of a TOML file"),
        (".", "cannot be read (Is a directory); give the path of a TOML file"),
        ("binary.toml", "is not valid TOML ('utf-8' codec"),
    ],
)
def test_no_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(JobFileError) as caught:
        load_job(name)
    assert str(caught.value).startswith(f"{name}: {said}")


@pytest.mark.parametrize(
    ("name", "instead"),
    [("auto", 'give "int8" or "int4" there'), ("float16", '"bfloat16", which has as many')],
)
@pytest.mark.parametrize(
    "way", ["center_up", "center_down", "peers_up", "peers_down", "vectors", "gradients"]
)
def test_a_codec_that_is_gone(refusal: Refusal, way: str, name: str, instead: str) -> None:
    said = refusal(f'{DATA}[codecs]\n{way} = "{name}"')
    assert said.startswith(f'codecs.{way}: "{name}" was removed: ')
    assert instead in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('[model]\noutput_bias = "rate"', "model.output_bias"),
        ("[model]\nfocal_gamma = 2.0", 'model.focal_gamma: 2 given; it needs model.loss = "focal"'),
        (
            '[model]\nloss = "focal"\nlabel_smoothing = 0.1',
            "model.label_smoothing: 0.1 given; the focal loss needs labels of 0 and 1",
        ),
        ('[model]\nname = "a.b:C"\ndropout = 0.5', "model.dropout: given; it is for the built-in models"),
        ('[model]\nname = "a.b:C"\nlayer_norm = true', "model.layer_norm: given; it is for the built-in"),
        (
            DATA
            + '[tables.C1]\nkind = "growing"\nevict_after_seconds = 9\n[run]\ndeterministic = true\n'
            + '[sync]\nalgorithm = "none"',
            "tables.C1.evict_after_seconds: 9 given; when rows are freed is not the same in each run",
        ),
        (
            DATA + '[model]\ndropout = 0.5\n[run]\ndeterministic = true\n[sync]\nalgorithm = "none"',
            "model.dropout: 0.5 given; what it drops is not the same in each run",
        ),
        (DATA + '[validation]\nmetric = "acc"', "validation.metric: 'acc' given; give one of ne, logloss"),
        (
            DATA + '[validation]\nmetric = "auc/buy"',
            "'buy' is no further label; there is one label: leave it out",
        ),
        (
            '[model]\nloss = "focal"\npositive_weight = 2.0',
            "model.positive_weight: 2 given; the focal loss has its own weights",
        ),
        (DATA + "[start]\nresume = true", "start.resume: true given; it needs start.checkpoint"),
        (
            DATA + '[start]\nresume = true\ncheckpoint = "x"\ndense = "none"',
            'start.dense: "none" given; a resumed run takes its whole model',
        ),
        (
            DATA + "[validation]\npatience = 3",
            "validation.patience: 3 given; set validation.every_examples, every_seconds or every_epochs of"
            " [validation], or leave patience out: the end is validated in any case",
        ),
        (DATA + "[validation]\nwait = true", "validation.wait: true given; set validation.every_examples"),
        (
            DATA + 'negative_share = 0.5\n[model]\nloss = "focal"',
            "data.negative_share: 0.5 given; scores of the focal loss cannot be calibrated back",
        ),
    ],
)
def test_keys_that_cannot_be_used_with_others(refusal: Refusal, line: str, said: str) -> None:
    assert said in refusal(line)
