"""Two targets that share a machine meet there, whatever folder each of them names for its own things."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from drills import receipts
from drills.access import procs
from drills.access.local import TEMPORARY, LocalHost
from drills.clock import Clock
from drills.custody import Lock
from drills.errors import Refused
from drills.hosts.custody import HostsCustody
from drills.hosts.machines import CUSTODY_DIR, grouped
from drills.model import Receipt
from drills.targetfile import GpuHost

RUN, OTHER = "aaaa1111", "bbbb2222"
DECLARED = GpuHost(name="g1", address="10.0.0.1", user="u", unit="vllm")
LEFT = Receipt(f"{RUN}-0-noop", RUN, "noop", "one", "g1", ({"name": "g1", "host": "g1"},), {}, (), (), 60.0)


class Here(LocalHost):
    """A machine that is this one."""

    name = "g1"


def keeper(folder: Path, name: str) -> HostsCustody:
    """Return the custody of a target of that name, which keeps its own things in a folder of its own."""
    [machine] = grouped([DECLARED.model_copy(update={"state_dir": str(folder / name)})], lambda _: Here())
    (folder / name).mkdir(exist_ok=True)
    return HostsCustody([replace(machine, custody_dir=str(folder / "custody"))], name)


def lock(run: str, lives_s: float = 900.0) -> Lock:
    now = Clock().wall()
    return Lock(run, "me@here", "elsewhere", 1, 1, now, now + lives_s, "/runs/x")


def test_it_is_one_place_for_every_target() -> None:
    targets = [DECLARED.model_copy(update={"state_dir": name}) for name in ("/srv/drill", "/data/drill")]
    places = [grouped([one], lambda _: Here())[0].custody_dir for one in targets]
    assert places == [CUSTODY_DIR, CUSTODY_DIR]


def test_what_one_holds_the_other_cannot_take(tmp_path: Path) -> None:
    one, two = keeper(tmp_path, "one"), keeper(tmp_path, "two")
    one.take(lock(RUN), Clock())
    with pytest.raises(Refused, match="host g1: target two: run aaaa1111 of me@here holds it"):
        two.take(lock(OTHER), Clock())
    two.ask_to_stop(RUN, "you@there")
    assert one.asked_to_stop(RUN) == "you@there"
    one.release(RUN)
    two.take(lock(OTHER), Clock())


def test_what_one_has_left_keeps_the_other_from_beginning(tmp_path: Path) -> None:
    one, two = keeper(tmp_path, "one"), keeper(tmp_path, "two")
    one.take(lock(RUN, lives_s=-1.0), Clock())  # its driver is gone
    [files] = one._files.values()
    files.host.write(files.receipt_file(LEFT), json.dumps(receipts.to_json(LEFT)))
    with pytest.raises(Refused, match="target two: not put back yet: noop on g1"):
        two.take(lock(OTHER), Clock())
    assert [left.receipt for left in two.outstanding()] == [LEFT]


def test_a_place_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "custody").mkdir()
    (tmp_path / "custody").chmod(0o777)
    with pytest.raises(Refused, match=r"host g1: receipts and lock cannot be kept in .*/custody: .*only .* may write"):
        keeper(tmp_path, "one").take(lock(RUN), Clock())
    assert list((tmp_path / "custody").iterdir()) == []


def test_half_written_files_are_swept_from_both_places(tmp_path: Path) -> None:
    one = keeper(tmp_path, "one")
    for folder in (tmp_path / "custody" / "receipts", tmp_path / "one" / "gpu-reset"):
        folder.mkdir(parents=True)
        (folder / f"{TEMPORARY}1-{(procs.start(1) or 0) + 1}-x").touch()
    one.sweep([])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
