"""The engine names fields, the command line flags."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from cli_helpers import ENV

from gguflow.cli import generate, perplexity
from gguflow.cli.errors import FLAGS, message
from gguflow.cli.parser import Parser
from gguflow.engine.model import Model
from gguflow.engine.options import OptionError, Options
from gguflow.engine.sampling import SamplerError, SamplerSettings
from gguflow.engine.serving.speculation import Speculation

ROOT = Path(__file__).parents[2]


def test_every_flag_is_one_and_every_field_too() -> None:
    known = set()
    for module in (generate, perplexity):
        parser = Parser("gguflow", "")
        module.add_arguments(parser)
        known |= set(parser._option_string_actions)
    assert set(FLAGS.values()) <= known
    owners = (Options, SamplerSettings, Speculation)
    assert FLAGS.keys() <= {f.name for t in owners for f in fields(t)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("`sparse_threshold` is for", "--sparse-threshold is for"),
        ("they need `sparse=predict` or exact", "they need --sparse predict or exact"),
        ("use `predictor=FILE` or", "use --predictor FILE or"),
        ("run `gguflow sparse stats` first", "run `gguflow sparse stats` first"),
        ("`split`s and `splits`", "--splits and `splits`"),
    ],
)
def test_fields_become_flags(text: str, said: str) -> None:
    assert message(OptionError(text)) == said


def test_what_the_library_says_of_a_setting() -> None:
    with pytest.raises(SamplerError, match="^`top_p` 2.0: out of range") as e:
        SamplerSettings(top_p=2.0)
    assert message(e.value).startswith("--top-p 2.0: out of range")


def strings(path: Path) -> Iterator[str]:
    """The text of a module but for docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_the_library_names_no_flag() -> None:
    flag = re.compile(r"(?<![\w-])(--[a-z][a-z-]+|-(c|t|b|tb|ub|ngl|ot))(?![\w-])")
    for folder in ("engine", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name == "__main__.py":  # a command of its own
                continue
            for text in strings(path):
                assert not flag.search(text), f"{path.relative_to(ROOT)}: {text!r}"


# -- llama.cpp's options ---------------------------------------------------------------------------

SAME = ("-n", "6", "-p", "Hello", "--no-perf", "-t", "1")


def test_options_that_change_nothing_are_named(call, tiny_model: str) -> None:
    _, plain, _ = call("generate", "-m", tiny_model, *SAME, "--temp", "0")
    flags = ("-fa", "on", "-e", "--jinja", "--no-context-shift", "--no-mmap", "--numa", "isolate")
    code, out, err = call("generate", "-m", tiny_model, *SAME, "--temperature", "0", *flags)
    assert (code, out) == (0, plain)
    notes = [line for line in err.splitlines() if "changes nothing" in line]
    assert len(notes) == 2 and notes[0].startswith("note: --no-mmap") and "--numa" in notes[1]
    code, out, err = call("generate", "-m", tiny_model, *SAME, "--temp", "0", "-q", *flags)
    assert (code, out, err) == (0, plain, "")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--lora-scaled a.gguf", "--lora-scaled: a.gguf: expected FILE:SCALE"),
        ("-mu ftp://x/a.gguf", "expected an address, https://HOST/FILE.gguf"),
        ("-mu http://x/a.gguf -hf a/b", "-mu/--model-url and -hf/--hf-repo exclude each other"),
        ("-otd a=cpu", "-otd: only with -md"),
        ("--spec-type best", "--spec-type: best: expected some of none, "),
        ("--log-file /", "--log-file /: "),
        ("--devices foo", "no backend called 'foo'; there are cpu, "),
        ("-r=", "-r/--reverse-prompt: expected a text"),
        ("--device none", "expected the number of a GPU"),
        ("--context-shift -j {}", "-j: not with --context-shift"),
        ("-hff x.gguf", "-hff/--hf-file: only with -hf"),
        ("--json-schema x", "-j: no JSON"),
        ("--grammar-file none", "--grammar-file none: No such file"),
        ("--yarn-ext-factor 0", "--yarn-ext-factor: YaRN mixes as its authors have it"),
        ("-sys x", "-sys: `gguflow chat`"),
        ("-st -no-cnv", "-st: not with -no-cnv"),
        ("--adaptive-target 0.5", "--adaptive-target: this sampler"),
        ("--samplers top_k;infill", "--samplers 'infill'"),
        ("--sampler-seq kz", "no sampler is called 'z'"),
        ("--xtc-probability 2", "--xtc-probability 2.0: out of range"),
        ("--mirostat 5", "--mirostat: 5"),
        ("-l 5", "-l/--logit-bias: 5: expected TOKEN_ID"),
        ("-l 5000+1", "-l 5000: the vocabulary has 96 tokens"),
        ("--prompt-cache /none/x", "--prompt-cache /none/x: cannot be written"),
    ],
)
def test_options_that_are_refused(call, tiny_model: str, flags: str, message: str) -> None:
    code, out, err = call("generate", "-m", tiny_model, *SAME, *flags.split())
    assert (code, out) == (2, "") and message in err


