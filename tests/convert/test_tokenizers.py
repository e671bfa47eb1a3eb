"""Unigram and WordPiece tokenizers of checkpoints: the same tokens as the tokenizers library and
sentencepiece give."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

from gguflow.engine.convert import ConvertError, apart, convert
from gguflow.engine.convert.checkpoint import Checkpoint
from gguflow.engine.convert.sentencepiece_file import rules_of
from gguflow.engine.convert.vocabulary import vocabulary
from gguflow.engine.gguf import GgufFile
from gguflow.models.tokenizer import Tokenizer

DOCS = Path(__file__).resolve().parents[2] / "docs"
LINES = [line for f in ("models.md", "serving.md") for line in (DOCS / f).read_text().splitlines()]
TEXTS = [
    "", " ", "The cat sat on the mat.", "  two  spaces and a tail  ", "Layers without attention",
    "naïve ＡＢＣ ½ ﬁnal", "keys\nand\tvalues", "猫 zebra\u00a0quux ☃☃ Ωmega", "KV CACHE, 16-bit!",
    "a" * 130, "the and of 12345 tokens",
]  # fmt: skip


def trained(rule: str = "nmt_nfkc", kind: str = "unigram", **options: Any) -> bytes:
    out = io.BytesIO()
    options = {"vocab_size": 500, "hard_vocab_limit": kind == "bpe"} | options
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in LINES if line]), model_writer=out, model_type=kind,
        normalization_rule_name=rule, minloglevel=2, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        **options,
    )  # fmt: skip
    return out.getvalue()


def piece_list(model: bytes) -> list[tuple[str, float]]:
    p = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [(p.IdToPiece(i), p.GetScore(i)) for i in range(p.vocab_size())]


@pytest.fixture
def source(checkpoint: Callable[[str], Path]) -> Callable[..., Checkpoint]:
    """A checkpoint with a tokenizer.json."""

    def make(tokenizer: tokenizers.Tokenizer | None, said: dict[str, Any], n: int) -> Checkpoint:
        path = checkpoint("llama")
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"vocab_size": n}))
        (path / "tokenizer_config.json").write_text(json.dumps(said))
        (path / "tokenizer.json").unlink()
        if tokenizer is not None:
            tokenizer.save(str(path / "tokenizer.json"))
        return Checkpoint(path)

    return make


def metaspace(scheme: str = "always", split: bool = True) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)  # type: ignore[arg-type]


def several(pattern: str, content: str) -> normalizers.Normalizer:
    return normalizers.Replace(tokenizers.Regex(pattern), content)


def t5(model: bytes, charsmap: bytes) -> tokenizers.Tokenizer:
    """As transformers converts T5's."""
    made = tokenizers.Tokenizer(models.Unigram(piece_list(model), unk_id=2))
    made.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True),
         several(" {2,}", "▁")]
    )  # fmt: skip
    made.pre_tokenizer = metaspace()
    made.add_special_tokens(["<extra_id_0>", "</s>", "<pad>"])
    end = made.token_to_id("</s>")
    made.post_processor = processors.TemplateProcessing(
        single=["$A", "</s>"], special_tokens=[("</s>", end)]
    )
    return made


def xlm_r(model: bytes, charsmap: bytes) -> tokenizers.Tokenizer:
    """As transformers converts XLM-R's: <s> and </s> around every text."""
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *piece_list(model)[3:]]
    made = tokenizers.Tokenizer(models.Unigram(pieces, unk_id=3))
    made.normalizer = normalizers.Sequence(
        [normalizers.Precompiled(charsmap), several(" {2,}", " ")]
    )
    made.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace()])
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def by_name(model: bytes, charsmap: bytes) -> tokenizers.Tokenizer:
    """The tokenizers library's own steps instead of a compiled map."""
    made = tokenizers.Tokenizer(models.Unigram(piece_list(model), unk_id=2))
    made.normalizer = normalizers.Sequence(
        [
            normalizers.Nmt(),
            normalizers.NFKC(),
            normalizers.Strip(left=False),
            several(" {2,}", " "),
        ]
    )
    made.pre_tokenizer = metaspace()
    made.add_special_tokens(["<mask>"])
    return made


def llm_jp(model: bytes, charsmap: bytes) -> tokenizers.Tokenizer:
    """Bytes for what has no token, spaces as they are, nothing normalized."""
    made = tokenizers.Tokenizer(models.Unigram(piece_list(model), unk_id=2, byte_fallback=True))
    made.pre_tokenizer = metaspace("never", split=False)
    made.add_tokens(["<user>"])
    return made


