"""`drill report --month` and `--quarter`: the review that is meant, written offline from the stored runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from drills.errors import FileProblem, UsageError
from drills.lang import ENGLISH


def write(
    reports: Path,
    month: str | None,
    quarter: str | None,
    target: str | None,
    say: Callable[[str], None],
    lang: str = ENGLISH,
) -> None:
    """Write the review of a month (`2026-11`) or of a quarter (`2026Q4`) and say where. Raises UsageError.

    In another language than English it stands beside the English one: `review.zh.md`.
    """
    from drills.report import month as months  # matplotlib costs a second
    from drills.report import quarter as quarters

    if month is not None and quarter is not None:
        raise UsageError("--month and --quarter: name one of them")
    if not (reports / "runs").is_dir():  # else a mistyped folder would be made, with nothing in it
        raise FileProblem(reports / "runs", "there is no run yet; begin with: drill run noop")
    if month is not None:
        if not months.MONTH.fullmatch(month):
            raise UsageError(f"--month {month}: is no month; write for example 2026-11")
        say(str(months.write(reports, month, target, lang)))
    if quarter is not None:
        if not quarters.QUARTER.fullmatch(quarter):
            raise UsageError(f"--quarter {quarter}: is no quarter; write for example 2026Q4")
        for line in quarters.write(reports, quarter, target, lang):
            say(line)
