"""Where a search of what to run again may begin, beside nothing."""
