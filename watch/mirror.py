"""The newest status together with all that came before of its curves and incidents."""

from __future__ import annotations

from .curves import Curves
from .status import Cursor, Incident, Status

MOST_INCIDENTS = 500


class Mirror:
    """Puts statuses together that each have only what is new. One thread."""

    def __init__(self) -> None:
        self.curves = Curves()
        self._incidents: dict[int, Incident] = {}
        self.latest: Status | None = None

    def take(self, status: Status) -> None:
        """A newer status."""
        self.latest = status
        self.curves.merge(status.curves)
        for incident in status.incidents:
            self._incidents[incident.number] = incident
        while len(self._incidents) > MOST_INCIDENTS:
            del self._incidents[next(iter(self._incidents))]

    def cursors(self) -> tuple[Cursor, int]:
        """What the next question should carry: of the curves, and of the incidents."""
        return self.curves.cursor(), max(self._incidents, default=0)

    def whole(self) -> Status | None:
        """The newest status with everything in it; None if there was none yet."""
        if self.latest is None:
            return None
        every = {"curves": self.curves.whole(), "incidents": list(self._incidents.values())}
        return self.latest.model_copy(update=every)
