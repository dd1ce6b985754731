"""What retries cost in tokens: generated and not used, and prompts that were computed again. Estimates, and say so."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from drills.checks import engines
from drills.checks.amplification import Attempts
from drills.lang import t
from drills.model import Phase
from drills.report import words
from drills.report.facts import Facts

#: So many whole answers tell how many bytes a token takes.
ANSWERS_MIN = 20


@dataclass(frozen=True)
class Waste:
    """Tokens, where they can be told; `attempts` gave no answer, `again` were made beyond the first."""

    attempts: int
    bytes_per_token: float | None
    generated: int | None
    again: int | None
    prompt_tokens: float | None  # of one request
    prefilled: int | None


def waste(facts: Facts, attempts: Attempts) -> Waste | None:
    """Return what the attempts of the fault cost beyond one for each arrival; None without an injection or ledger."""
    found: Waste | None = facts.evidence.once("waste", lambda: _waste(facts, attempts))
    return found


def _waste(facts: Facts, attempts: Attempts) -> Waste | None:
    span, hit = facts.phase(Phase.FAULT), facts.hit
    if hit is None or span is None or not facts.evidence.has_ledger:
        return None
    unused, size = _unused(facts), _bytes_per_token(facts)
    during = attempts.count(hit, max(hit, span.end))
    again = None if during.engine is None else max(0, round(during.engine) - during.arrivals)
    prompt = _prompt_tokens(facts)
    total = int(unused["bytes"].sum() or 0)
    return Waste(
        attempts=unused.height,
        bytes_per_token=size,
        generated=None if size is None else round(total / size),
        again=again,
        prompt_tokens=prompt,
        prefilled=None if prompt is None or again is None else round(again * prompt),
    )


def _unused(facts: Facts) -> pl.DataFrame:
    """Return the attempts of the arrivals in the fault, and of those caught, that sent something nobody could use."""
    mine = pl.concat([facts.cohorts["caught"], facts.cohorts["fault"]]).select("arrival", "good")
    sent = facts.evidence.ledger.filter(pl.col("bytes") > 0).join(mine, on="arrival", how="inner")
    whole = (pl.col("close") == "complete") & pl.col("good")
    # Of several whole ones the last to end is the one that was used.
    last = pl.col("end").rank("ordinal", descending=True).over("arrival", "close") == 1
    return sent.filter(~(whole & last))


def _bytes_per_token(facts: Facts) -> float | None:
    """Return the bytes that a token took in the whole answers of the baseline (median)."""
    whole = facts.cohorts["baseline"].filter((pl.col("outcome") == "ok") & (pl.col("tokens") > 0))
    ledger = facts.evidence.ledger.filter((pl.col("close") == "complete") & (pl.col("bytes") > 0))
    sizes = ledger.join(whole.select("arrival", "tokens"), on="arrival", how="inner")
    if sizes.height < ANSWERS_MIN:
        return None
    middle = sizes.select((pl.col("bytes") / pl.col("tokens")).median()).item()
    return float(middle) if middle else None


def _prompt_tokens(facts: Facts) -> float | None:
    """Return the prompt tokens of one request in the baseline, by the primaries' own counters."""
    span = facts.phase(Phase.BASELINE)
    if span is None:
        return None
    ev, names = facts.evidence, engines.primaries(facts.evidence)
    tokens, asked = (engines.rise(ev, names, name, span.begin, span.end) for name in ("prompt_tokens", "requests"))
    return tokens / asked if tokens and asked else None


def lines(facts: Facts, attempts: Attempts) -> list[str]:
    """Return the cost in tokens as a sentence."""
    found = waste(facts, attempts)
    if found is None:
        return []
    if not found.attempts and found.again == 0:
        return [t("Cost of retries in tokens: none, each arrival had one attempt and none broke (`ledger.ndjson`).")]
    parts = []
    if found.generated is not None:
        parts.append(
            t(
                "about {tokens:,} generated in vain (sent by {attempts} that gave no whole answer; {size:.0f} bytes a "
                "token, as in the baseline)",
                tokens=found.generated,
                attempts=words.count(found.attempts, "attempt"),
                size=found.bytes_per_token,
            )
        )
    if found.prefilled is not None and found.again is not None:
        parts.append(
            t(
                "about {tokens:,} of prompts computed again ({attempts} more than arrivals, {each:,.0f} tokens each, "
                "as in the baseline)",
                tokens=found.prefilled,
                attempts=words.count(found.again, "attempt"),
                each=found.prompt_tokens,
            )
        )
    told = words.clauses(parts) or t("no data: neither bytes nor the engines' counters tell them")
    return [t("Cost of retries in tokens: {told} (`ledger.ndjson`, `samples.ndjson`).", told=told)]
