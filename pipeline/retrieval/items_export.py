"""Export of a model's items for retrieval: their vectors, and an index of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from ..atomic_file import atomic_folder
from ..errors import DataError
from ..saved_model.exported import EXPORT_MANIFEST, VERSION_DIGITS, is_whole, write_export_manifest
from ..saved_model.model import SavedModel
from ..types import Float32Array
from .catalogue import Catalogue
from .index import Recall, VectorIndex
from .searched_items import ItemFiles, SearchedItems
from .top_k import ExactSearch, blocks

ITEMS_EXPORT_VERSION: Final = 1
ITEMS_FILE: Final = "items.parquet"
INDEX_FILE: Final = "items.faiss"
ID, VECTOR = "id", "vector"
ROWS_AT_ONCE: Final = 1 << 16
_REMEDY: Final = "export the items again, with the model that is served"


def export_items(model: SavedModel, files: ItemFiles, folder: Path) -> dict[str, Any]:
    """Write items.parquet, perhaps items.faiss, and manifest.json to `folder`; return the manifest.

    items.parquet has a row for each item, `id` and `vector`, a list of dim float32. The manifest names the
    model by its `version`, as that of `export_model`. Either all files are written or none. Raises as
    `ItemFiles.searched`, and ResourceError if the folder exists already, or cannot be written.
    """
    catalogue, items = files.with_vectors(model)
    manifest = _manifest(model, catalogue, items)
    with atomic_folder(folder) as place:
        _write_vectors(catalogue, manifest["version"], place / ITEMS_FILE)
        if isinstance(items.search, VectorIndex):
            items.search.write(place / INDEX_FILE)
        write_export_manifest(manifest, place)
    return manifest


def _manifest(model: SavedModel, catalogue: Catalogue, items: SearchedItems) -> dict[str, Any]:
    count, dim = catalogue.vectors.shape
    index = None
    if items.recall is not None:
        index = {"file": INDEX_FILE, "type": "faiss IndexIVFFlat", "recall": items.recall.values()}
    return {
        "items_export_version": ITEMS_EXPORT_VERSION,
        "run": model.manifest.run,
        "model": model.manifest.model,
        "examples_trained": model.manifest.examples_trained,
        "version": version_of(model),
        "created_at": model.manifest.created_at,
        "items": {"file": ITEMS_FILE, "column": model.job.model.item[0], "count": count, "dim": dim},
        "similarity": "inner product of the vectors of query and item",
        "score": "similarity / temperature",
        "temperature": model.temperature,
        "index": index,
    }


def version_of(model: SavedModel) -> str:
    """Return what names the checkpoint in an export's manifest."""
    return model.manifest.digest[:VERSION_DIGITS]


def _write_vectors(catalogue: Catalogue, version: str, path: Path) -> None:
    assert catalogue.ids is not None
    count, dim = catalogue.vectors.shape
    schema = pa.schema(
        [(ID, catalogue.ids.type), (VECTOR, pa.list_(pa.float32(), dim))], metadata={"version": version}
    )
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for block in blocks(count, ROWS_AT_ONCE):
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(catalogue.vectors[block].reshape(-1)), dim)
            ids = catalogue.ids[block.start : block.stop]
            writer.write_table(pa.Table.from_arrays([ids, vectors], schema=schema))


@dataclass(frozen=True)
class ItemsExport:
    """An export of items in a folder, which is whole."""

    folder: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, folder: Path) -> ItemsExport:
        """Open an export of items; raises DataError if there is none, or a file is missing or altered."""
        try:
            manifest = json.loads((folder / EXPORT_MANIFEST).read_text("utf-8"))
            manifest["items_export_version"], manifest["version"], manifest["index"]
            damaged = [entry["name"] for entry in manifest["files"] if not is_whole(folder, entry)]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DataError(
                f"has no manifest of exported items ({error})",
                where=str(folder),
                remedy="give a folder that shadowsync export --items wrote",
            ) from error
        if damaged:
            raise DataError(f"{damaged[0]} is missing or altered", where=str(folder), remedy=_REMEDY)
        return cls(folder, manifest)

    def searched(self, model: SavedModel, threads: int = 1) -> SearchedItems:
        """Return its items with its index, or exact search if it has none.

        Raises DataError unless it is an export of this very checkpoint; JobFileError if the extra of indexes
        is missing.
        """
        self._require_of(model)
        ids, vectors = self._vectors()
        index = self.manifest["index"]
        if index is None:
            return SearchedItems(ids, ExactSearch(vectors), None, 0.0)
        vector_index = VectorIndex.read(self.folder / index["file"], threads)
        return SearchedItems(ids, vector_index, Recall(**index["recall"]), 0.0)

    def _vectors(self) -> tuple[pa.Array, Float32Array]:
        table = pq.read_table(self.folder / self.manifest["items"]["file"]).combine_chunks()
        vectors = table.column(VECTOR).chunk(0).flatten().to_numpy(zero_copy_only=False)
        return table.column(ID).chunk(0), vectors.reshape(len(table), -1)

    def _require_of(self, model: SavedModel) -> None:
        """Raise DataError unless the export is of the model's checkpoint."""
        if self.manifest["version"] == version_of(model):
            return
        exported, served = self.manifest["examples_trained"], model.manifest.examples_trained
        how = "of another checkpoint than"
        if self.manifest["run"] != model.manifest.run:
            how = f"of the run {self.manifest['run']}, and so of another model than"
        elif exported != served:
            how = f"{'older' if exported < served else 'newer'} than"
        raise DataError(
            f"is {how} the model: it is after {exported:,} examples, the model of {model.manifest.run} after"
            f" {served:,}",
            where=str(self.folder),
            remedy=_REMEDY,
        )
