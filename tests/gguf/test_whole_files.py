"""Files appear under their names whole or not at all."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gguflow.cli.talk.conversation import Conversation
from gguflow.engine.files import private_folder, whole_file


def parts(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.name.endswith(".part"))


def test_the_file_is_there_at_the_end_alone(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    with whole_file(target) as part:
        part.write_bytes(b"new")
        assert not target.exists() and part.parent == tmp_path
    assert target.read_bytes() == b"new" and parts(tmp_path) == []


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), whole_file(target) as part:
        part.write_bytes(b"half")
        raise ZeroDivisionError
    assert target.read_bytes() == b"old" and parts(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="modes are POSIX's")
def test_modes(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    before = os.umask(0o027)
    try:
        with whole_file(target) as part:
            assert stat.S_IMODE(part.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    target.chmod(0o604)
    with whole_file(target):
        pass
    assert stat.S_IMODE(target.stat().st_mode) == 0o604


def test_links_are_followed_and_none_is_written_through(tmp_path: Path) -> None:
    target, link, victim = tmp_path / "a.bin", tmp_path / "link", tmp_path / "victim"
    victim.write_bytes(b"mine")
    target.write_bytes(b"old")
    link.symlink_to(target)
    # What a guesser would have prepared: names made of the target's and the process's number.
    for name in (f"a.bin.{os.getpid()}.part", f".a.bin.{os.getpid()}.part"):
        (tmp_path / name).symlink_to(victim)
    with whole_file(link) as part:
        part.write_bytes(b"new")
    assert link.is_symlink() and target.read_bytes() == b"new" and victim.read_bytes() == b"mine"


def test_writers_at_the_same_time_do_not_mix(tmp_path: Path) -> None:
    target, n, faults = tmp_path / "a.bin", 1 << 16, []

    def write(byte: int) -> None:
        try:
            for _ in range(20):
                with whole_file(target, durable=False) as part, part.open("wb") as f:
                    for _ in range(8):
                        f.write(bytes([byte]) * n)
        except Exception as e:
            faults.append(e)

    threads = [threading.Thread(target=write, args=(b,)) for b in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    data = target.read_bytes()
    assert not faults and len(data) == 8 * n and len(set(data)) == 1 and parts(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_what_a_killed_writer_left_goes_with_the_next(tmp_path: Path) -> None:
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    code = (
        "import sys, time; from gguflow.engine.files import private_folder, whole_file\n"
        f"with whole_file({str(target)!r}) as part:\n"
        "    part.write_bytes(b'half'); print('ready', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"ready\n"
    with whole_file(target) as part:  # one that is being written is left alone
        part.write_bytes(b"mine")
    assert len(parts(tmp_path)) == 1
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert target.read_bytes() == b"mine" and len(parts(tmp_path)) == 1
    with whole_file(target) as part:
        part.write_bytes(b"new")
    assert target.read_bytes() == b"new" and parts(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="devices and pipes are POSIX's")
def test_what_is_no_regular_file_is_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/null")
    for target in (pipe, link, Path("/dev/null")):
        with pytest.raises(OSError, match="not a regular file"), whole_file(target) as part:
            part.write_bytes(b"x")
    with pytest.raises(IsADirectoryError), whole_file(tmp_path):
        pass
    assert stat.S_ISFIFO(pipe.stat().st_mode) and stat.S_ISCHR(os.stat("/dev/null").st_mode)
    assert parts(tmp_path) == []


def test_conversations_are_saved_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/save` of a chat: what was there stays where the disk is full."""
    path = tmp_path / "talk.json"
    talk = object.__new__(Conversation)
    talk.system, talk.messages = "s", [{"role": "user", "content": "a"}]
    talk.save(str(path))
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gguflow.engine.files.os.fsync", full)
    talk.messages = []
    with pytest.raises(OSError, match="No space"):
        talk.save(str(path))
    assert path.read_bytes() == before and parts(tmp_path) == []


def test_a_private_folder_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a" / "cache"
    assert private_folder(folder) == folder and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    private_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.parent.chmod(0o777)  # anyone may put another folder in its place
    with pytest.raises(PermissionError, match="other users may replace"):
        private_folder(folder)
    folder.parent.chmod(0o1777)  # as /tmp has it: nobody else may
    private_folder(folder)
    monkeypatch.setattr(os, "getuid", lambda: os.geteuid() + 1)
    with pytest.raises(PermissionError, match="belongs to user"):
        private_folder(folder)


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "none" / "x"
    with pytest.raises(FileNotFoundError) as e, whole_file(path):
        pass
    assert e.value.filename == str(path)
