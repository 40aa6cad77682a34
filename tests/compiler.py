"""Whether this machine compiles C++: kernels are tested where it does."""

import os
import shutil

import pytest

needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "g++")) is None, reason="no compiler of C++ on this machine"
)
