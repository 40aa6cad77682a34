"""A planned run compared with eager, with the program in plain memory, and under the sanitizer; timed side by side."""
