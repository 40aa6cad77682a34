"""Values of a step that are in host memory between two of their readers: copies beside the ops, and their fences.

``tmmu.runtime.offload.executor.bind_offloaded`` binds a plan that has such values.
"""
