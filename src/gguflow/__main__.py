"""`python -m gguflow`."""

from __future__ import annotations

import sys

from gguflow.start import main

sys.exit(main())
