"""The example notebook, executed by a kernel of Jupyter."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from shadowsync.tests.support.jobs.processes import THREADS

pytestmark = pytest.mark.processes
NOTEBOOK = Path(__file__).parents[3] / "examples" / "notebook.ipynb"
ENOUGH_SECONDS = 240


class WatchedClient(NotebookClient):  # type: ignore[misc]
    """Executes a notebook, and keeps what replaced an output meanwhile."""

    updates: list[str]

    def process_message(self, msg: Any, cell: Any, cell_index: int) -> Any:
        if msg["msg_type"] == "update_display_data":
            self.updates.append(msg["content"]["data"]["text/html"])
        return super().process_message(msg, cell, cell_index)


def shown(cell: Any, kind: str) -> list[str]:
    """What a cell shows as HTML or as text, in order."""
    outputs = [
        output.data for output in cell.outputs if output.output_type in ("display_data", "execute_result")
    ]
    return [data[kind] for data in outputs if kind in data]


def test_the_notebook_runs_and_shows_bar_report_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in THREADS.items():
        monkeypatch.setenv(name, value)
    # Kernels write their connection, history and configuration here.
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    client = WatchedClient(notebook, timeout=ENOUGH_SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    updates: list[str] = []
    client.updates = updates
    client.execute()
    _, first, second, predicted = [cell for cell in notebook.cells if cell.cell_type == "code"]
    # A job of a second may have no status. The bar is erased at the end.
    assert all(re.match(r"<progress.*[\d,]+ trained", update, re.DOTALL) for update in updates[:-1])
    bar, report = shown(first, "text/html")
    assert bar == updates[-1] == ""
    assert "on 5,000 held-out examples" in report
    assert "The ledger adds up." in report
    assert report.count("<img") >= 2
    assert not [output for output in first.outputs if output.output_type == "stream"]
    (table,) = shown(second, "text/html")
    assert re.findall(r"<th>([\w.]+)</th>", table)[-2:] == ["data.epochs", "trainer.lr"]
    assert table.count("<td>finished</td>") == 2
    (scores,) = shown(predicted, "text/plain")
    assert len(re.findall(r"0\.\d+", scores)) == 5
    assert sorted(os.listdir(tmp_path / "runs")) == ["data", "job", "job-2", "latest"]
