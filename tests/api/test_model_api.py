"""Model's methods: what pieces carry, what is refused by name, forks, sessions on disk."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import time
from dataclasses import fields
from pathlib import Path
from types import FunctionType
from typing import Any, get_type_hints

import numpy as np
import pytest
from tiny_model import write_tiny

import gguflow
from gguflow import ContextError, Model, ModelError, OptionError, Options, SamplerSettings
from gguflow.engine.chat import chat_prompt
from gguflow.engine.options import OptionFields
from gguflow.engine.sampling import GREEDY, SamplerFields
from gguflow.engine.session_file import SessionFileError

HOT = SamplerSettings(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, seed=7)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("m") / "m.gguf", gain=2.0, n_ctx_train=512)


@pytest.fixture(scope="module")
def model(path: Path) -> Model:
    return Model.load(path, n_threads=1)


# -- names -----------------------------------------------------------------------------------------


def test_every_name_of_the_package_is_there() -> None:
    for name in gguflow.__all__:
        assert getattr(gguflow, name) is not None
    assert {*gguflow.__all__} <= {*dir(gguflow)}
    with pytest.raises(AttributeError, match="no attribute 'Modle'"):
        gguflow.Modle  # noqa: B018


def test_what_users_see_has_types() -> None:
    """No Any, no array of anything, and a docstring, in what the package exports."""
    for owner in (getattr(gguflow, name) for name in gguflow.__all__):
        members = vars(owner).items() if isinstance(owner, type) else ()
        for name, member in members:
            f = getattr(member, "fget", None) or getattr(member, "func", None) or member
            f = getattr(f, "__func__", f)
            if not isinstance(f, FunctionType) or (name[0] == "_" and name != "__init__"):
                continue
            if not f.__module__.startswith("gguflow"):  # what a dataclass or an exception makes
                continue
            where = f"{owner.__name__}.{name}"
            assert name == "__init__" or f.__doc__, where
            hints = f.__annotations__
            assert "return" in hints, where
            assert not re.search(r"\bAny\b|\bndarray\b", " ".join(map(str, hints.values()))), where


@pytest.mark.parametrize(
    ("typed", "of"), [(SamplerFields, SamplerSettings), (OptionFields, Options)]
)
def test_keyword_arguments_are_the_fields(typed: Any, of: Any) -> None:
    assert list(typed.__annotations__) == [f.name for f in fields(of)]
    hints, own = get_type_hints(typed), get_type_hints(of)
    assert [n for n in own if hints[n] != own[n]] in ([], ["k_type", "v_type"])


# -- pieces ----------------------------------------------------------------------------------------


def test_pieces_know_their_tokens(model: Model) -> None:
    ids = list(model.new_session().generate(model.tokenizer.encode("abc"), 30, HOT))
    pieces = list(model.generate("abc", 30, HOT, stop_at_eog=False, logprobs=2))
    plain = list(model.generate("abc", 30, HOT, stop_at_eog=False))
    assert [i for p in pieces for i in p.ids] == ids == [i for p in plain for i in p.ids]
    assert "".join(pieces) == "".join(plain)
    assert all(len(p.ids) == len(p.logprobs) == len(p.top_logprobs) for p in pieces)
    assert all(not p.logprobs for p in plain)
    assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["length"]
    assert all(p.text == str(p) and type(p.text) is str for p in pieces)
    timings = pieces[-1].timings
    assert timings is not None and timings.n_generated == 30 and timings.n_runs == 29
    assert pieces[0].timings is None


def test_a_stop_string_ends_the_text_before_it(model: Model) -> None:
    whole = "".join(model.generate("abc", 60, HOT))
    stop = whole[20:22]
    for stops in (stop, [stop, "never"]):
        pieces = list(model.generate("abc", 60, HOT, stop=stops))
        assert "".join(pieces) == whole[: whole.index(stop)]
        assert pieces[-1].finish_reason == "stop"
    many = [""] * 3
    for i, piece in model.generate_many(["abc", "x", "abc"], 60, HOT, stop=stop, n_seqs=2):
        many[i] += piece
    assert many[0] == many[2] == whole[: whole.index(stop)]


def test_many_give_what_one_gives(model: Model) -> None:
    options: Any = {"logprobs": 1, "presence_penalty": 0.4, "logit_bias": {40: 1.5}}
    alone = list(model.generate("abc", 20, HOT, **options))
    together = [p for i, p in model.generate_many(["x", "abc"], 20, HOT, **options) if i == 1]
    assert together == alone
    assert [p.ids for p in together] == [p.ids for p in alone]
    flat = [[v for p in ps for v in p.logprobs] for ps in (together, alone)]
    assert flat[0] == pytest.approx(flat[1], abs=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.generate(b"abc"), TypeError, "a prompt is a str or .* not bytes"),
        (lambda m: m.generate(None), TypeError, "not NoneType"),
        (lambda m: m.generate(5), TypeError, "not int"),
        (lambda m: m.generate([1, "a"]), TypeError, "whole numbers"),
        (lambda m: m.generate([1.0]), TypeError, "whole numbers"),
        (lambda m: m.generate([]), ValueError, "no tokens"),
        (lambda m: m.generate([1000]), ValueError, "token id 1000 is outside"),
        (lambda m: m.generate("a", max_tokens=None), TypeError, "max_tokens None"),
        (lambda m: m.generate("a", max_tokens=-5), ValueError, "max_tokens -5"),
        (lambda m: m.generate("a", temperature=None), ValueError, "`temperature` None"),
        (lambda m: m.generate("a", temprature=1), TypeError, "no option is called 'temprature'"),
        (lambda m: m.generate("a", settings={}), TypeError, r"settings \{\}"),
        (lambda m: m.generate("a", stop=[""]), ValueError, "stop: .* empty"),
        (lambda m: m.generate("a", stop=[3]), TypeError, "stop"),
        (lambda m: m.generate("a", stop=3), TypeError, "stop 3: expected a string or"),
        (lambda m: m.generate("a", session=3), TypeError, "session 3"),
        (lambda m: m.generate("a", logprobs=-1), ValueError, "logprobs -1"),
        (lambda m: m.generate("a", logits_processor=1), TypeError, "logits_processor 1"),
        (lambda m: m.generate("a" * 600), ContextError, "context 512"),
        (lambda m: m.generate_many("abc"), TypeError, "prompts is a list"),
        (lambda m: m.generate_many([b"abc"]), TypeError, "not bytes"),
        (lambda m: m.astream(b"abc"), TypeError, "not bytes"),
        (lambda m: m.chat("hello"), TypeError, "messages is a list"),
        (lambda m: m.chat([{"content": "x"}]), ValueError, "message 0 has no role"),
        (lambda m: m.chat([{"role": "user"}], template=5), TypeError, "template 5"),
        (lambda m: m.chat([{"role": "user"}], tools="x"), TypeError, "tools is a list"),
        (lambda m: m.chat([{"role": "user", "content": ""}], template_variables={"messages": []}),
         ValueError, "variable 'messages'"),
        (lambda m: m.chat(["a"], tools=[{}]), ValueError, "message 0 has no role"),
        (lambda m: m.tokenizer.decode("a"), TypeError, "token ids must be .* not str"),
        (lambda m: m.embed(b"abc"), TypeError, "not bytes"),
        (lambda m: m.embed(["a"], pooling="max"), ValueError, "pooling 'max'"),
        (lambda m: m.embed([[]]), ValueError, "no tokens"),
        (lambda m: m.with_options(k_type="q3"), OptionError, "k_type 'q3': expected one of f32"),
        (lambda m: m.with_options(n_ctx=True), OptionError, "n_ctx True"),
        (lambda m: m.with_options(fuse=1), OptionError, "fuse 1: expected True or False"),
        (lambda m: m.with_options(equal_bits=1), OptionError, "equal_bits 1: expected True or"),
        (lambda m: m.with_options(equal_bits="all"), OptionError, """'all': .*, "few", "many"$"""),
        (lambda m: m.with_options(equal_bits=True), OptionError, "settled when a model is loaded"),
        (lambda m: m.with_options(overrides=("a", "cpu")), OptionError, r"overrides \('a', 'cpu'"),
        (lambda m: m.with_options(lora="a.gguf"), OptionError, "lora 'a.gguf': expected .file"),
        (lambda m: Model.load(5), TypeError, "path 5"),
        (lambda m: Model.load(options={"n_ctx": 5}), TypeError, "options {'n_ctx': 5}"),
        (lambda m: Model.load(n_context=5), TypeError, "'n_context'; there are n_ctx"),
        (lambda m: Model.load(n_gpu_layers="all"), OptionError, "n_gpu_layers 'all'"),
    ],
)  # fmt: skip
def test_what_is_refused_at_once_and_by_name(
    model: Model, call: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(model)


def test_another_models_session_is_refused(path: Path, model: Model) -> None:
    other = Model.load(path, n_threads=1)
    for call in (model.generate, lambda p, **k: model.chat([{"role": "user", "content": p}], **k)):
        with pytest.raises(ValueError, match=r"session: it is another model's"):
            call("a", session=other.new_session())
        assert list(call("a", max_tokens=1, session=model.new_session()))


def test_tools_are_told_where_a_template_shows_none(model: Model) -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    said = [{"role": "user", "content": "hi"}]
    # The tiny vocabulary has no newline.
    for first in ([], [{"role": "system", "content": "Brief"}]):
        long = model.with_options(n_ctx=2000)
        prompt = chat_prompt(long, [*first, *said], [tool], "plain", None)
        text = model.tokenizer.decode(prompt.ids)
        assert '"weather"' in text and text.endswith("User: hiAssistant:")
        assert text.startswith("BriefYou can call" if first else "You can call")
    shown = chat_prompt(model, said, [tool], "{{ tools[0].function.name }}", None)
    assert model.tokenizer.decode(shown.ids) == "weather"


def test_the_type_of_the_cache_by_name(path: Path) -> None:
    model = Model.load(path, n_threads=1, k_type="F32", v_type="bf16", n_ctx=64)
    assert (model.options.k_type.name, model.options.v_type.name) == ("f32", "bf16")
    assert "".join(model.generate("abc", 3))


def test_home_and_the_bundled_model(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(path.parent))
    assert Model.load("~/m.gguf", n_threads=1).hp.n_vocab == 96
    assert "tales" in Model.load(n_threads=1).source.path


def test_a_closed_model_says_so(path: Path) -> None:
    with Model.load(path, n_threads=1) as model:
        session = model.new_session()
        assert "".join(model.generate("abc", 3))
    for call in (lambda: model.generate("abc"), lambda: model.new_session(),
                 lambda: gguflow.Engine(model), lambda: model.embed(["a"])):  # fmt: skip
        with pytest.raises(ModelError, match="the model was closed"):
            call()
    assert not model.weights.buffers and session.tokens == []
    gc.collect()


# -- embeddings ------------------------------------------------------------------------------------


def test_embeddings(model: Model) -> None:
    from gguflow.engine.taps import tapped

    texts = ["abc", "a much longer text than the others " * 5, "x"]
    raw = model.embed(texts, normalize=False)
    last = model.embed(texts, pooling="last", normalize=False)
    for i, text in enumerate(texts):
        ids = model.tokenizer.encode(text)
        (rows,) = [out[0].copy() for out in tapped(model, ["output_norm"], [ids])]
        np.testing.assert_allclose(raw[i], rows.mean(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(last[i], rows[-1])
        np.testing.assert_array_equal(model.embed([ids], normalize=False)[0], raw[i])
    unit = model.embed(texts)
    np.testing.assert_allclose(np.linalg.norm(unit, axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(model.embed("abc")[0], unit[0])
    assert model.embed([]).shape == (0, model.hp.n_embd)


# -- asyncio ---------------------------------------------------------------------------------------


def test_streams_together_give_what_each_gives_alone(model: Model) -> None:
    prompts = ["abc", "x", "hello there", "abc", "y", "z"]
    expected = ["".join(model.generate(p, 25, HOT)) for p in prompts]

    async def text(prompt: str) -> str:
        return "".join([piece async for piece in model.astream(prompt, 25, HOT)])

    async def main() -> list[str]:
        return list(await asyncio.gather(*map(text, prompts)))

    for _ in range(2):  # event loops come and go
        assert asyncio.run(main()) == expected


def test_streams_start_no_threads_in_the_event_loop(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the loop's own that gets no memory as it starts would hold up everybody."""

    def refuse(*_: Any) -> None:
        raise AssertionError("a thread of the event loop's")

    monkeypatch.setattr("asyncio.base_events.BaseEventLoop.run_in_executor", refuse)

    async def both() -> tuple[str, str]:
        chosen = model.astream("abc", 9, HOT, choices=["one", "two"])
        said = model.achat([{"role": "user", "content": "abc"}], 9, HOT)
        return "".join([p async for p in chosen]), "".join([p async for p in said])

    one, text = asyncio.run(both())
    assert one in ("one", "two") and text


