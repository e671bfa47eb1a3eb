"""Logits against another program's or device's: files of llama.cpp and numpy, and differences."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from gguflow.engine.dataclass import dataclass
from gguflow.engine.opened import open_file

# Of what `llama-perplexity --save-all-logits` writes (llama.cpp, tools/perplexity/perplexity.cpp).
MAGIC = b"_logits_"
MOST = 1 << 28  # of a number in the header that is no nonsense
# Rounding activations in another way costs about 1e-4 nats, four-bit weights 3e-2.
MOST_KL = 5e-3
LEAST = 1e-3


class LogitsError(ValueError):
    """A file of logits that cannot be read, or is of another model: one line naming the file."""


@dataclass(frozen=True)
class Window:
    """Tokens, and log probabilities float32 [n, n_vocab] of what follows them from `first` on; NaN
    where the file does not say."""

    ids: list[int]
    first: int
    log_probs: np.ndarray


@dataclass(frozen=True)
class GivenLogits:
    """Another program's logits. windows: of texts that begin anew each."""

    path: str
    n_vocab: int
    windows: list[Window]


@dataclass
class Difference:
    """Of logits to given ones, over `n` positions. kl: mean divergence, in nats, of ours from the
    given. same_top: share of positions whose likeliest token is the same. worst: the largest
    difference of a log probability, among the tokens of a probability above `LEAST`."""

    n: int = 0
    kl: float = 0.0
    same_top: float = 0.0
    worst: float = 0.0

    @property
    def ok(self) -> bool:
        return self.n > 0 and self.kl <= MOST_KL

    def add(self, ours: np.ndarray, given: np.ndarray) -> None:
        """Log probabilities, [n, n_vocab] each; a given NaN is not known."""
        m = len(ours)
        if not m:
            return
        known = ~np.isnan(given)
        b = np.where(known, given, -np.inf).astype(np.float64)
        off = np.where(known, given - ours.astype(np.float64), 0.0)
        kl = float((np.exp(b) * off).sum(-1).mean())
        top = float((ours.argmax(-1) == b.argmax(-1)).mean())
        total = self.n + m
        self.kl = (self.kl * self.n + kl * m) / total
        self.same_top = (self.same_top * self.n + top * m) / total
        self.n = total
        self.worst = max(self.worst, float(np.abs(off[b > np.log(LEAST)]).max(initial=0.0)))
        if not np.isfinite(ours).all():
            self.kl = np.inf


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64 log probabilities of logits [n, n_vocab]; of log probabilities, the same."""
    x = logits.astype(np.float64)
    x -= np.nanmax(x, -1, keepdims=True)
    return x - np.log(np.nansum(np.exp(x), -1, keepdims=True))


def read_logits(path: str, n_vocab: int, bos: int | None, most: int) -> GivenLogits:
    """A file of `llama-perplexity --save-all-logits`, or an .npz with `ids` [n] and `logits`
    [n, n_vocab].

    bos: what the windows of the former begin with, whatever the file says, as llama.cpp has it.
    most: windows of it that are read. Raises LogitsError.
    """
    try:
        with open_file(path, regular=True) as f:
            head = f.read(len(MAGIC))
        if head == MAGIC:
            given = _llama_cpp(path, bos, most)
        elif head[:2] == b"PK":
            given = _npz(path)
        else:
            raise LogitsError(f"{path}: neither logits of llama-perplexity nor an .npz")
    except OSError as e:
        raise LogitsError(f"{path}: {e.strerror}") from None
    if given.n_vocab != n_vocab:
        raise LogitsError(f"{path}: logits of {given.n_vocab} tokens, the model has {n_vocab}")
    for w in given.windows:
        if not all(0 <= i < n_vocab for i in w.ids):
            raise LogitsError(f"{path}: token ids beyond the vocabulary of {n_vocab}")
    return given


def _llama_cpp(path: str, bos: int | None, most: int) -> GivenLogits:
    """Header: magic, then int32 n_ctx, n_vocab, n_chunk and the tokens. Of each window the second
    half: uint16 rows of a float32 scale, a float32 minimum, and steps of one above the other."""
    size = Path(path).stat().st_size
    with Path(path).open("rb") as f:
        f.seek(len(MAGIC))
        head = f.read(12)
        if len(head) < 12:
            raise LogitsError(f"{path}: ends within its header")
        n_ctx, n_vocab, n_chunk = struct.unpack("<3i", head)
        if not (3 < n_ctx < MOST and 0 < n_vocab < MOST and 0 < n_chunk < MOST):
            raise LogitsError(
                f"{path}: windows of {n_ctx} tokens, {n_vocab} in the vocabulary, {n_chunk} windows"
            )
        first, width = n_ctx // 2, 2 * ((n_vocab + 1) // 2) + 4
        rows = n_ctx - 1 - first
        if size < len(MAGIC) + 12 + 4 * n_chunk * n_ctx + 2 * n_chunk * rows * width:
            raise LogitsError(f"{path}: {size} bytes, too few for {n_chunk} windows of {n_ctx}")
        ids = np.fromfile(f, "<i4", n_chunk * n_ctx).reshape(n_chunk, n_ctx)
        windows = []
        for i in range(min(n_chunk, most)):
            raw = np.fromfile(f, "<u2", rows * width).reshape(rows, width)
            scale = raw[:, :2].copy().view("<f4")
            least = raw[:, 2:4].copy().view("<f4")
            steps = raw[:, 4 : 4 + n_vocab]
            with np.errstate(all="ignore"):
                log_probs = scale * steps.astype(np.float32) + least
            if not np.isfinite(log_probs).all() or log_probs.max(initial=0) > 1e-3:
                raise LogitsError(f"{path}: window {i} holds what is no log probability")
            # Logits 16 below the largest and less are all kept as 0.
            log_probs[steps == 0] = np.nan
            tokens = ids[i].tolist()
            if bos is not None:
                tokens[0] = bos
            windows.append(Window(tokens, first, log_probs))
    return GivenLogits(path, n_vocab, windows)


def _npz(path: str) -> GivenLogits:
    try:
        with np.load(path, allow_pickle=False) as z:
            ids, logits = z["ids"], z["logits"]
    except (KeyError, ValueError, EOFError) as e:
        raise LogitsError(f"{path}: expected arrays `ids` and `logits`: {e}") from None
    except Exception as e:  # what a damaged archive raises is zipfile's and zlib's own
        raise LogitsError(f"{path}: {type(e).__name__}: {e}") from None
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise LogitsError(f"{path}: ids of {ids.dtype}{list(ids.shape)}, expected integers [n]")
    if logits.ndim != 2 or len(logits) != len(ids) or logits.dtype.kind != "f":
        what = f"{logits.dtype}{list(logits.shape)}"
        raise LogitsError(f"{path}: logits of {what} for {len(ids)} ids")
    given = logits.astype(np.float32)
    if not np.isfinite(given).all():
        raise LogitsError(f"{path}: logits that are NaN or infinite")
    return GivenLogits(path, given.shape[1], [Window(ids.tolist(), 0, log_softmax(given))])
