"""How a model of transformers is traced so that its cache is state of sessions. Imports transformers."""
