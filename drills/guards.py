"""Guards end a run and have everything put back; they never decide pass or fail."""

from __future__ import annotations

from collections.abc import Sequence

from drills.model import Json

#: Fewer ended requests than this in the window say nothing about a ratio.
MIN_ENDED = 10


class Guards:
    """The guards of one run, fed with the generator's heartbeats."""

    def __init__(self, guards: Sequence[Json]) -> None:
        self.guards = guards

    def tripped(self, beats: Sequence[Json], ready: int) -> Json | None:
        """Return {guard, value, bound} of the first guard that trips, None when all is well."""
        for guard in self.guards:
            params = guard["params"]
            if guard["guard"] == "error_ratio":
                window = list(beats)[-max(1, round(params["over"])) :]
                ended = sum(b["second"]["ended"] for b in window)
                bad = sum(b["second"]["bad"] for b in window)
                full = len(window) >= round(params["over"])
                if full and ended >= MIN_ENDED and bad / ended > params["max"]:
                    return {"guard": "error_ratio", "value": round(bad / ended, 4), "bound": params["max"]}
            elif guard["guard"] == "ready_replicas" and ready < params["min"]:
                return {"guard": "ready_replicas", "value": ready, "bound": params["min"]}
        return None
