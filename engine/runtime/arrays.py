"""Arrays that are made when they are asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import overload

import numpy as np


class Arrays(Sequence[np.ndarray]):
    """A sequence of arrays, of which each is fetched when it is indexed."""

    @abstractmethod
    def _fetch(self, index: int) -> np.ndarray:
        """The array at `index`, which may count from the end."""

    @overload
    def __getitem__(self, index: int) -> np.ndarray: ...
    @overload
    def __getitem__(self, index: slice) -> list[np.ndarray]: ...

    def __getitem__(self, index: int | slice) -> np.ndarray | list[np.ndarray]:
        if isinstance(index, slice):
            return [self._fetch(i) for i in range(*index.indices(len(self)))]
        return self._fetch(index)