@pytest.mark.parametrize(
    ("flags", "settings"),
    [
        ("--presence-penalty 0.5 --frequency-penalty 0.25", {"presence_penalty": 0.5,
                                                             "frequency_penalty": 0.25}),
        ("--dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n -1",
         {"dry_multiplier": 0.8, "dry_base": 2.0, "dry_allowed_length": 3,
          "dry_penalty_last_n": -1}),
        ("--dry-multiplier 1 --dry-sequence-breaker none", {"dry_multiplier": 1.0,
                                                            "dry_sequence_breakers": ()}),
        ("--typical 0.9 --top-nsigma 2", {"typical_p": 0.9, "top_n_sigma": 2.0}),
        ("--xtc-probability 0.5 --xtc-threshold 0.2", {"xtc_probability": 0.5,
                                                       "xtc_threshold": 0.2}),
        ("--dynatemp-range 0.5 --dynatemp-exp 2", {"dynatemp_range": 0.5,
                                                   "dynatemp_exponent": 2.0}),
        ("--mirostat 2 --mirostat-lr 0.2 --mirostat-ent 3", {"mirostat": 2, "mirostat_eta": 0.2,
                                                             "mirostat_tau": 3.0}),
        ("--samplers top_k;temperature", {"samplers": ("top_k", "temperature")}),
        ("--sampler-seq tk", {"samplers": ("temperature", "top_k")}),
        ("--top-k -1 --repeat-last-n -1 --repeat-penalty 1.2", {"top_k": 0, "repeat_last_n": -1,
                                                                "repeat_penalty": 1.2}),
    ],
)  # fmt: skip
def test_samplers_have_their_settings(
    call, tiny_model: str, flags: str, settings: dict[str, object]
) -> None:
    code, out, _ = call("generate", "-m", tiny_model, *SAME, "-s", "3", *flags.split())
    chosen = SamplerSettings(seed=3, **settings)  # type: ignore[arg-type]
    model = Model.load(tiny_model, n_threads=1)
    ids = model.tokenizer.encode("Hello", parse_special=True)
    assert code == 0
    assert out.removesuffix("\n") == "Hello" + "".join(model.generate(ids, 6, chosen))


def test_stop_texts_and_what_a_pipe_holds(run, tiny_model: str) -> None:
    flags = ("-m", tiny_model, "-n", "20", "--temp", "0", "--no-perf", "-t", "1")
    whole = run("generate", *flags, "-p", "Hello").stdout.removesuffix("\n")
    stop = whole[len("Hello") + 6 : len("Hello") + 8]
    cut = run("generate", *flags, "-p", "Hello", "-r", "never", "-r", stop).stdout
    assert cut.removesuffix("\n") == "Hello" + whole[5:].partition(stop)[0]
    assert run("generate", *flags, input="\ufeffHello\n").stdout.removesuffix("\n") == whole
    long = run("generate", *flags, input="x" * 3_000_000)
    assert long.returncode == 4 and "3000000 characters" in long.stderr


