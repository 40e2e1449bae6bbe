"""Generator of docs/job-file.md: `python -m shadowsync.pipeline.jobfile.reference [--write]`.

The page is generated from the schema. Without `--write` it goes to standard output. A test compares the page
in the tree with the generated one.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..config.job import Job

PAGE = Path(__file__).resolve().parents[2] / "docs" / "job-file.md"

HEAD = """\
# The job file

A job is one TOML file. This page lists every key with its type, default and limits. An unknown key is refused
before anything starts, and the error names the nearest known key. A key that another one makes ineffective is
said at the start and in the report.

    shadowsync run job.toml --set trainer.workers=2 --set sync.algorithm=none

`--set SECTION.KEY=VALUE` changes a key for one run. The value is written as in TOML; anything else is taken
as text. Paths in the file are relative to its folder, paths in `--set` to the working directory. Each run
folder contains the run's job with all defaults filled in, as `job.json`.
"""

Schema = dict[str, Any]

# Classes of this package are sections; other subclasses of BaseModel are not.
_SECTIONS = Job.__module__.rpartition(".")[0]


def page() -> str:
    """Render the whole page as Markdown."""
    schema = Job.model_json_schema(by_alias=True)
    definitions: dict[str, Schema] = schema.get("$defs", {})
    parts = [HEAD]
    for name, field in schema["properties"].items():
        required = name in schema.get("required", [])
        parts += _sections(name, field, definitions, required=required, depth=2)
    return "\n".join(parts)


def _docs() -> dict[str, str]:
    """Docstring of every section by class name, with each paragraph on one line."""
    docs: dict[str, str] = {}
    waiting: list[type[BaseModel]] = [BaseModel]
    while waiting:
        for model in waiting.pop().__subclasses__():
            waiting.append(model)
            if model.__module__.startswith(_SECTIONS):
                docs[model.__name__] = _paragraphs(inspect.cleandoc(model.__doc__ or ""))
    return docs


def _paragraphs(text: str) -> str:
    """Join the lines of each paragraph and list item."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        items = re.split(r"\n(?=- )", paragraph)
        paragraphs.append("\n".join(" ".join(item.split()) for item in items))
    return "\n\n".join(paragraphs)


def _sections(
    name: str, field: Schema, definitions: dict[str, Schema], *, required: bool, depth: int
) -> Iterator[str]:
    """Render a section and its subsections.

    A list of sections is `[[name]]`, a dict `[name.NAME]`.
    """
    docs = _docs()
    for title, shape in _nested(field, definitions):
        heading = {"one": f"[{name}]", "list": f"[[{name}]]", "dict": f"[{name}.NAME]"}[shape]
        yield f"{'#' * depth} `{heading}`{', required' if required and depth == 2 else ''}\n"
        if docs.get(title):
            yield docs[title] + "\n"
        definition = definitions[title]
        keys, subsections = [], []
        for key, inner in definition.get("properties", {}).items():
            needed = key in definition.get("required", [])
            if _nested(inner, definitions):
                names = {"one": f"{name}.{key}", "list": f"{name}.{key}", "dict": f"{name}.NAME.{key}"}
                subsections.append((names[shape], inner, needed))
            else:
                keys.append(_item(key, inner, required=needed))
        if keys:
            yield "\n".join(keys) + "\n"
        for full, inner, needed in subsections:
            yield from _sections(full, inner, definitions, required=needed, depth=depth + 1)


def _nested(field: Schema, definitions: dict[str, Schema]) -> list[tuple[str, str]]:
    """Sections in a key, as (class, "one", "list" or "dict"); none in plain values."""
    nested = []
    for form in _forms(field):
        for shape, content in (
            ("one", form),
            ("list", form.get("items", {})),
            ("dict", form.get("additionalProperties", {})),
        ):
            if not isinstance(content, dict):
                continue
            for option in _forms(content):
                title = str(option.get("$ref", "")).rpartition("/")[2]
                if "properties" in definitions.get(title, {}):
                    nested.append((title, shape))
    return nested


def _forms(field: Schema) -> list[Schema]:
    """Alternatives of a value: the members of a union, or the value's own schema."""
    forms: list[Schema] = field.get("anyOf") or field.get("oneOf") or field.get("allOf") or [field]
    return forms


def _item(key: str, field: Schema, *, required: bool) -> str:
    """Render a key as an item of a list: type, default, meaning."""
    default = "required" if required else f"default {_toml(field.get('default'))}"
    return f"- `{key}`: {_type(field)}; {default}. {field.get('description', '')}"


def _type(field: Schema) -> str:
    """Describe the type of a plain value, with its limits."""
    if "anyOf" in field:
        known = [form for form in field["anyOf"] if form.get("type") != "null"]
        return " or ".join(dict.fromkeys(_type(form) for form in known))
    if "const" in field:
        return _toml(field["const"])
    if "enum" in field:
        return " or ".join(_toml(value) for value in field["enum"])
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field.get('items', {}))}" + _count(field)
    if kind == "object":
        return "keys and values"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false"}
    return words.get(str(kind), "any value") + _limits(field)


def _limits(field: Schema) -> str:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "more than",
        "maximum": "at most",
        "exclusiveMaximum": "less than",
    }
    limits = [f"{text} {field[key]:,}" for key, text in words.items() if key in field]
    if "pattern" in field:
        limits.append(f"of the form `{field['pattern']}`")
    return f", {', '.join(limits)}" if limits else ""


def _count(field: Schema) -> str:
    least, most = field.get("minItems"), field.get("maxItems")
    words = [f"at least {least}"] if least else []
    words += [f"at most {most}"] if most else []
    return f", {', '.join(words)} of them" if words else ""


def _toml(value: Any) -> str:
    """Render a default as TOML in code quotes; "none" if there is none."""
    if value is None:
        return "none"
    text = f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else json.dumps(value)
    return f"`{text}`"


def main(arguments: list[str]) -> int:
    """Print the page, or write it with `--write`."""
    if arguments == ["--write"]:
        PAGE.write_text(page(), encoding="utf-8")
    elif arguments:
        print("usage: python -m shadowsync.pipeline.jobfile.reference [--write]", file=sys.stderr)
        return 2
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
