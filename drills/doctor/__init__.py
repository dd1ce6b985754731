"""`drill doctor`: what works for the chosen drills at a target, what is missing, and what mends it. It only reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drills import opening, session
from drills.doctor import carried_out, clock, limits, monitoring, service, versions
from drills.doctor.finding import Finding, exit_code, lines
from drills.doctor.wanted import Wanted, wanted
from drills.model import Json, Target
from drills.options import Options
from drills.probes.prometheus import Alertmanager, Prometheus, alertmanager_of, prometheus_of
from drills.target import TargetSpec
from drills.targetfile import value_of


@dataclass(frozen=True)
class Diagnosis:
    """All that was found at a target for some drills."""

    target: str
    kind: str
    drills: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """Return 0 when all is well, 3 when a chosen drill would be refused, else 2."""
        return exit_code(self.findings)

    def lines(self) -> list[str]:
        """Return it for people."""
        bad = sum(one.state != "ok" for one in self.findings)
        head = f"target {self.target} ({self.kind}) for {', '.join(self.drills)}"
        end = {0: "all is well", 3: "a drill would be refused"}.get(
            self.exit_code, "the drills would be carried out, and some of their checks stay undecided"
        )
        return [head, *lines(self.findings), f"{len(self.findings) - bad} ok, {bad} not: {end}"]

    def to_json(self) -> Json:
        """Return it for programs."""
        return {
            "target": self.target,
            "kind": self.kind,
            "drills": list(self.drills),
            "exit_code": self.exit_code,
            "findings": [one.to_json() for one in self.findings],
        }


def diagnose(names: Sequence[str], options: Options) -> Diagnosis:
    """Look at everything. Raises UsageError for files, experiments or credentials that are not there."""
    spec = session.target_spec(options)
    asked = wanted(names, spec, options)
    with opening.examined(spec, asked) as (of_kind, target):
        found = [versions.ours(), *of_kind, *_everywhere(asked, spec, target)]
    return Diagnosis(spec.name, spec.kind, tuple(one.name for one in asked.drills), tuple(found))


def _everywhere(asked: Wanted, spec: TargetSpec, target: Target | None) -> Iterator[Finding]:
    """Yield what is asked of every kind of target; of one that is not there, only what can be asked without it."""
    if target is not None:
        yield from versions.theirs(target)
        yield from service.look(asked, target, value_of(spec.api_key))
        yield from limits.look(asked, spec, target)
    places = _places(spec, target)
    if target is not None or places != monitoring.Places():
        yield from monitoring.look(asked, places, spec.name)
    if places.prometheus is not None:
        yield from clock.prometheus(places.prometheus)
    yield from carried_out.look(asked, target)


def _places(spec: TargetSpec, target: Target | None) -> monitoring.Places:
    if target is not None:
        return monitoring.Places(prometheus_of(target), alertmanager_of(target), target.router_metrics)
    prometheus, alertmanager = spec.prometheus, spec.alertmanager
    return monitoring.Places(
        Prometheus(prometheus.url, bearer=value_of(prometheus.bearer)) if prometheus else None,
        Alertmanager(alertmanager.url, bearer=value_of(alertmanager.bearer)) if alertmanager else None,
        spec.router.metrics if spec.router else None,
    )
