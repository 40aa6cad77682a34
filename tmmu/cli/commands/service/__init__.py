"""The commands of the service: ``tmmu serve`` and ``tmmu doctor``."""
