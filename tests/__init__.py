"""Tests. Two workers share two cores, so each of them multiplies on one."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
