"""One run of a virtual comparison: `python -m ... FOLDER NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

from ...pipeline.errors import ShadowSyncError
from ...pipeline.jobfile.load import load_resolved
from ..comparison.record import write_json
from .job import run_virtual
from .plan import job_path, read_virtual_plan, result_path


def main(folder: Path, name: str) -> int:
    """Run the job of that name, and write its result.

    Returns the exit code.
    """
    try:
        result = run_virtual(load_resolved(job_path(folder, name)), read_virtual_plan(folder).timing)
        write_json(result_path(folder, name), result)
    except ShadowSyncError as error:
        sys.stderr.write(f"{error}\n")
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
