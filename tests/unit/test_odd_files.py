"""What is no file where a receipt, a timer's word or a lock should lie: it hides nothing else, on any machine."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from drills import receipts
from drills.access.filecustody import FileCustody
from drills.access.local import LocalHost
from drills.access.remote import RemoteHost
from drills.custody import LockUnreadable
from drills.errors import Unreachable
from drills.model import Completed, Host, Receipt
from tests.unit import processes

RECEIPT = Receipt("0badf00d-0-noop", "0badf00d", "noop", "t", "g1", ({"name": "r"},), {}, (), (), 600.0)


def carried(argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
    assert timeout_s > 0
    return Completed(tuple(argv), 0, json.dumps(processes.answer(stdin)), "")


HOSTS: dict[str, Host] = {"here": LocalHost(), "over a link": RemoteHost("g1", carried, python=sys.executable)}
ODD = ("a folder", "a pipe")


def put(odd: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if odd == "a folder":
        path.mkdir()
    else:
        os.mkfifo(path)


@pytest.fixture(params=HOSTS)
def custody(request: pytest.FixtureRequest, tmp_path: Path) -> FileCustody:
    return FileCustody(HOSTS[request.param], str(tmp_path), "t")


@pytest.mark.parametrize("odd", ODD)
def test_a_receipt_hides_no_other(odd: str, custody: FileCustody, tmp_path: Path) -> None:
    custody.host.write(custody.receipt_file(RECEIPT), json.dumps(receipts.to_json(RECEIPT)))
    path = tmp_path / "receipts" / "feedf00d-0-noop.json"
    put(odd, path)
    found = custody.found()
    assert [one.receipt for one in found.outstanding] == [RECEIPT]
    [bad] = found.unreadable
    assert bad.run == "feedf00d"
    assert bad.what.startswith(f"{path}: is no receipt of this version (")
    assert str(path) in bad.remove


@pytest.mark.parametrize("odd", ODD)
def test_the_word_of_a_timer_hides_no_receipt(odd: str, custody: FileCustody) -> None:
    custody.host.write(custody.receipt_file(RECEIPT), json.dumps(receipts.to_json(RECEIPT)))
    put(odd, Path(custody.receipt_file(RECEIPT)).with_suffix(".timer.json"))
    assert [one.timer_state for one in custody.found().outstanding] == ["unreadable"]


@pytest.mark.parametrize("odd", ODD)
def test_a_lock_is_one_that_cannot_be_read(odd: str, custody: FileCustody, tmp_path: Path) -> None:
    path = tmp_path / "lock" / "lock.json"
    put(odd, path)
    with pytest.raises(LockUnreadable, match="so nobody can tell whether a run drills this target"):
        custody.held()


def test_a_machine_that_does_not_answer_is_no_odd_file(tmp_path: Path) -> None:
    def silent(argv: Sequence[str], stdin: str, timeout_s: float) -> Completed:
        if json.loads(stdin)["call"] == "list":
            return carried(argv, stdin, timeout_s)
        raise Unreachable("g1: does not answer")

    custody = FileCustody(RemoteHost("g1", silent), str(tmp_path), "t")
    LocalHost().write(custody.receipt_file(RECEIPT), json.dumps(receipts.to_json(RECEIPT)))
    with pytest.raises(Unreachable, match=r"^g1: does not answer$"):
        custody.found()