def test_a_prompt_cache(run, tiny_model: str, tmp_path: Path) -> None:
    flags = ("-m", tiny_model, "-n", "9", "--temp", "0", "-t", "1", "-p", "Hello there",
             "--prompt-cache", str(tmp_path / "c.bin"))  # fmt: skip
    first = run("generate", *flags, "--prompt-cache-ro")
    assert not (tmp_path / "c.bin").exists()
    assert run("generate", *flags).stdout == first.stdout
    again = run("generate", *flags)
    assert again.stdout == first.stdout and "tokens are known already" in again.stderr
    assert "/     1 tokens" in again.stderr
    (tmp_path / "c.bin").write_bytes(b"x")
    assert run("generate", *flags).returncode == 3


def test_global_options_and_help(call) -> None:
    code, out, _ = call("help", "generate")
    assert code == 0 and out.startswith("usage: gguflow generate")
    assert call("--debug", "tokenize", "A")[0] == 0
    code, out, err = call("-q", "list")
    assert code == 0 and err == ""
    for limit in (["--max-memory", "0"], ["--max-memory=0"]):
        code, _, err = call("-q", *limit, "generate", "-p", "A")
        assert code == 2 and "--max-memory: 0: expected GiB" in err
    for words in (["-q"], ["--max-memory", "2"], ["--max-memory"]):
        code, _, err = call(*words)
        assert code == 2 and f"{words[-1]}: and no command" in err
    assert call("help", "sparse", "solve")[1].startswith("usage: gguflow sparse solve")


def test_a_rule_of_placement_that_fits_nothing_is_named(call, tiny_model: str) -> None:
    code, _, err = call("generate", "-m", tiny_model, *SAME, "-ot", "nosuch=cpu", "-ot", "ffn=cpu")
    assert code == 0 and "-ot nosuch=cpu: no tensor or op has such a name" in err
    assert "ffn=cpu" not in err


def test_a_wrong_variable_is_named_first(call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGUFLOW_CPU_SPIN", "x")
    code, out, err = call("tokenize", "A")
    assert (code, out) == (2, "") and "GGUFLOW_CPU_SPIN=x" in err


def test_of_two_processes_one_pins(tmp_path: Path) -> None:
    code = "from gguflow.engine.backends.cpu.pinning import may_pin\n"
    code += "import sys; print(may_pin(), flush=True); sys.stdin.read()"
    env = {**ENV, "TMPDIR": str(tmp_path)}
    first, second = (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env=env,
                         stdout=subprocess.PIPE, text=True) for _ in range(2)
    )  # fmt: skip
    assert first.stdout and second.stdout
    assert {first.stdout.readline(), second.stdout.readline()} == {"True\n", "False\n"}
    for process in (first, second):
        process.communicate("")


def test_grammars_and_schemas(call, run, tiny_model: str) -> None:
    pytest.importorskip("llguidance")
    flags = ("-m", tiny_model, "-p", "A", "-n", "9", "--temp", "0", "--no-perf", "-t", "1",
             "--no-display-prompt")  # fmt: skip
    done = run("generate", *flags, "--grammar", 'root ::= "x" [0-9] [0-9]')
    assert done.returncode == 0 and re.fullmatch(r"x\d\d\n", done.stdout), done.stderr
    done = run("generate", *flags, "-j", '{"enum": ["aa", "bb"]}')
    assert done.stdout.strip() in ('"aa"', '"bb"')
    done = run("chat", *flags[:2], *flags[4:-1], "--grammar", 'root ::= "x" [0-9]', input="A\nB\n")
    assert re.fullmatch(r"(x\d\n){2}", done.stdout), done.stderr
    # A prompt that opens the thoughts: what follows them has the form.
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>"
    thinks = ("--chat-template", template, "--reasoning-budget", "3", "-n", "60")
    done = run("chat", *thinks, *flags[6:-1], "-j", '{"enum": [7]}', input="A\n")
    assert done.stdout.endswith("7\n") and done.returncode == 0, done.stderr
    code, out, err = call("generate", *flags, "--grammar", "root ::= (")
    assert (code, out) == (2, "") and "--grammar: no GBNF grammar" in err
    for command in ("generate", "chat"):
        code, out, err = call(command, *flags[:2], "-p", "A", "-j", "true", "--ignore-eos")
        assert (code, out) == (2, "") and "no --ignore-eos" in err
