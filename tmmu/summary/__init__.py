"""A plan in numbers: what every report, page and the Python interface say of it."""
