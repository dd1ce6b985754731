"""Talks to a lab: `lab.json`, and the control API of its supervisor. Every call has its own time-out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3

from drills.access import procs
from drills.errors import DrillError, Refused
from drills.model import Json

TIMEOUT = urllib3.Timeout(connect=2.0, read=5.0)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class LabError(DrillError):
    """The lab's supervisor did not answer, or refused."""

    exit_code = Refused.exit_code


@dataclass(frozen=True)
class Lab:
    """A lab that is up, as its `lab.json` says."""

    dir: Path
    data: Json

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return int(self.data["pid"])

    @property
    def start(self) -> int:
        """Start time of the supervisor: pid + start name it for ever."""
        return int(self.data["start"])

    @property
    def url(self) -> str:
        """Where users come in, with /v1."""
        return f"{self.data['entry'][self.data['entry']['use']]}/v1"

    @property
    def alive(self) -> bool:
        """Whether that very supervisor still runs, on this boot."""
        return self.data.get("boot_id") == boot_id() and procs.alive(self.pid, self.start)

    def control(self) -> Control:
        """Return the client of its control API."""
        return Control(self.data["control"], Path(self.data["token_file"]))


def boot_id() -> str:
    """Return the id of this boot; pids mean nothing on another one."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def read(folder: Path) -> Lab | None:
    """Return what lab.json says, None when there is none; whether it is alive is another question."""
    try:
        return Lab(folder, json.loads((folder / "lab.json").read_text()))
    except (OSError, ValueError):
        return None


class Control:
    """The control API of the lab's supervisor."""

    def __init__(self, url: str, token_file: Path) -> None:
        self.url, self._token_file = url, token_file
        # No retries: a delete must not be sent twice, and a lab that is gone should be seen as gone.
        self._pool = urllib3.PoolManager(retries=False, timeout=TIMEOUT)

    def status(self) -> Json:
        """Return the replicas and processes as they are now."""
        return dict(self._call("GET", "/status"))

    def events(self, since: int = 0) -> list[Json]:
        """Return the replica events after number `since`, oldest first."""
        return list(self._call("GET", f"/events?since={since}"))

    def notifications(self, since: int = 0) -> list[Json]:
        """Return the webhook receipts after number `since`, oldest first."""
        return list(self._call("GET", f"/notifications?since={since}"))

    def delete(self, name: str, uid: str, grace_s: float) -> None:
        """Delete that incarnation of a replica; the controller makes a new one. Refused when the uid has changed."""
        self._call("POST", f"/replicas/{name}/delete", {"uid": uid, "grace_s": grace_s})

    def own(self, owner: str, lives_s: float | None) -> None:
        """Change whose lab it is, and how long it lives when nobody touches it."""
        self._call("POST", "/owner", {"owner": owner, "lives_s": lives_s})

    def touch(self) -> None:
        """Start the lab's remaining life afresh."""
        self._call("POST", "/touch")

    def down(self) -> None:
        """Ask the lab to end; returns at once."""
        self._call("POST", "/down")

    def _call(self, method: str, path: str, body: Json | None = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token()}"}
        try:
            answer = self._pool.request(method, f"{self.url}{path}", json=body, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise LabError(
                f"lab: {self.url} does not answer ({type(error).__name__}); see `drill lab status`"
            ) from None
        try:
            data = answer.json()
        except ValueError:
            data = {}
        if answer.status >= 300:
            what = data.get("error", f"HTTP {answer.status}")
            raise (Refused if answer.status == 409 else LabError)(f"lab: {method} {path}: {what}")
        return data

    def _token(self) -> str:
        try:
            return self._token_file.read_text().strip()
        except OSError as error:
            raise LabError(f"lab: {self._token_file}: {error.strerror}; see `drill lab status`") from None