def test_leaving_a_stream_ends_its_request(model: Model) -> None:
    async def main() -> str:
        async for _ in model.astream("abc", -1, HOT):
            break
        task = asyncio.create_task(anext(aiter(model.astream("x", -1, HOT))))
        await asyncio.sleep(0)
        task.cancel()
        return "".join([piece async for piece in model.astream("abc", 9, HOT)])

    assert asyncio.run(main()) == "".join(model.generate("abc", 9, HOT))
    streams = model._streams
    assert streams is not None
    for _ in range(100):
        if not streams._engine.has_work:
            break
        time.sleep(0.05)
    assert not streams._engine.has_work and not streams._readers


def test_a_processor_that_raises_ends_its_stream_alone(model: Model) -> None:
    def fails(ids: Any, logits: np.ndarray) -> None:
        raise KeyError("no")

    async def main() -> str:
        with pytest.raises(KeyError, match="no"):
            async for _ in model.astream("abc", 9, HOT, logits_processor=fails):
                pass
        return "".join([piece async for piece in model.astream("abc", 9, HOT)])

    assert asyncio.run(main()) == "".join(model.generate("abc", 9, HOT))
    with pytest.raises(KeyError, match="no"):
        list(model.generate_many(["abc"], 9, HOT, logits_processor=fails))