@pytest.mark.parametrize(
    ("make", "rule", "prefix", "merges", "said"),
    [
        (t5, "nmt_nfkc", True, True, {"eos_token": "</s>", "pad_token": "<pad>"}),
        (t5, "nmt_nfkc_cf", True, True, {"eos_token": "</s>", "pad_token": "<pad>"}),
        (xlm_r, "nmt_nfkc", True, True, {"cls_token": "<s>", "sep_token": "</s>"}),
        (by_name, "nmt_nfkc", True, True, {"eos_token": "</s>"}),
        (llm_jp, "identity", False, False, {"eos_token": "</s>", "tokenizer_class": "Llama"}),
    ],
)
def test_unigram(
    source: Callable[..., Checkpoint], make: Callable[..., tokenizers.Tokenizer], rule: str,
    prefix: bool, merges: bool, said: dict[str, Any], tmp_path: Path,
) -> None:  # fmt: skip
    model = trained(rule, byte_fallback=make is llm_jp)
    (tmp_path / "m").write_bytes(model)
    theirs = make(model, rules_of(tmp_path / "m").charsmap)
    keys = vocabulary(source(theirs, said, theirs.get_vocab_size() + 9))
    assert keys["tokenizer.ggml.model"] == "t5"
    assert keys["tokenizer.ggml.add_space_prefix"] is prefix
    assert keys["tokenizer.ggml.remove_extra_whitespaces"] is merges
    assert ("tokenizer.ggml.precompiled_charsmap" in keys) == (rule != "identity")
    ours = Tokenizer.from_metadata(keys)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids, text
    special = next(t for t in ("<extra_id_0>", "<mask>", "<user>") if theirs.token_to_id(t))
    with_special = ours.encode(f"{special}", add_special=False, parse_special=True)
    assert with_special == [theirs.token_to_id(special)]


def test_a_file_that_is_whole(source: Callable[..., Checkpoint], tmp_path: Path) -> None:
    model = trained("nmt_nfkc", vocab_size=280)
    (tmp_path / "m").write_bytes(model)
    theirs = t5(model, rules_of(tmp_path / "m").charsmap)
    convert(source(theirs, {"eos_token": "</s>"}, 300).path, tmp_path / "m.gguf")
    ours = Tokenizer.load(tmp_path / "m.gguf")
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids, text
    with GgufFile.open(tmp_path / "m.gguf") as f:
        assert f.metadata["tokenizer.ggml.add_eos_token"] is True
        assert f.metadata["tokenizer.ggml.add_bos_token"] is False
        assert f.metadata["tokenizer.ggml.eos_token_id"] == 1
        assert f.metadata["tokenizer.ggml.unknown_token_id"] == 2


def test_unigram_that_gguf_cannot_say(source: Callable[..., Checkpoint], tmp_path: Path) -> None:
    theirs = llm_jp(trained("identity"), b"")
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), metaspace("never", split=False)]
    )
    with pytest.raises(ConvertError, match="tokenizer.json: GGUF has no keys for its normalizer"):
        vocabulary(source(theirs, {}, 512))


@pytest.mark.parametrize(
    "vocab", [None, [], [["a"]], [["a", "b"]], [["a", float("nan")]], [[1, 2]]]
)
def test_unigram_lists_that_are_broken(source: Callable[..., Checkpoint], vocab: Any) -> None:
    found = source(llm_jp(trained("identity"), b""), {}, 512)
    path = found.path / "tokenizer.json"
    values = json.loads(path.read_text())
    values["model"]["vocab"] = vocab
    path.write_text(json.dumps(values))
    with pytest.raises(ConvertError, match="expected a text|no vocabulary of a unigram"):
        vocabulary(found)


def test_a_panic_of_the_library_is_one_line(
    source: Callable[..., Checkpoint], capfd: pytest.CaptureFixture[str]
) -> None:
    found = source(llm_jp(trained("identity"), b""), {}, 512)
    path = found.path / "tokenizer.json"
    values = json.loads(path.read_text())
    damaged = base64.b64encode(b"\xff" * 4 + bytes(64)).decode()
    values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": damaged}
    path.write_text(json.dumps(values))
    capfd.readouterr()
    with pytest.raises(ConvertError, match="tokenizer.json: "):
        vocabulary(found)
    assert capfd.readouterr().err == ""


def test_an_end_of_the_library_s_process_is_an_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "alone.py"
    script.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(apart, "_SCRIPT", script)
    with pytest.raises(ConvertError, match="here: the tokenizers library ended with "):
        apart.tokenized("here", "{}", ["a"])


