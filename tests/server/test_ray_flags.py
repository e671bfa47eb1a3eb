"""`gguflow serve --ray`: what is refused before any cluster is looked for."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from gguflow.cli.errors import BAD_ARGUMENT, BAD_FILE, NO_RESOURCES, exit_code
from gguflow.cli.load import bundled_model
from gguflow.cli.main import main
from gguflow.cli.ray_options import needs_of
from gguflow.engine.cluster import sameness
from gguflow.engine.cluster.connect import LOCAL, use_ray
from gguflow.engine.cluster.errors import ClusterError, ClusterFileError
from gguflow.engine.cluster.work import Work, named_errors
from gguflow.engine.options import Options


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    code = main(["serve", "--port", "0", *args])
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    return code, err


@pytest.mark.parametrize(
    "args, said",
    [
        (["--replicas", "2"], "--replicas: only with --ray"),
        (["--ray-wait", "3"], "--ray-wait: only with --ray"),
        (["--stages", "2"], "--stages: only with --ray"),
        (["--ray", "local", "--stages", "2", "--stage-shares", "1,2,3"], "--stage-shares: 3 for 2"),
        (["--ray", "local", "--stages", "2", "--devices", "cuda:0"], "--stages: each is on one"),
        (["--ray", "local", "-md", "x.gguf"], "-md: not with --ray"),
        (["--ray", "local", "--lookup"], "--lookup: not with --ray"),
        (["--ray", "local", "-m", "a.gguf", "-m", "b.gguf"], "-m again: not with --ray"),
        (["--ray", "local", "--ray-silence", "0"], "--ray-silence: expected more than 0"),
    ],
)
def test_flags_that_do_not_go_together(
    capsys: pytest.CaptureFixture[str], args: list[str], said: str
) -> None:
    code, err = refused(capsys, *args)
    assert code == BAD_ARGUMENT and said in err


def test_without_ray(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    code, err = refused(capsys, "--ray", "local")
    assert code == NO_RESOURCES and "pip install 'gguflow[ray]'" in err


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is missing: pip install 'gguflow[ray]'")
def test_nothing_listens_there(capsys: pytest.CaptureFixture[str]) -> None:
    use_ray(LOCAL)  # once for this process, whose other tests start a cluster here
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))  # taken, and nobody listens
        address = f"127.0.0.1:{s.getsockname()[1]}"
        code, err = refused(capsys, "--ray", address)
    assert code == NO_RESOURCES and f"no cluster at {address}" in err
    code, err = refused(capsys, "--ray", "nowhere")
    assert code == NO_RESOURCES and "expected HOST:PORT" in err


def test_another_file_shows_wherever_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sameness, "PIECE", 1 << 20)  # of which the bundled model has several
    data = bytearray(bundled_model().read_bytes())
    files = [tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf"]
    files[0].write_bytes(data)
    files[1].write_bytes(data)
    data[-100] ^= 1
    files[2].write_bytes(data)
    same, again, other = (sameness.digest(f) for f in files)
    assert same == again != other
    sameness.check_same("10.0.0.2", "m.gguf", [same], [again])
    with pytest.raises(ClusterFileError, match=r"^node 10.0.0.2: m.gguf is another file there"):
        sameness.check_same("10.0.0.2", "m.gguf", [other], [same])


@pytest.mark.skipif(find_spec("ray") is None, reason="ray is missing: pip install 'gguflow[ray]'")
def test_a_node_with_another_file_or_none() -> None:
    use_ray(LOCAL)
    work = Work.of(bundled_model(), Options())
    assert work.path == "" and work.source().arch.name == "llama"
    with pytest.raises(ClusterFileError, match=r"^node [\d.]+: .* is another file there: sha256"):
        replace(work, hashes=("0" * 64,)).source()
    with pytest.raises(ClusterFileError, match=r"^node [\d.]+: /nowhere/m.gguf"), named_errors():
        replace(work, path="/nowhere/m.gguf").source()


def test_codes_of_errors() -> None:
    assert exit_code(ClusterError("x")) == NO_RESOURCES
    assert exit_code(ClusterFileError("x")) == BAD_FILE


def test_what_a_process_needs() -> None:
    assert needs_of(Options(n_threads=3)) == {"CPU": 3.0}
    assert needs_of(Options(n_gpu_layers=5)) == {"CPU": 1.0, "GPU": 1.0}
    two = Options(devices=("cuda:0", "cuda:1"))
    assert needs_of(two) == {"CPU": 1.0, "GPU": 2.0}


@pytest.mark.parametrize(
    ("before", "own", "seen"),
    [(None, (0, 2), "1"), (None, (1, 3), "0,2"), ("4,5,7", (1, 3), "4,7"), (None, (0, 1), "")],
)
def test_what_is_started_here_leaves_the_own_gpu(
    before: str | None, own: tuple[int, int], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gguflow.engine.cluster import connect

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if before is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", before)
    with connect._leaving(own):
        assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
    with connect._leaving(None):
        assert os.environ.get("CUDA_VISIBLE_DEVICES") == before
