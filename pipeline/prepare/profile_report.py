"""The data profile as JSON, Markdown and pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..checkpoint.whole_file import whole_file
from .manifest import PreparedManifest
from .out_folder import PROFILE_JSON, PROFILE_MARKDOWN
from .profile import FRACTIONS, HEADS, DataProfile, IdProfile, NumberProfile


def write_profile(folder: Path, profile: DataProfile, manifest: PreparedManifest) -> None:
    """Writes profile.json, the pictures and profile.md, each whole; raises ResourceError."""
    with whole_file(folder / PROFILE_JSON) as file:
        file.write(profile.model_dump_json(indent=1).encode() + b"\n")
    # matplotlib takes half a second to import.
    from .profile_pictures import draw_profile

    pictures = draw_profile(profile, folder)
    with whole_file(folder / PROFILE_MARKDOWN) as file:
        file.write(render_profile(profile, manifest, pictures).encode())


def render_profile(profile: DataProfile, manifest: PreparedManifest, pictures: Sequence[str]) -> str:
    """profile.md; `pictures` by their names."""
    lines = ["# Data profile", "", *_totals(profile, manifest), ""]
    for name in pictures:
        lines += [f"![{name.removesuffix('.png').replace('_', ' ')}]({name})", ""]
    if profile.ids:
        lines += ["## Columns with a table", "", *_ids(profile), ""]
    if profile.numbers:
        lines += ["## Numbers", "", *_numbers(profile), ""]
    lines += ["## Rows that were left out", "", *_bad_rows(manifest), ""]
    return "\n".join(lines)


def _totals(profile: DataProfile, manifest: PreparedManifest) -> list[str]:
    lines = [
        f"- rows of training: {profile.rows:,}, of them {profile.positives:,} with label 1 "
        f"({_share(profile.label_rate)})"
    ]
    lines += [
        f"- rows of {role.role}: {role.rows:,}, of them {role.positives:,} with label 1 "
        f"({_share(role.positives / role.rows)})"
        for role in manifest.roles
        if role.role != "train" and role.rows
    ]
    if profile.weight_mean is not None:
        lines.append(f"- mean weight: {profile.weight_mean:.6g}")
    if profile.time_first is not None and profile.time_last is not None:
        lines.append(f"- from {_moment(profile.time_first)} to {_moment(profile.time_last)}")
    lines.append("- all below is of the rows of training, shares of missing values aside of the others")
    return lines


def _ids(profile: DataProfile) -> list[str]:
    heads = " | ".join(f"top {head:,}" for head in HEADS)
    names = f"| column | rate where missing | missing | distinct | {heads} | table rows | expected to share |"
    lines = [names, "|---|" + "---:|" * (names.count("|") - 2)]
    lines += [_id_row(column) for column in profile.ids]
    about = ""
    if not all(column.distinct_exact for column in profile.ids):
        about = (
            f" With ~ it is HyperLogLog's estimate (standard error {profile.distinct_error:.1%}), as there "
            f"are more than {profile.counted_values:,}; shares of the head are then lower bounds, by at most "
            f"{max(column.head_short for column in profile.ids):.2%}."
        )
    lines += [
        "",
        f"`rate where missing`: label rate of the rows without a value, overall it is "
        f"{_share(profile.label_rate)}. `distinct`: different values.{about} `top n`: share of all values "
        "that the n most frequent ones have. `expected to share`: of the different values, those that get a "
        "row of the table together with another.",
    ]
    bags = [column for column in profile.ids if column.kind == "multi_hot"]
    lines += [
        f"`{_cell(column.name)}`: {column.mean_length:.2f} ids a row in the mean, at most {column.longest}."
        for column in bags
    ]
    return lines


def _id_row(column: IdProfile) -> str:
    heads = " | ".join(_share(share) for share in column.head.values())
    distinct = f"{'' if column.distinct_exact else '~'}{column.distinct:,}"
    missing = f"{_share(column.label_rate_missing)} | {_share(column.missing)}"
    table = f"{column.table_rows:,} | {_share(column.expected_shared)}"
    return f"| {_cell(column.name)} | {missing} | {distinct} | {heads} | {table} |"


def _numbers(profile: DataProfile) -> list[str]:
    quantiles = " | ".join(f"{fraction:.0%}" for fraction in FRACTIONS)
    names = f"| column | rate where missing | missing | mean | least | {quantiles} | largest |"
    lines = [names, "|---|" + "---:|" * (names.count("|") - 2)]
    lines += [_number_row(column) for column in profile.numbers]
    return [
        *lines,
        "",
        "In the units of the source, before `shift`, `scale` and `transform`. A quantile is at most "
        f"{profile.quantile_error:.1%} too near to 0, and exact for whole numbers up to 256.",
    ]


def _number_row(column: NumberProfile) -> str:
    show: Callable[[float | None], str] = lambda value: "-" if value is None else f"{value:.4g}"  # noqa: E731
    quantiles = [column.quantiles.get(f"{fraction:.0%}") for fraction in FRACTIONS]
    cells = " | ".join(map(show, [column.mean, column.least, *quantiles, column.largest]))
    return (
        f"| {_cell(column.name)} | {_share(column.label_rate_missing)} | {_share(column.missing)} | {cells} |"
    )


def _bad_rows(manifest: PreparedManifest) -> list[str]:
    lines: list[Any] = [
        f"- {role.role}: {role.bad_rows:,} malformed rows" for role in manifest.roles if role.rows
    ]
    samples = [sample for role in manifest.roles for sample in role.bad_samples]
    return lines + (
        ["", "The first of them:", "", *(f"    {sample}" for sample in samples)] if samples else []
    )


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _moment(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        # A column of times may count something else.
        return f"{seconds:g}"


def _cell(name: str) -> str:
    return name.replace("|", "\\|")
