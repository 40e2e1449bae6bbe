"""IP addresses: the networks that are their ids, from every format the same, and which texts are none."""

from __future__ import annotations

import ipaddress
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shadowsync.pipeline.data.bad_rows import BadRows, printable
from shadowsync.pipeline.data.columns.kinds.addresses import networks_of
from shadowsync.pipeline.errors import DataError, JobFileError
from shadowsync.pipeline.input.job_input import JobInput
from shadowsync.pipeline.saved_model.input_rows import input_schema, rows_of_columns
from shadowsync.tests.support.data.prepared import check_prepared
from shadowsync.tests.support.data.schemas import read_all, rows_of_ids, schema_job, write_lines

COLUMNS: dict[str, Any] = {"y": "label", "ip": "ip"}
HEADER = "y,ip"
GOOD = ("192.0.2.7", "", "2001:db8:1:2::7", "::ffff:10.1.2.3")
NETWORKS = (
    *("192.0.0.0/8", "192.0.0.0/16", "192.0.2.0/24"),
    *("2001:db8::/32", "2001:db8:1::/48", "2001:db8:1:2::/64"),
    *("10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"),
)
BAD = (
    *("localhost", "256.1.1.1", "1.2.3", "1.2.3.4.5", "1.2.3.4:80", "1.2.3.4/24", " 1.2.3.4", "010.1.1.1"),
    *("1.2.3.-4", "٣.1.1.1", "fe80::1%eth0", "2001:db8::/32", "[::1]", "1::2::3", "0x7f.0.0.1", "3232235777"),
)


def test_networks_are_those_of_the_standard_library() -> None:
    draw = random.Random(1)
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = []
    for _ in range(500):
        addresses.append(ipaddress.IPv4Address(draw.getrandbits(32)))
        addresses.append(ipaddress.IPv6Address(draw.getrandbits(128)))
    draw.shuffle(addresses)
    networks, has_address, wrong = networks_of(pa.array([*map(str, addresses)]))
    assert has_address.all()
    assert not wrong.any()
    bits = {4: (8, 16, 24), 6: (32, 48, 64)}
    assert networks.to_pylist() == [
        str(ipaddress.ip_network(f"{one}/{prefix}", strict=False))
        for one in addresses
        for prefix in bits[one.version]
    ]


def test_an_address_is_a_bag_of_its_networks(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", *(f"1,{ip}" for ip in GOOD), header=HEADER)
    got = read_all(schema_job(path, columns=COLUMNS))
    assert got.bags.lengths.tolist() == [[3, 0, 3, 3]]
    rows = rows_of_ids("ip", *NETWORKS)
    assert got.bags.rows.tolist() == rows
    assert len(set(rows)) == len(NETWORKS), "the control: other networks, other rows"


@pytest.mark.parametrize(
    "of", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int8(), pa.string())]
)
def test_parquet_gives_the_same(tmp_path: Path, of: pa.DataType) -> None:
    values = pa.array([ip or None for ip in GOOD]).cast(of)
    pq.write_table(pa.table({"y": [1] * len(GOOD), "ip": values}), tmp_path / "a.parquet")
    got = read_all(schema_job(tmp_path / "a.parquet", "parquet", COLUMNS))
    assert got.bags.lengths.tolist() == [[3, 0, 3, 3]]
    assert got.bags.rows.tolist() == rows_of_ids("ip", *NETWORKS)


@pytest.mark.parametrize("bad", BAD)
def test_a_text_that_is_no_address_makes_a_bad_row(tmp_path: Path, bad: str) -> None:
    lines, rows = ["1,10.0.0.1"] * 5, BadRows(1)
    path = write_lines(tmp_path / "a.csv", *lines, f"1,{bad}", *lines, header=HEADER)
    assert len(read_all(schema_job(path, columns=COLUMNS), rows)) == 10
    (row,) = rows.first
    assert (row.line, row.why) == (7, f"ip '{printable(bad.encode(), 20)}' is not an IP address")


def test_a_file_without_addresses_is_refused_at_once(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "a.csv", *(f"1,u{at}" for at in range(9)), header=HEADER)
    with pytest.raises(DataError, match="column ip: 'u0', 'u1', 'u2' are not an IP address"):
        JobInput(schema_job(path, columns=COLUMNS)).plan([str(path)])


def test_numbers_of_parquet_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"y": [1], "ip": pa.array([3232235777], pa.uint32())}), tmp_path / "a.parquet")
    job = schema_job(tmp_path / "a.parquet", "parquet", COLUMNS)
    with pytest.raises(
        DataError, match="column ip has type uint32; ip needs texts; write the addresses as texts"
    ):
        JobInput(job).plan(job.data.path)


def test_options_of_other_kinds_are_refused(tmp_path: Path) -> None:
    for key, value in (("pooling", "mean"), ("delimiter", ";"), ("part", "hour")):
        with pytest.raises(JobFileError, match=rf'data\.columns\.ip\.{key}: given; .* this is "ip"'):
            schema_job(tmp_path / "a.csv", columns=COLUMNS | {"ip": {"kind": "ip", key: value}})


@pytest.mark.parametrize("model", [{"table_rows": 1000}, {"table_kind": "growing"}])
def test_prepared_rows_are_the_same(tmp_path: Path, model: dict[str, Any]) -> None:
    draw = random.Random(1)
    lines = [f"{draw.randrange(2)},{draw.choice(GOOD)}" for _ in range(500)]
    data = {
        "format": "csv",
        "path": str(write_lines(tmp_path / "a.csv", *lines, header=HEADER)),
        "columns": COLUMNS,
    }
    batches, _ = check_prepared({"data": data, "model": model}, tmp_path / "folder")
    assert sum(len(batch.bag_rows) for batch in batches) > 500


def test_rows_to_score(tmp_path: Path) -> None:
    """As values in memory: an address gives ids, another text has no score."""
    schema = input_schema(schema_job(tmp_path / "a.csv", columns=COLUMNS), {})
    rows = rows_of_columns({"ip": pa.array(["192.0.2.7", "x", None])}, schema, [], "here", np.arange(3))
    assert rows.scored.tolist() == [0, 2]
    assert rows.why == {1: "ip 'x' not an IP address"}
    assert rows.examples.bags.lengths.tolist() == [[3, 0]]