# -- fork ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_forked_process_goes_on(path: Path, n_threads: int) -> None:
    model = Model.load(path, n_threads=n_threads)
    expected = "".join(model.generate("abc", 12, HOT))
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            text = "".join(model.generate("abc", 12, HOT))
            os.write(writer, text.encode() + b"|" + "".join(model.generate("x", 3)).encode())
            del model
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    deadline = time.monotonic() + 30
    while (found := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
    if found == (0, 0):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert found[1] == 0
    assert os.read(reader, 10_000).decode().split("|")[0] == expected
    os.close(reader)
    assert "".join(model.generate("abc", 12, HOT)) == expected


# -- sessions on disk ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen3next", "mamba2"])
@pytest.mark.parametrize("n", [1, 63, 64, 200])
def test_a_session_comes_back(tmp_path: Path, arch: str, n: int) -> None:
    file = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, n_ctx_train=512)
    model = Model.load(file, n_threads=1)
    prompt = [1 + i * i % 90 for i in range(n)]
    first = model.new_session()
    made = list(first.generate(prompt, 20, HOT))
    first.save(tmp_path / "s.bin")
    again = Model.load(file, n_threads=1).new_session()
    list(again.generate([9] * 70, 5))
    again.load(tmp_path / "s.bin")
    assert again.tokens == first.tokens == [*prompt, *made[:-1]]
    longer = [*prompt, *made, 5, 6, 7]
    assert list(again.generate(longer, 20, GREEDY)) == list(
        model.new_session().generate(longer, 20, GREEDY)
    )
    assert again.timings.n_prompt == 4  # the last token made, and three more
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith("s.bin")] == ["s.bin"]


