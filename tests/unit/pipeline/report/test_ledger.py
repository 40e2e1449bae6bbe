"""Identities of the ledger in a report, and when it adds up."""

from __future__ import annotations

import pytest
from pydantic import ValidationError
from shadowsync.pipeline.report.ledger import Identity, Ledger


def test_an_identity_is_what_its_numbers_are() -> None:
    assert Identity.of("a = b", 3, 3).holds
    assert not Identity.of("a = b", 3, 4).holds
    with pytest.raises(ValidationError, match="do not make holds=True"):
        Identity(name="a = b", left=3, right=4, holds=True)


def test_a_ledger_adds_up_only_if_all_identities_hold() -> None:
    good, bad = Identity.of("a = b", 3, 3), Identity.of("c = d", 1, 2)
    assert Ledger.of([good], 0, {}).adds_up
    assert not Ledger.of([good, bad], 0, {}).adds_up
    unknown = Identity.unchecked("e = f", "nobody knows")
    assert Ledger.of([good, unknown], 0, {}).adds_up
    assert not Ledger.of([bad, unknown], 0, {}).adds_up
    with pytest.raises(ValidationError, match="what is unknown has no numbers"):
        Identity(name="e = f", left=1, right=1, holds=True, unknown="nobody knows")
    with pytest.raises(ValidationError, match="do not make holds=None"):
        Identity(name="e = f", left=None, right=None, holds=None)
    with pytest.raises(ValidationError, match="adds_up=True is not"):
        Ledger(identities=[good, bad], adds_up=True, lost_dense_updates=0, shard_applied={})


def test_what_may_be_less_must_not_be_more() -> None:
    less, more = Identity.bounded("a <= b", 1, 2), Identity.bounded("a <= b", 3, 2)
    assert (less.holds, more.holds) == (True, False)
    assert Ledger.of([less], 0, {}).adds_up
    assert not Ledger.of([less, more], 0, {}).adds_up
    for identity, lie in ((less, False), (more, True)):
        body = identity.model_dump()
        assert Identity.model_validate(body) == identity
        with pytest.raises(ValidationError, match="do not make holds"):
            Identity.model_validate(body | {"holds": lie})
    assert Identity.of("a = b", 1, 1).model_dump()["at_most"] is False
