"""Clock locks: the site's own is declared and set again, and a drill's is proven by a busy GPU alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from drills.access import gpu_clocks, gpu_restore
from drills.errors import Refused
from drills.faults import clock_locks, gpu_caps, gpu_notes
from drills.faults.gpu_caps import Cap
from drills.model import Json, Replica
from drills.units import UnitError, parse_clocks
from tests.unit.gpu_node import a_gpu
from tests.unit.unit_host import GPU, Drilled

IDLE, POWER_CAP = 0x1, 0x4
UUID = "GPU-1"


def shows(clock_mhz: int, reasons: int = 0) -> Json:
    known = {"sm_clock_mhz": clock_mhz, "sm_clock_max_mhz": 1980, "event_reasons": reasons, "temperature_c": 50}
    return {**known, "power_limit_w": 700.0, "power_default_w": 700.0}


# ---- how it is written -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "lock"),
    [("none", ()), ("1410MHz", (1410, 1410)), ("210-1410MHz", (210, 1410)), ("210 - 990 MHz", (210, 990))],
)
def test_a_lock_is_none_or_one_clock_or_two(text: str, lock: tuple[int, ...]) -> None:
    assert parse_clocks(text) == lock


@pytest.mark.parametrize("text", [1410, "1410", "1410-210MHz", "-1410MHz", "00MHz", "all", "", True])
def test_anything_else_is_told_how(text: object) -> None:
    with pytest.raises(UnitError):
        parse_clocks(text)


# ---- what a GPU shows of it ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpu", "lock", "words"),
    [
        (shows(1980), (), ""),
        (shows(1830), (), ""),  # nothing shows; that is why it has to be said
        (shows(1200), (), "1200 of 1980 MHz, and no clock event reason says why: a lock seems to be active already"),
        (shows(1200), (), "and none is declared"),
        (shows(345, IDLE), (), ""),
        (shows(1200, POWER_CAP), (), ""),
        (shows(1410), (1410, 1410), ""),
        (shows(1395), (210, 1410), ""),
        (shows(1980), (1410, 1410), "above its lock at 1410 MHz: correct `clocks`"),
        (shows(600), (1410, 1410), "one at 1410 MHz is declared"),
        (shows(600, IDLE), (1410, 1410), ""),
        (shows(1980), (2100, 2100), ""),
        (a_gpu(), (), ""),  # tells no clock
    ],
)
def test_what_it_shows_must_agree_with_what_is_said(gpu: Json, lock: tuple[int, ...], words: str) -> None:
    found = list(clock_locks.of_gpu(UUID, gpu, lock))
    assert (words in found[0]) if words else found == []


@pytest.mark.parametrize(
    ("now_mhz", "default_mhz", "refused"),
    [(1410, 1980, True), (1980, 1980, False), (None, 1980, False), (1410, None, False)],
)
def test_application_clocks_that_a_reset_would_drop(now_mhz: Any, default_mhz: Any, refused: bool) -> None:
    gpu = {"app_clock_mhz": now_mhz, "app_clock_default_mhz": default_mhz}
    assert ["nvidia-smi -rac" in why for why in clock_locks.of_applications(UUID, gpu)] == [True] * refused


@pytest.mark.parametrize(("mhz", "refused"), [(990, False), (1395, True), (1410, True)])
def test_a_cap_that_the_sites_own_lock_has_already_is_none(mhz: int, refused: bool) -> None:
    found = list(gpu_caps.of_clocks(UUID, shows(1410, IDLE), [mhz], 0.8, (1410, 1410)))
    assert ["its own lock is at 1410 MHz" in why for why in found] == [True] * refused


# ---- what proves a drill's own ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clock_mhz", "reasons", "noted", "capped"),
    [
        (990, 0, True, True),
        (975, 0, True, True),  # a card takes the nearest step of its own
        (345, IDLE, True, None),  # low by itself
        (990, IDLE, True, None),
        (600, POWER_CAP, True, None),  # something else holds it down
        (345, 0, True, None),
        (1950, 0, True, False),
        (1950, 0, False, False),
        (345, IDLE, False, False),
        (990, 0, False, None),
    ],
)
def test_only_a_busy_gpu_at_the_very_clock_is_capped(
    clock_mhz: int, reasons: int, noted: bool, capped: bool | None
) -> None:
    cap = Cap("r", "h1", UUID, "note", 990, None, shows(1950))
    assert gpu_caps.seen(cap, shows(clock_mhz, reasons), noted=noted)["capped"] is capped


# ---- how it is put back ----------------------------------------------------------------------------------


class Card:
    """A card behind a command that plays nvidia-smi, in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.note, self.base = folder / "note", folder / "reset"
        self.asked, self.clock, self.answer = folder / "asked", folder / "clock", folder / "answer"
        self.clock.write_text("1410, 0x0")
        self.answer.write_text("All done.")
        script = (
            f"import pathlib, sys; f = pathlib.Path({str(folder)!r}); a = ' '.join(sys.argv[1:])\n"
            "if 'query-gpu=clocks' in a: print((f / 'clock').read_text())\n"
            "elif 'query-gpu' in a: print('Enabled, 700.00')\n"
            "else: (f / 'asked').open('a').write(a + '\\n'); print((f / 'answer').read_text())\n"
        )
        (folder / "smi.py").write_text(script)
        self.smi = ["--smi", sys.executable, str(folder / "smi.py")]

    def changes(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card(tmp_path)


@pytest.mark.parametrize(
    ("lock", "asked"), [([], f"-rgc -i {UUID}"), (["--clocks", "210,1410"], f"-lgc 210,1410 -i {UUID}")]
)
def test_a_drills_lock_gives_way_to_the_sites_own_or_to_none(card: Card, lock: list[str], asked: str) -> None:
    argv = ["--note", str(card.note), "--uuid", UUID, "--cap-mhz", "990", *lock, *card.smi]
    assert gpu_clocks.main(argv) == 0  # without the note nothing was changed, so nothing is
    assert card.changes() == []
    card.note.touch()
    assert gpu_clocks.main(argv) == 0
    assert (card.changes(), card.note.exists()) == ([asked], False)


def test_a_reset_that_dropped_the_sites_lock_has_it_set_again(card: Card) -> None:
    argv = ["--base", str(card.base), "--uuid", UUID, "--clocks", "1410,1410"]
    assert gpu_restore.main([*argv, "--persistence", "1", *card.smi]) == 0
    assert card.changes() == [f"-lgc 1410,1410 -i {UUID}"]


@pytest.mark.parametrize("program", ["gpu_clocks", "gpu_restore"])
def test_a_lock_that_is_not_taken_back_is_not_called_put_back(
    card: Card, program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card.answer.write_text("Setting locked GPU clocks is not supported for GPU 00000000:1A:00.0.")
    card.note.touch()
    if program == "gpu_clocks":
        argv = ["--note", str(card.note), "--uuid", UUID, "--cap-mhz", "990", "--clocks", "1410,1410", *card.smi]
        assert gpu_clocks.main(argv) == 1
    else:
        assert gpu_restore.main(["--base", str(card.base), "--uuid", UUID, "--clocks", "1410,1410", *card.smi]) == 1
    assert f"nvidia-smi -lgc 1410,1410 -i {UUID}" in capsys.readouterr().err
    assert card.note.exists()


def test_a_cap_hands_the_sites_lock_to_whoever_undoes_it() -> None:
    made: dict[str, Any] = {"replica": "r", "host": "h1", "gpu": UUID, "note": "note", "mhz": 990, "watts": None}
    old, new = Cap(**made, prior={}), Cap(**made, prior={}, lock=[210, 1410])
    assert "--clocks" not in old.undo("python3", ["nvidia-smi"])["argv"]
    argv = new.undo("python3", ["nvidia-smi"])["argv"]
    assert argv[argv.index("--clocks") + 1] == "210,1410"
    assert gpu_caps.of_json(new.to_json()) == new
    assert gpu_caps.of_json({key: value for key, value in old.to_json().items() if key != "lock"}) == old


# ---- a reset ---------------------------------------------------------------------------------------------


def test_a_reset_where_nobody_said_whether_clocks_are_locked_is_refused() -> None:
    drill = Drilled()
    drill.target.site_lock_mhz = None
    [why] = drill.preflight()
    assert "write `clocks: none` beside it" in why
    with pytest.raises(Refused, match="nothing was touched"):
        drill.aim()


def test_a_lock_that_shows_and_was_not_said_is_refused() -> None:
    drill = Drilled()
    drill.machine.gpus[GPU] |= shows(1200)
    [why] = drill.preflight()
    assert "a lock seems to be active already" in why


@pytest.mark.parametrize(("lock", "clocks"), [((), None), ((210, 1410), "210,1410")])
def test_the_sites_lock_is_in_the_receipt_and_in_each_way_back(lock: tuple[int, ...], clocks: str | None) -> None:
    drill = Drilled()
    drill.target.site_lock_mhz = lock
    receipt = drill.aim()
    drill.inject(receipt)
    drill.revert(receipt)
    restores = [argv for argv in drill.target.there.ran if "drills.access.gpu_restore" in argv]
    assert len(restores) >= 2
    for argv in restores:
        assert (argv[argv.index("--clocks") + 1] if "--clocks" in argv else None) == clocks
    before = receipt.prior["machine"]["gpus"][GPU]
    assert before["clock_lock"] == list(lock)
    assert gpu_notes.restore("p", "b", GPU, {**before, "clock_lock": []}, ["s"]).count("--clocks") == 0


def test_only_said_locks_are_known() -> None:
    class Target:
        def clock_lock(self, replica: str) -> tuple[int, ...] | None:
            return {"a": (), "b": (1, 2), "c": None}[replica]

    victims = [Replica(n, "u", "primary", "", ready=True, host="h", gpus=(f"GPU-{n}",)) for n in "abc"]
    target: Any = Target()
    locks = clock_locks.declared(target, victims)
    assert locks == {"GPU-a": (), "GPU-b": (1, 2)}
    assert [why.split(":")[0] for why in clock_locks.of_victims(victims, locks)] == ["c"]
