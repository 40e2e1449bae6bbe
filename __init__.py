"""ShadowSync: background synchronization for training recommendation models (arXiv 2003.03477).

In Python, `run` trains a job on this machine and returns its report; `list_runs` has the runs of a folder
beside each other, and `compare` makes those of several algorithms; `load` opens the model that a run saved;
`attach` synchronizes any torch loop with others; `Embeddings` gives it tables on embedding nodes.
"""

from __future__ import annotations

import importlib

# No import of typing: `python -m shadowsync` still has the working directory in front here, see __main__.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from .attached.attach import attach
    from .attached.errors import AttachError
    from .attached.tables.embeddings import Embeddings
    from .lab.comparison.compare import compare
    from .nodes.supervisor.run import RunFailed, run
    from .pipeline.config.job import Job
    from .pipeline.errors import ShadowSyncError
    from .pipeline.report.document import Report
    from .pipeline.report.run_folders.runs_table import list_runs
    from .pipeline.saved_model.model import SavedModel, load
    from .pipeline.wire.frames import PROTOCOL_VERSION

__version__ = "0.2.0"

# Imported when they are first used: the command line's --help, and nodes that know no torch, import this too.
_PLACES = {
    "AttachError": "attached.errors",
    "Embeddings": "attached.tables.embeddings",
    "PROTOCOL_VERSION": "pipeline.wire.frames",
    "Job": "pipeline.config.job",
    "Report": "pipeline.report.document",
    "RunFailed": "nodes.supervisor.run",
    "SavedModel": "pipeline.saved_model.model",
    "ShadowSyncError": "pipeline.errors",
    "attach": "attached.attach",
    "compare": "lab.comparison.compare",
    "list_runs": "pipeline.report.run_folders.runs_table",
    "load": "pipeline.saved_model.model",
    "run": "nodes.supervisor.run",
}

__all__ = [
    "PROTOCOL_VERSION",
    "AttachError",
    "Embeddings",
    "Job",
    "Report",
    "RunFailed",
    "SavedModel",
    "ShadowSyncError",
    "__version__",
    "attach",
    "compare",
    "list_runs",
    "load",
    "run",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f".{_PLACES[name]}", __name__), name)

    def __dir__():
        return sorted({*globals(), *_PLACES})
