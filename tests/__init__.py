"""Tests. Each of two parallel workers uses one BLAS thread, since they share two cores."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
