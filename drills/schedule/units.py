"""A timer and a service of systemd, for hosts without a cluster."""

from __future__ import annotations

import re

from drills.schedule.manifests import template
from drills.schedule.wanted import Wanted

FOLDER, REPORTS = "/etc/drills", "/var/lib/drills"


def render(what: Wanted) -> dict[str, str]:
    """Return both units by file name."""
    facts = {"what": what, "target": what.spec.name, "folder": FOLDER, "reports": REPORTS}
    facts["command"] = " ".join(map(word, ["/usr/bin/env", *what.command, "--reports", REPORTS]))
    return {
        f"{what.name}.service": template("systemd.service.j2").render(facts),
        f"{what.name}.timer": template("systemd.timer.j2").render(facts, starts=what.cron.calendar(what.zone)),
    }


def word(text: str) -> str:
    """Return one word of a command line of systemd, where % and $ and quotes mean something."""
    if re.fullmatch(r"[A-Za-z0-9_./:@-]+", text):
        return text
    doubled = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{doubled}"'
