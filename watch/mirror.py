"""The newest status with all curves and incidents so far."""

from __future__ import annotations

from .curves import ClientCurves
from .status import Cursor, Incident, Status

MOST_INCIDENTS = 500


class Mirror:
    """The state of a client, merged from incremental statuses. One thread."""

    def __init__(self) -> None:
        self.curves = ClientCurves()
        self._incidents: dict[int, Incident] = {}
        self.latest: Status | None = None

    def take(self, status: Status) -> None:
        """Merge a newer status, whose curves have only new points and whose incidents are the new ones."""
        self.latest = status
        self.curves.merge(status.curves)
        for incident in status.incidents:
            self._incidents[incident.number] = incident
        while len(self._incidents) > MOST_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]

    def cursors(self) -> tuple[Cursor, int]:
        """Cursors for the next request: of the curves, and of the incidents."""
        return self.curves.cursor(), max(self._incidents, default=0)

    def whole(self) -> Status | None:
        """The newest status, complete; None if there was none yet."""
        if self.latest is None:
            return None
        every = {"curves": self.curves.whole(), "incidents": list(self._incidents.values())}
        return self.latest.model_copy(update=every)
