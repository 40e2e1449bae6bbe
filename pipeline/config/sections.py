"""How strictly every section of a job file is read."""

from __future__ import annotations

from pydantic import ConfigDict

# Strict types, frozen, no unknown keys. An option that is inf must reach the other nodes as inf; pydantic
# would write null.
STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, ser_json_inf_nan="constants")
