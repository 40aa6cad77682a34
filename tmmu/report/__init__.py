"""A plan as a page: what it shows (``contents.py``), and the file that shows it (``page.py``)."""