@pytest.mark.parametrize("n", [1100, 2100])
def test_a_recurrent_session_can_go_back_to_the_last_copy(tmp_path: Path, n: int) -> None:
    file = write_tiny(tmp_path / "m.gguf", "qwen3next", gain=2.0, n_ctx_train=4096)
    model = Model.load(file, n_threads=1)
    prompt = [1 + i * i % 90 for i in range(n)]
    first = model.new_session()
    expected = list(first.generate(prompt, 20, GREEDY))
    first.save(tmp_path / "s.bin")
    again = Model.load(file, n_threads=1).new_session()
    again.load(tmp_path / "s.bin")
    again.rewind(n)
    assert again._kv.length(again._seq) == n // 1024 * 1024  # the rest is computed again
    assert list(again.generate(prompt, 20, GREEDY)) == expected


@pytest.mark.parametrize("arch", ["llama", "qwen3next"])
def test_a_session_of_several_devices_comes_back(tmp_path: Path, arch: str) -> None:
    file = write_tiny(tmp_path / "m.gguf", arch, gain=2.0, n_ctx_train=512)
    devices = ("simulated:0", "simulated:1")
    layers = Model.load(file, backends=("numpy",), devices=devices)
    parts = Model.load(file, backends=("numpy",), devices=devices, split_mode="tensor")
    for model in (layers, parts):
        first, again = model.new_session(), model.new_session()
        made = list(first.generate([1, 5, 8], 20, GREEDY))
        first.save(tmp_path / "s.bin")
        again.load(tmp_path / "s.bin")
        assert list(again.generate([1, 5, 8, *made], 9, GREEDY)) == list(
            first.generate([1, 5, 8, *made], 9, GREEDY)
        )
        assert again.timings.n_prompt == first.timings.n_prompt
    with pytest.raises(SessionFileError, match="another model's|in another way"):
        layers.new_session().load(tmp_path / "s.bin")