@pytest.mark.parametrize("token", [1, None, "x", [], True])
def test_added_tokens_that_are_none(source: Callable[..., Checkpoint], token: Any) -> None:
    found = source(bert(True, None), {}, 64)
    path = found.path / "tokenizer.json"
    values = json.loads(path.read_text())
    values["added_tokens"][1] = token
    path.write_text(json.dumps(values))
    with pytest.raises(ConvertError, match="added_tokens are no list of tokens"):
        vocabulary(found)


def test_charsmaps_that_are_broken(source: Callable[..., Checkpoint]) -> None:
    found = source(llm_jp(trained("identity"), b""), {}, 512)
    path = found.path / "tokenizer.json"
    values = json.loads(path.read_text())
    for broken in ("not base64!", base64.b64encode(b"\xff" * 9).decode()):
        values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": broken}
        path.write_text(json.dumps(values))
        with pytest.raises(ConvertError, match="tokenizer.json"):
            vocabulary(found)


@pytest.mark.parametrize("name", ["tokenizer.model", "spiece.model"])
@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"byte_fallback": True},
                                     {"remove_extra_whitespaces": False}])  # fmt: skip
def test_sentencepiece_unigram(
    source: Callable[..., Checkpoint], name: str, rule: str, options: dict[str, bool]
) -> None:
    model = trained(rule, **options)
    found = source(None, {"eos_token": "</s>", "tokenizer_class": "T5Tokenizer"}, 600)
    (found.path / name).write_bytes(model)
    keys = vocabulary(found)
    assert keys["tokenizer.ggml.model"] == "t5"
    ours = Tokenizer.from_metadata(keys)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in TEXTS:
        assert ours.encode(text) == [*theirs.EncodeAsIds(text), 1], text


def test_sentencepiece_of_merges_stays_what_it_was(source: Callable[..., Checkpoint]) -> None:
    found = source(None, {}, 600)
    (found.path / "tokenizer.model").write_bytes(trained("identity", "bpe"))
    assert vocabulary(found)["tokenizer.ggml.model"] == "llama"


def test_spaces_behind_words_are_refused(source: Callable[..., Checkpoint]) -> None:
    found = source(None, {}, 600)
    model = trained("identity", treat_whitespace_as_suffix=True)
    (found.path / "tokenizer.model").write_bytes(model)
    with pytest.raises(ConvertError, match="tokenizer.model: spaces that are no U\\+2581"):
        vocabulary(found)


WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "sat", "on", "mat", ".",
         ",", "!", "a", "##a", "naive", "naïve", "final", "The", "Layers", "layers", "without",
         "猫", "cached", "KV", "kv", "-", "16", "bit", "of", "##ed", "$", "½"]  # fmt: skip


def bert(lower: bool, accents: bool | None) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(
        models.WordPiece({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.normalizer = normalizers.BertNormalizer(lowercase=lower, strip_accents=accents)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(WORDS[:5])
    made.add_tokens(["qqword"])
    made.post_processor = processors.TemplateProcessing(
        single=["[CLS]", "$A", "[SEP]"], special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made


@pytest.mark.parametrize(("lower", "accents"), [(True, None), (False, None), (True, False)])
def test_wordpiece(source: Callable[..., Checkpoint], lower: bool, accents: bool | None) -> None:
    theirs = bert(lower, accents)
    said = {"cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    keys = vocabulary(source(theirs, said, 64))
    assert keys["tokenizer.ggml.model"] == "bert"
    assert keys["tokenizer.ggml.tokens"][5:8] == ["▁the", "▁cat", "s"]
    wanted = {"bos": 2, "eos": 3, "seperator": 3, "mask": 4, "unknown": 1}
    assert {k: keys[f"tokenizer.ggml.{k}_token_id"] for k in wanted} == wanted
    ours = Tokenizer.from_metadata(keys)
    for text in (*TEXTS, "naïve Naïve cats", "a qqword b", "a" * 100, "a" * 101):
        assert ours.encode(text) == theirs.encode(text).ids, text
    assert ours.encode("the [MASK]", parse_special=True) == theirs.encode("the [MASK]").ids


def test_wordpiece_that_is_not_berts(source: Callable[..., Checkpoint]) -> None:
    theirs = bert(True, None)
    theirs.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with pytest.raises(ConvertError, match="tokenizer.json: its normalizer and pre-tokenizer are"):
        vocabulary(source(theirs, {}, 64))


def test_frames_of_other_tokens_are_refused(source: Callable[..., Checkpoint]) -> None:
    theirs = bert(True, None)
    theirs.post_processor = processors.BertProcessing(("[MASK]", 4), ("[CLS]", 2))
    with pytest.raises(ConvertError, match="post_processor puts"):
        vocabulary(source(theirs, {"cls_token": "[CLS]", "sep_token": "[SEP]"}, 64))
