"""Pre-tokenizers by the name a file gives in `tokenizer.ggml.pre`.

Before merging, BPE splits text into words. Each model family publishes its rules as a list of
regular expressions; each in turn splits the pieces that the one before it left, matches and gaps
alike. The patterns are those of the models' published `tokenizer.json` files, in Oniguruma syntax.
"""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers

from gguflow.engine.dataclass import dataclass

from .long_numbers import Grouping

# Contractions in any case, ASCII only: (?i:'s) would also match U+017F, the long s.
_CONTRACTION = r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
_NEWLINES_AND_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k(number: str, contraction: str = _CONTRACTION + "|") -> str:
    """The pattern of OpenAI's cl100k and its many descendants; they differ in the digits."""
    return (
        rf"{contraction}[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{number}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_NEWLINES_AND_SPACES}"
    )


def _o200k(number: str, suffix: str = "") -> str:
    """The pattern of OpenAI's o200k: words also break where lower case turns to upper case."""
    lead = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (
        rf"{lead}{upper}*{lower}+{suffix}|{lead}{upper}+{lower}*{suffix}|{number}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_NEWLINES_AND_SPACES}"
    )


_LLAMA3 = _cl100k(r"\p{N}{1,3}")
_QWEN2 = _cl100k(r"\p{N}")
_O200K = _o200k(r"\p{N}{1,3}", rf"(?:{_CONTRACTION})?")
# Symbols before letters, words with their marks, runs of symbols (DeepSeek V3 and its kin).
_SYMBOLS = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+"
)
_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_LINES = r"[^\n]+|\n+"
# Numbers in groups of three that end where the number does.
_FROM_THE_RIGHT = r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))"
_ASIAN = (
    r"[一-鿿㐀-䶿豈-\x{faff}぀-ゟ゠-ヿ\x{ff65}-\x{ff9f}⼀-\x{2fdf}\x{0e40}-\x{0e7f}"
    r"\x{0e80}-\x{0eff}\x{1780}-\x{17ff}\x{1000}-\x{109f}\x{aa60}-\x{aa7f}\x{a9e0}-\x{a9ff}"
    r"가-\x{d7af}\x{1100}-\x{11ff}]+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN = r"[一-龥ࠀ-一가-퟿]+"
# Cased letters as of one Unicode version, less some: ranges of code points in hexadecimal.
_DEEPSEEK_SPANS = (
    "41-5a 61-7a b5 c0-d6 d8-f6 f8-1ba 1bc-1bf 1c4-293 295-2af 370-373 376-377 37b-37d 37f "
    "386 388-38a 38c 38e-3a1 3a3-3f5 3f7-481 48a-52f 531-556 10a0-10c5 13a0-13f5 13f8-13fd "
    "1c90-1cba 1cbd-1cbf 1d00-1d2b 1d6b-1d77 1d79-1d9a 1e00-1f15 1f18-1f1d 1f20-1f45 "
    "1f48-1f4d 1f50-1f57 1f59 1f5b 1f5d 1f5f-1f7d 1f80-1fb4 1fb6-1fbc 1fbe 1fc2-1fc4 "
    "1fc6-1fcc 1fd0-1fd3 1fd6-1fdb 1fe0-1fec 1ff2-1ff4 1ff6-1ffc 2102 2107 210a-2113 2115 "
    "2119-211d 2124 2126 2128 212a-212d 212f-2134 2139 213c-213f 2145-2149 214e 2183-2184 "
    "2c00-2c7b 2c7e-2ce4 2ceb-2cee 2cf2-2cf3 a640-a66d a680-a69b a722-a76f a771-a787 "
    "a78b-a78e ab70-abbf fb00-fb06 fb13-fb17 ff21-ff3a ff41-ff5a 10400-1044f 104b0-104d3 "
    "104d8-104fb 10c80-10cb2 10cc0-10cf2 118a0-118df 1e900-1e943"
)
_DEEPSEEK_LETTERS = "".join(
    "-".join(rf"\x{{{end}}}" for end in span.split("-")) for span in _DEEPSEEK_SPANS.split()
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a BPE model cuts text into words.

    patterns: applied in order. ignore_merges: a word that is a token is taken whole, whatever the
    merges say. add_bos: default of `tokenizer.ggml.add_bos_token`. raw: merges are of characters
    and not of bytes, spaces are written as U+2581, and what has no token becomes byte tokens.
    grouping: of digits from the right, where the patterns group them so. joins_lines: whether a
    word may go on behind the end of a line.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False
    raw: bool = False
    grouping: Grouping | None = None
    joins_lines: bool = False

    def splitter(self) -> pre_tokenizers.PreTokenizer:
        """The patterns as a splitter of text into words."""
        return pre_tokenizers.Sequence(
            [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        )


_FAMILIES: list[tuple[tuple[str, ...], PreTokenizer]] = [
    (
        ("default",),
        PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    ),
    (
        (
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ),
        PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    ),
    (("dbrx", "smaug-bpe", "chatglm-bpe"), PreTokenizer((_LLAMA3,))),
    (("glm4", "glm5"), PreTokenizer((_LLAMA3,), ignore_merges=True)),
    (
        (
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "granite-docling",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v2-code",
            "jina-v1-en",
            "roberta-bpe",
        ),
        PreTokenizer((_GPT2,)),
    ),
    (
        (
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ),
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    (("falcon",), PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    (
        (
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "megrez",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ),
        PreTokenizer((_QWEN2,)),
    ),
    (
        ("qwen35",),
        PreTokenizer(
            (
                _QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(
                    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
                ),
            )
        ),
    ),
    (
        ("deepseek-llm",),
        PreTokenizer(
            (
                r"[\r\n]",
                rf"\s?[{_DEEPSEEK_LETTERS}]+",
                r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
                r"\s+$",
                _HAN,
                r"\p{N}+",
            )
        ),
    ),
    (
        ("deepseek-coder",),
        PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}")),
    ),
    (
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        PreTokenizer(
            (
                r"\p{N}{1,3}",
                _KANA,
                rf"{_SYMBOLS}[\r\n]*|{_NEWLINES_AND_SPACES}",
            )
        ),
    ),
    (("tekken",), PreTokenizer((_o200k(r"\p{N}"),), ignore_merges=True, add_bos=True)),
    (("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), PreTokenizer((_O200K,))),
    (
        ("tiny_aya", "cohere2moe"),
        PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K), grouping=Grouping("Nd", bounded=True)),
    ),
    (("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    (("viking",), PreTokenizer((_BLOOM, r"\p{N}"))),
    (
        ("superbpe",),
        PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"), grouping=Grouping("Nd"), joins_lines=True),
    ),
    (
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        PreTokenizer((_QWEN2.replace(r"\s*[\r\n]+", r"\s*[\r\n]"),)),
    ),
    (
        ("seed-coder",),
        PreTokenizer((_QWEN2.replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),)),
    ),
    (
        ("minicpm5",),
        PreTokenizer((r"\p{N}{1,3}", _cl100k(r"\p{N}+")), ignore_merges=True),
    ),
    (
        ("spark2_5",),
        PreTokenizer((r"\p{N}{1,3}", _KANA, rf"{_SYMBOLS}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}")),
    ),
    (
        ("afmoe",),
        PreTokenizer(
            (_FROM_THE_RIGHT, _ASIAN, rf"{_SYMBOLS}[\r\n]*|{_NEWLINES_AND_SPACES}"),
            grouping=Grouping("N"),
        ),
    ),
    (
        ("youtu",),
        PreTokenizer(
            (
                r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|" + _KANA,
                _o200k(r"\p{N}", rf"(?:{_CONTRACTION})?"),
            ),
            ignore_merges=True,
        ),
    ),
    (("granite-embed-multi-97m",), PreTokenizer((_O200K,), ignore_merges=True)),
    (
        ("jais-2",),
        PreTokenizer(
            (
                _LLAMA3.replace(
                    r"|\s+(?!\S)|\s+",
                    "".join(rf"|\s{{{2**n}}}(?!\S)" for n in range(9, 1, -1))
                    + r"|\s{1,2}(?!\S)|\s",
                ),
            )
        ),
    ),
    (
        ("exaone-moe",),
        PreTokenizer(
            (
                rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+"
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        ("chameleon",),
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            )
        ),
    ),
    (("laguna",), PreTokenizer((_LINES, _QWEN2))),
    (
        ("kimi-k2",),
        PreTokenizer(
            (
                r"\p{Han}+",
                _o200k(r"\p{N}{1,3}", rf"(?:{_CONTRACTION})?")
                .replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]")
                .replace(r"[\r\n/]*", r"[\r\n]*"),
            )
        ),
    ),
    # Words are not cut; a token holds no line break beside other text.
    (("gemma4", "granite-embed-multi-311m", "sarvam-moe"), PreTokenizer((_LINES,), raw=True)),
    (("whitespace",), PreTokenizer((r"\S+",), raw=True)),
    (("ufakzeka",), PreTokenizer((_cl100k(r"\p{N}", contraction=""),))),
]

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: rules for names, rules in _FAMILIES for name in names
}
