#!/bin/sh
# Runs the GPU check on a machine that has Python and torch and need not have more: what is missing comes from wheels that
# `make gpu-wheels` put beside the tree. Arguments go to benchmarks.gpu_check, or
# to the module of benchmarks that CHECK names.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
site=build/gpu-site
missing=$("$python" -c '
import importlib.util
print(*(name for name in ("blake3", "cbor2", "numpy", "platformdirs") if importlib.util.find_spec(name) is None))')
if [ -n "$missing" ]; then
    # shellcheck disable=SC2086 - a list of names
    "$python" -m pip install -q --no-index --find-links build/gpu-wheels --target "$site" $missing
fi
PYTHONPATH="$site:.${PYTHONPATH:+:$PYTHONPATH}" exec "$python" -m "benchmarks.${CHECK:-gpu_check}" "$@"
