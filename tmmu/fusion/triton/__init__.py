"""Fused kernels of a GPU: a group as Triton kernels, which Inductor generates, and how those are launched.

``launch_source`` has them generated, ``launch_text`` says in which blocks they run, ``launch_library`` keeps and loads
them. Normative: docs/spec/fuse.md.
"""
