"""Which session's bytes leave the device and which come back, when, and in which order they share the link.

Nothing here knows a clock, a device or a simulation: times are arguments (docs/spec/sessions.md).
"""
