"""What an action item is. Read strictly, so that a mistake in the file is named with its line."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from drills.model import Json
from drills.params import Line, Params

FILE: Final = "actions.yaml"
TYPES: Final = ("prevent", "detect", "mitigate", "process")
PRIORITIES: Final = ("P1", "P2", "P3", "P4")
#: Seen in so many drills, an item is escalated.
ESCALATED: Final = 3

OPEN, DONE, CLOSED = "open", "done", "closed"


def _nothing(value: Any) -> Any:
    return None if value == "" else value


def _moment(value: str) -> str:
    try:
        moment(value)
    except ValueError:
        raise ValueError("a day such as 2026-12-24 is expected, or a time such as 2026-12-24T10:30:00Z") from None
    return value


def _day(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        return value or None
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise ValueError("a day such as 2026-12-24 is expected") from None


def moment(text: str) -> datetime:
    """Return a day, or a time in ISO 8601, as a time in UTC; a day counts to its end. Raises ValueError."""
    if len(text) == len("2026-11-30"):
        return datetime.combine(date.fromisoformat(text), datetime.max.time(), UTC)
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


#: Text that may be left empty.
Word = Annotated[Line | None, BeforeValidator(_nothing)]
#: A day, or nothing.
Day = Annotated[date | None, BeforeValidator(_day)]
#: A day, or a time.
Moment = Annotated[str, AfterValidator(_moment)]


class Proof(Params):
    """The check whose pass proves an item done; only rows of it with these parameters count."""

    drill: Line
    check: Line
    params: dict[str, Any] = Field(default_factory=dict)


class Opened(Params):
    """When an item was first seen, and in which run; by hand: in none."""

    date: Moment
    run: Word = None


class Closed(Params):
    """What closed an item: the run whose check passed, or somebody, who then gives the reason."""

    date: Moment
    run: Word = None
    by: Word = None
    reason: Word = None

    @model_validator(mode="after")
    def _by_somebody(self) -> Self:
        if (self.run is None) == (self.by is None):
            raise ValueError("either 'run' or 'by' says what closed it")
        if self.by is not None and self.reason is None:
            raise ValueError("closed by hand, it needs a 'reason'")
        return self


class Item(Params):
    """One thing to do."""

    id: Annotated[Line, Field(max_length=100)]
    what: Annotated[Line, Field(max_length=2000)]
    type: Literal["prevent", "detect", "mitigate", "process"]
    priority: Literal["P1", "P2", "P3", "P4"]
    owner: Word = None
    due: Day = None
    link: Word = None
    note: Word = None  # people's own words
    target: Word = None
    proof: Proof | None = None
    opened: Opened
    seen: tuple[Line, ...] = ()
    status: Literal["open", "done", "closed"]
    closed: Closed | None = None
    history: tuple[Closed, ...] = ()

    @model_validator(mode="after")
    def _as_it_says(self) -> Self:
        if (self.status == OPEN) != (self.closed is None):
            said = "has to be empty while it is open" if self.status == OPEN else "has to say what closed it"
            raise ValueError(f"status {self.status}, so 'closed' {said}; `drill actions close` does both")
        return self

    @property
    def age(self) -> int:
        """Return the number of drills in which it was seen."""
        return len(self.seen)

    @property
    def escalated(self) -> bool:
        """Whether it is open after too many drills."""
        return self.status == OPEN and self.age >= ESCALATED

    def to_json(self) -> Json:
        """Return the item with what follows from it."""
        return self.model_dump(mode="json") | {"age": self.age, "escalated": self.escalated}


class Book(Params):
    """The whole file."""

    actions: tuple[Item, ...] | None = None


def urgent_first(items: Iterable[Item]) -> list[Item]:
    """Return items in the order in which they are to be looked at: open before done, escalated first."""
    return sorted(items, key=lambda one: (one.status != OPEN, not one.escalated, one.priority, -one.age, one.id))
