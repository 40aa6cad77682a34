"""Payloads of messages: chunk by chunk under credit, into memory that is used again."""
