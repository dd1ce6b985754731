"""`limits.environment: production`: what has to be said, and what must be true, before real users are near a drill.

Windows, freeze dates and `stop_if` it shares with every target that has them; there they must be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from drills.errors import Refused
from drills.headroom import Live, offered
from drills.model import Json

if TYPE_CHECKING:
    from drills.options import Options
    from drills.target import TargetSpec

NAME: Final = "production"
#: The most a drill may add to what users send.
ADDED_MAX: Final = 0.10
POWER_CYCLE: Final = "gpu-reset"


def is_production(plan: Json) -> bool:
    """Whether the plan's target says that real users are on it."""
    return bool(plan["target"]["limits"].get("environment") == NAME)


def require_flags(spec: TargetSpec, options: Options) -> None:
    """Refuse a command line that does not name the target twice and somebody who is on call."""
    if spec.limits.environment != NAME:
        return
    missing = [] if options.confirm == spec.name else [f"--confirm {spec.name}"]
    missing += [] if options.oncall.strip() else ["--oncall NAME (who is on call and knows of it)"]
    if missing:
        wrong = f" (--confirm {options.confirm} is another target)" if options.confirm not in ("", spec.name) else ""
        raise Refused(f"target {spec.name} is production: add {' and '.join(missing)}{wrong}; nothing was touched")


def refusals(plan: Json, users: Live) -> list[str]:
    """Return why this plan may not run on real users."""
    found = []
    limits, faults = plan["target"]["limits"], plan["experiment"]["faults"]
    if any(item["fault"] == POWER_CYCLE for item in faults) and not limits.get("accept_power_cycle"):
        found.append(
            "production: gpu-reset: a reset is not recommended here and may end in a power cycle of the machine; "
            "limits.accept_power_cycle: true accepts that"
        )
    return found + _too_much(plan, users)


def _too_much(plan: Json, users: Live) -> list[str]:
    rate = offered(plan)
    if rate is None:
        return ["production: load of a closed loop has no rate that could be held against users'; use poisson"]
    if users.rate is None:
        return [f"production: nobody knows what users send now ({users.how}); say it by capacity.live, a PromQL"]
    most = ADDED_MAX * users.rate
    if rate <= most:
        return []
    return [
        f"production: {rate:g}/s would be added to {users.rate:.3g}/s of users ({users.how}), "
        f"{ADDED_MAX:.0%} of it may be: load.arrivals.rate at most {most:.2g}/s"
    ]
