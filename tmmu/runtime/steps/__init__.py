"""From calls to steps: built, validated against the operator, launched on an execution stream."""
