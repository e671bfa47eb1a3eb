"""Pre-tokenizers by the name a file gives in `tokenizer.ggml.pre`.

Before merging, BPE splits text into words. Each model family publishes its rules as a list of
regular expressions; each in turn splits the pieces that the one before it left, matches and gaps
alike. The patterns are those of the models' published `tokenizer.json` files, in Oniguruma syntax.
"""

from __future__ import annotations

from dataclasses import dataclass

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
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"
_HAN = r"[一-龥ࠀ-一가-퟿]+"
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅ"
    "Ὀ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯ"
    "ꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)


@dataclass(frozen=True)
class PreTokenizer:
    """How a BPE model cuts text into words.

    patterns: applied in order. ignore_merges: a word that is a token is taken whole, whatever the
    merges say. add_bos: default of `tokenizer.ggml.add_bos_token`.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False


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
        PreTokenizer((_QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+"),)),
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
                r"[一-龥぀-ゟ゠-ヿ]+",
                r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_NEWLINES_AND_SPACES}",
            )
        ),
    ),
    (("tekken",), PreTokenizer((_o200k(r"\p{N}"),), ignore_merges=True, add_bos=True)),
    (("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), PreTokenizer((_O200K,))),
    (
        ("tiny_aya", "cohere2moe"),
        PreTokenizer((r"\d{1,3}(?=(?:\d{3})*\b)", _O200K)),
    ),
    (("poro-chat", "bloom", "gpt3-finnish"), PreTokenizer((_BLOOM,))),
    (("viking",), PreTokenizer((_BLOOM, r"\p{N}"))),
    (("superbpe",), PreTokenizer((r"\p{N}+", r"(?=(\d{3})+(?!\d))"))),
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
    (("ufakzeka",), PreTokenizer((_cl100k(r"\p{N}", contraction=""),))),
]

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: rules for names, rules in _FAMILIES for name in names
}
