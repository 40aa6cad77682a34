"""A planned run held against eager, the plain program, and itself under the sanitizer; timed side by side."""
