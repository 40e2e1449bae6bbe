"""Where the items of a served model come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..pipeline.errors import JobFileError
from ..pipeline.retrieval.items_export import ItemsExport
from ..pipeline.retrieval.searched_items import ItemFiles, SearchedItems
from ..pipeline.saved_model.model import SavedModel


@dataclass(frozen=True)
class Items:
    """The items that a server retrieves.

    Attributes:
        files: where items come from; None for those of an export alone, which no other model can have.
        export: the export of the items of the first model, which are then not computed.
        threads: threads that search.
    """

    files: ItemFiles | None
    export: Path | None = None
    threads: int = 1

    def of_first(self, model: SavedModel) -> SearchedItems:
        """Return the items of the model that is served first.

        Raises DataError for an export of another checkpoint, and as `ItemFiles.searched`.
        """
        if self.export is not None:
            return ItemsExport.open(self.export).searched(model, self.threads)
        return self.of_next(model)

    def of_next(self, model: SavedModel) -> SearchedItems:
        """Return the items of a later model; raises JobFileError without files of items."""
        if self.files is None:
            raise JobFileError(
                "no files of items given, of which a later checkpoint could have the vectors",
                where="--items",
                remedy="give --items, too",
            )
        return self.files.searched(model)
