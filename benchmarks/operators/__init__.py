"""torch's operator database run through tmmu: samples, routes, comparison, and the processes that run them."""
