"""The ledger's part of report.json: identities between counts, and whether they hold."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, NonNegativeInt, model_validator

from ..types import ResultModel


class Identity(ResultModel):
    """One equation of the ledger: `name` states it; `left` and `right` are counted.

    With `at_most` the identity also holds if the left side is smaller. `unknown` says why an identity cannot
    be checked; `left`, `right` and `holds` are then None.
    """

    name: str
    left: int | None
    right: int | None
    holds: bool | None
    unknown: str = ""
    at_most: bool = False

    @classmethod
    def of(cls, name: str, left: int, right: int) -> Self:
        """Build the identity; `holds` follows from the numbers."""
        return cls(name=name, left=left, right=right, holds=left == right)

    @classmethod
    def bounded(cls, name: str, left: int, right: int) -> Self:
        """Build an identity whose left side may also be smaller."""
        return cls(name=name, left=left, right=right, holds=left <= right, at_most=True)

    @classmethod
    def unchecked(cls, name: str, why: str) -> Self:
        """Build an identity that cannot be checked."""
        return cls(name=name, left=None, right=None, holds=None, unknown=why)

    @model_validator(mode="after")
    def _true(self) -> Self:
        if self.unknown:
            if (self.left, self.right, self.holds) != (None, None, None):
                raise ValueError(f"{self.name}: what is unknown has no numbers")
        elif self.left is None or self.right is None or self.holds != self._is_true(self.left, self.right):
            raise ValueError(f"{self.name}: {self.left} and {self.right} do not make holds={self.holds}")
        return self

    def _is_true(self, left: int, right: int) -> bool:
        return left <= right if self.at_most else left == right


def _adds_up(identities: list[Identity]) -> bool:
    return all(identity.holds is not False for identity in identities)


class Ledger(ResultModel):
    """The ledger's sums.

    Attributes:
        identities: the equations.
        adds_up: whether every identity that can be checked holds; a report with a wrong value is refused.
        lost_dense_updates: number of batches whose dense update was lost with a dead trainer.
        shard_applied: number of batches that each embedding shard applied, by its name.
    """

    identities: Annotated[list[Identity], Field(min_length=1)]
    adds_up: bool
    lost_dense_updates: NonNegativeInt
    shard_applied: dict[str, NonNegativeInt]

    @classmethod
    def of(cls, identities: list[Identity], lost_dense_updates: int, shard_applied: dict[str, int]) -> Self:
        """Build the ledger; `adds_up` follows from the identities."""
        return cls(
            identities=identities,
            adds_up=_adds_up(identities),
            lost_dense_updates=lost_dense_updates,
            shard_applied=shard_applied,
        )

    @model_validator(mode="after")
    def _true(self) -> Self:
        if self.adds_up != _adds_up(self.identities):
            raise ValueError(f"adds_up={self.adds_up} is not what the identities say")
        return self
