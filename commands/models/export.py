"""`shadowsync export`: a saved model as files that others serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from ..options import OutPath, checkpoint_option, memory_option, run_argument, trust_option
from .beside_training import keep_to_one_core
from .items import item_files, queries_option

if TYPE_CHECKING:
    from ...pipeline.checkpoint.manifest import Which
    from ...pipeline.retrieval.searched_items import ItemFiles
    from ...pipeline.saved_model.model import SavedModel


@click.command()
@run_argument
@click.option(
    "--format",
    "form",
    type=click.Choice(["torch-export", "onnx"]),
    default="torch-export",
    show_default=True,
    help="Format of the dense part: dense.pt2 for torch.export.load, or dense.onnx.",
)
@click.option(
    "--tables",
    type=click.Choice(["parquet", "safetensors", "none"]),
    default="parquet",
    show_default=True,
    help="Format of the embedding tables: one file each (parquet), or one for all (safetensors).",
)
@click.option(
    "--since",
    metavar="EXPORT",
    type=click.Path(path_type=Path),
    help="Write only the rows that changed since this earlier export of the model: an increment.",
)
@click.option(
    "--items",
    multiple=True,
    metavar="FILES",
    help="Write the vectors of the items of these files, and an index of them, instead of the model; of a"
    " model with two towers. May be repeated.",
)
@click.option("--no-index", is_flag=True, help="With --items: leave the index out.")
@queries_option
@click.option("--out", required=True, type=OutPath(), help="The folder to create.")
@checkpoint_option("--which")
@memory_option
@trust_option
def export(
    run: str,
    form: Literal["torch-export", "onnx"],
    tables: Literal["parquet", "safetensors", "none"],
    since: Path | None,
    items: tuple[str, ...],
    no_index: bool,
    queries: tuple[str, ...],
    out: Path,
    which: Which,
    trust: bool,
    memory_bytes: int | None,
) -> None:
    """Write the model that RUN saved as files that others can serve.

    The folder has the dense part, which takes any number of examples, the tables, and manifest.json, which
    states how ids are hashed, numbers transformed and bags pooled. An increment has the whole dense part, and
    only the rows that changed; `shadowsync merge` applies increments to a whole export. The exports that an
    increment builds upon must lie beside EXPORT.

    With --items the folder has items.parquet, with the id and the vector of each item, items.faiss, an index
    of the vectors, and manifest.json, which names the model and states the recall of the index.
    """
    _require_fitting(has_items=bool(items))
    keep_to_one_core(run)
    from ...pipeline.errors import JobFileError
    from ...pipeline.saved_model.model import SavedModel

    if since is not None and tables == "none":
        raise JobFileError(
            "needs tables", where="--since", remedy="give --tables parquet or --tables safetensors"
        )
    model = SavedModel.open(run, which, trust=trust, memory_bytes=memory_bytes)
    if items:
        _export_items(model, item_files(items, "exact" if no_index else "index", queries), out)
    else:
        _export_model(model, form, tables, since, out)
    click.echo(f"{model.description}, of {model.manifest.run}: {out}")


def _require_fitting(*, has_items: bool) -> None:
    """Raise JobFileError for options that items do not have, or without --items those of items."""
    from ...pipeline.errors import JobFileError

    context = click.get_current_context()
    others = ("form", "tables", "since") if has_items else ("no_index", "queries")
    for parameter in context.command.params:
        if parameter.name in others and _is_given(context, parameter.name):
            raise JobFileError(
                "given with --items, which writes the items alone" if has_items else "given without --items",
                where=parameter.opts[0],
                remedy="leave it out",
            )


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _export_model(
    model: SavedModel,
    form: Literal["torch-export", "onnx"],
    tables: Literal["parquet", "safetensors", "none"],
    since: Path | None,
    out: Path,
) -> None:
    from ...pipeline.saved_model.export import export_model
    from ...pipeline.saved_model.table_files import table_of

    manifest = export_model(model, out, form, tables, since)
    _say_files(manifest)
    if since is not None:
        entries = {table_of(entry): entry for entry in manifest["tables"]}.values()
        changed = sum(entry["changed_rows"] for entry in entries)
        rows = sum(entry["rows"] for entry in entries)
        click.echo(f"{changed:,} of {rows:,} rows changed since {since}")


def _export_items(model: SavedModel, files: ItemFiles, out: Path) -> None:
    from ...pipeline.retrieval.items_export import export_items
    from ...pipeline.text.format import counted

    manifest = export_items(model, files, out)
    _say_files(manifest)
    items = f"{counted(manifest['items']['count'], 'item')}, vectors of {manifest['items']['dim']} floats"
    if (index := manifest["index"]) is not None:
        recall = index["recall"]
        items += f"; of the best 10 the index finds {recall['at_10']:.1%}, of 100 {recall['at_100']:.1%}"
        items += f" ({recall['queries']:,} {recall['of']} as queries)"
    click.echo(items)


def _say_files(manifest: dict[str, Any]) -> None:
    from ...pipeline.text.format import data_size

    for file in manifest["files"]:
        click.echo(f"{data_size(file['bytes']):>10}  {file['name']}")
