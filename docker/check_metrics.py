"""Check that the metrics of each role want the token of the job's key.

    python check_metrics.py TOKEN HOST...

Exit code 0 and one line if all is well, 1 and a line for each problem. Needs nothing but Python.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

PORT = 9100
SECONDS = 20.0
REFUSED = 401


def answer(host: str, token: str = "") -> tuple[int, str]:
    """Return status and text of a node's metrics; status 0 if nobody answers."""
    request = urllib.request.Request(f"http://{host}:{PORT}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, ""
    except OSError as error:
        return 0, str(error)


def problems(host: str, token: str) -> list[str]:
    """Return what is wrong with the metrics at `host`."""
    wrong = []
    for name, given in (("no token", ""), ("another token", "0" * len(token))):
        status, text = answer(host, given)
        if status != REFUSED:
            wrong.append(f"{host}: {status} {text[:80]} with {name}, not {REFUSED}")
    status, text = answer(host, token)
    if "shadowsync_" not in text:
        wrong.append(f"{host}: {status} {text[:80]} with the token, and no metrics")
    return wrong


def main(arguments: list[str]) -> int:
    """Check the hosts; return the exit code."""
    token, *hosts = arguments
    wrong = [problem for host in hosts for problem in problems(host, token)]
    for problem in wrong:
        print(f"wrong: {problem}")
    if not wrong:
        print(f"the metrics of {', '.join(hosts)} answer who has the token, and nobody else")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
