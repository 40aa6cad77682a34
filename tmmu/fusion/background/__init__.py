"""Compiling kernels beside a running program, for the next one that wants them: ``fuse="auto"``.

``kernel_order`` says which kernels and starts the process, ``compile_process`` is what that runs. Normative:
docs/spec/fuse.md.
"""
