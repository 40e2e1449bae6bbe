"""Manifests as YAML that a person can read.

Texts of several lines stay as they are, and equal parts are written again instead of anchors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Return True: equal parts are written again."""
        return True


def _text(dumper: _Dumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Iterable[Mapping[str, Any]]) -> str:
    """Return the documents as one YAML stream, keys in their order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=110)
