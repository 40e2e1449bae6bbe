"""IP addresses as the networks that they are in."""

from __future__ import annotations

import ipaddress
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ....config.columns import ColumnSection
from ....types import Int32Array, Mask
from ..fields import hash_ids, is_text, null_mask
from .base import ColumnValues
from .chunk import ColumnChunk

IPV4_BITS: Final = (8, 16, 24)
IPV6_BITS: Final = (32, 48, 64)
NETWORKS: Final = len(IPV4_BITS)
"""How many networks an address has, as ids of one table."""

_BYTE: Final = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"^(?P<a>{_BYTE})\.(?P<b>{_BYTE})\.(?P<c>{_BYTE})\.{_BYTE}$"
_RULE: Final = (
    f"the networks of an IP address as texts, such as 192.0.2.0/24: of IPv4 its first"
    f" {', '.join(map(str, IPV4_BITS))} bits, of IPv6 its first {', '.join(map(str, IPV6_BITS))}; an IPv4"
    " address within IPv6 is that of IPv4"
)


class IpValues(ColumnValues):
    """Kind "ip": a bag of the ids of an address's networks; a missing address has an empty one."""

    expected: ClassVar[str] = "texts"

    def parse(self, chunk: ColumnChunk, name: str, section: ColumnSection) -> None:
        del section
        networks, has_address, wrong = networks_of(chunk.column(name))
        chunk.fault(name, "not an IP address", wrong)
        lengths: Int32Array = has_address.astype(np.int32) * NETWORKS
        chunk.add_bags(name, hash_ids(networks, chunk.settings.hash_column(name)), lengths)

    def fits(self, of: pa.DataType) -> bool:
        return is_text(of)

    def remedy(self, of: pa.DataType) -> str:
        del of
        return "write the addresses as texts, such as 192.0.2.7 or 2001:db8::7"

    def description(self, section: ColumnSection) -> str:
        del section
        return _RULE

    def exported(self, section: ColumnSection) -> dict[str, Any]:
        del section
        bits = {"ipv4": list(IPV4_BITS), "ipv6": list(IPV6_BITS)}
        return {"networks": bits, "ids": f"{_RULE}; a row whose value is no address has no score"}


def networks_of(column: pa.Array) -> tuple[pa.Array, Mask, Mask]:
    """Return the networks of the addresses in a cleaned column, as texts.

    The texts of a row are one after the other, NETWORKS of each that has an address; these rows are the first
    mask, bool [n]. The second one has the rows that are neither an address nor missing. An address is in the
    form of `ipaddress`, so without a port, a prefix, a zone, or zeros in front.
    """
    missing = null_mask(column)
    if not is_text(column.type):
        return pa.array([], pa.large_string()), np.zeros(len(column), np.bool_), ~missing
    column = column.cast(pa.large_string())
    parts = pc.extract_regex(column, pattern=_IPV4)
    is_v4 = ~null_mask(parts)
    a, b, c = (pc.struct_field(parts, name) for name in "abc")
    others, place_of_other = _other_networks(column, ~is_v4 & ~missing)
    texts = pa.concat_arrays(
        [
            pc.binary_join_element_wise(a, _text("0.0.0/8"), _text(".")),
            pc.binary_join_element_wise(a, b, _text("0.0/16"), _text(".")),
            pc.binary_join_element_wise(a, b, c, _text("0/24"), _text(".")),
            others,
        ]
    )
    rows, count = np.arange(len(column)), len(column)
    places = np.stack([rows, count + rows, 2 * count + rows], axis=1)
    is_other = place_of_other >= 0
    places[is_other] = (3 * count + NETWORKS * place_of_other[is_other])[:, None] + np.arange(NETWORKS)
    has_address = is_v4 | is_other
    return texts.take(pa.array(places[has_address].reshape(-1))), has_address, ~has_address & ~missing


def _text(text: str) -> pa.Scalar:
    return pa.scalar(text, pa.large_string())


def _other_networks(column: pa.Array, rows: Mask) -> tuple[pa.Array, Any]:
    """Return the networks of addresses of IPv6, each different text once.

    Beside them is which of them each row has, int64 [n]; -1 for none.
    """
    places = np.full(len(column), -1)
    texts: list[str] = []
    known: dict[bytes, int] = {}
    for row in np.flatnonzero(rows).tolist():
        text = column[row].as_buffer().to_pybytes()
        if text not in known:
            networks = _networks_of_other(text)
            known[text] = len(texts) // NETWORKS if networks else -1
            texts += networks
        places[row] = known[text]
    return pa.array(texts, pa.large_string()), places


def _networks_of_other(text: bytes) -> list[str]:
    """Return the networks of an address of IPv6; none of another text."""
    try:
        address = ipaddress.IPv6Address(text.decode("ascii"))
    except ValueError:
        return []
    if address.scope_id is not None:
        return []
    within = address.ipv4_mapped
    if within is not None:
        return [str(ipaddress.IPv4Network((int(within), bits), strict=False)) for bits in IPV4_BITS]
    return [str(ipaddress.IPv6Network((int(address), bits), strict=False)) for bits in IPV6_BITS]
