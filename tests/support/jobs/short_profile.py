"""`shadowsync profile` for less time than the command allows: SECONDS JOB"""

from __future__ import annotations

import sys

from shadowsync.commands.jobs.profile import run_profile
from shadowsync.pipeline.jobfile.load import load_job

if __name__ == "__main__":
    seconds, job_file = sys.argv[1:]
    run_profile(lambda: load_job(job_file, ()), float(seconds), quiet=True)
