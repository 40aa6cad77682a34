"""Sessions of language models on the runtime: state in arenas of their own, plans that all of them share."""
