"""What answers of Prometheus and Alertmanager must hold: whatever is of another form is no answer.

What stands between may answer in their place: a proxy, a page of a login, another program on that port. So each answer
is held against its form once, where it comes in, and whoever uses it need not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from drills.model import Json
from drills.probes.http import ProbeError


@contextmanager
def understood() -> Iterator[None]:
    """Raise ProbeError for what a malformed answer makes fail within."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise ProbeError(f"the answer is malformed: {where}: {first['msg'].lower()}") from None
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise ProbeError(f"the answer is malformed: {type(error).__name__}") from None


def wall(stamp: str | None) -> float | None:
    """Return an RFC 3339 time as seconds since the epoch (nanoseconds are cut). Raises ValueError."""
    if not stamp:
        return None
    text = stamp.replace("Z", "+00:00")
    if "." in text:
        head, _, tail = text.partition(".")
        digits = "".join(c for c in tail if c.isdigit() or c in "+-:")
        fraction, sign, zone = digits.partition("+") if "+" in digits else digits.partition("-")
        text = f"{head}.{fraction[:6]}{sign}{zone}"
    return datetime.fromisoformat(text).timestamp()


def _time(stamp: str) -> str:
    wall(stamp)
    return stamp


_Time = Annotated[str, AfterValidator(_time)]
_Labels = dict[str, str]


class _Firing(BaseModel):
    labels: _Labels
    state: str
    since: _Time | None = Field(None, alias="activeAt")


class _Named(BaseModel):
    name: str


class _Rules(BaseModel):
    rules: list[_Named]


class _State(BaseModel):
    state: str


class _Alert(BaseModel):
    labels: _Labels
    status: _State
    fingerprint: str
    began: _Time = Field(alias="startsAt")


class _Group(BaseModel):
    labels: _Labels
    receiver: _Named
    alerts: list[_Alert]


class _Silence(BaseModel):
    id: str
    status: _State
    ends: _Time = Field(alias="endsAt")


class _Manager(BaseModel):
    url: str


FIRING: Final = TypeAdapter(list[_Firing])
RULES: Final = TypeAdapter(list[_Rules])
MANAGERS: Final = TypeAdapter(list[_Manager])
ALERTS: Final = TypeAdapter(list[_Alert])
GROUPS: Final = TypeAdapter(list[_Group])
SILENCES: Final = TypeAdapter(list[_Silence])
#: A vector; or a scalar, which is a time and its value. What the values are is for whoever asks.
SAMPLES: Final = TypeAdapter(list[Any])


def held(form: TypeAdapter[Any], answer: Any) -> list[Json]:
    """Return an answer as it came, if it is of that form. Raises ProbeError."""
    with understood():
        form.validate_python(answer)
    found: list[Json] = answer
    return found