def test_session_files_that_are_refused(tmp_path: Path, path: Path, model: Model) -> None:
    session = model.new_session()
    list(session.generate([1] * 100, 3, GREEDY))
    good = tmp_path / "s.bin"
    session.save(good)
    data = good.read_bytes()
    before = session.tokens
    rng = np.random.default_rng(0)
    for i in range(60):
        at = int(rng.integers(len(data))) if i else 0
        bad = data[:at] if i % 2 else data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        good.write_bytes(bad)
        with pytest.raises(SessionFileError, match=r"s\.bin: (not a session|.*damaged)"):
            session.load(good)
    good.write_bytes(data)
    assert session.tokens == before
    other = Model.load(write_tiny(tmp_path / "o.gguf", seed=1, gain=2.0, n_ctx_train=512))
    with pytest.raises(SessionFileError, match="another model's"):
        other.new_session().load(good)
    with pytest.raises(SessionFileError, match="f16 and f16, this model's f32"):
        model.with_options(k_type="f32").new_session().load(good)
    with pytest.raises(SessionFileError, match="102 tokens, the context holds 64"):
        model.with_options(n_ctx=64).new_session().load(good)
    with pytest.raises(FileNotFoundError):
        session.load(tmp_path / "none.bin")
    with pytest.raises(OSError, match="none"):
        session.save(tmp_path / "none" / "s.bin")


def test_an_interrupted_save_leaves_the_old_file(
    tmp_path: Path, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = model.new_session()
    list(session.generate([1] * 100, 3, GREEDY))
    session.save(tmp_path / "s.bin")
    data = (tmp_path / "s.bin").read_bytes()

    def fails(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gguflow.engine.session_file.os.fsync", fails)
    with pytest.raises(KeyboardInterrupt):
        session.save(tmp_path / "s.bin")
    assert [p.name for p in tmp_path.iterdir()] == ["s.bin"]
    assert (tmp_path / "s.bin").read_bytes() == data
