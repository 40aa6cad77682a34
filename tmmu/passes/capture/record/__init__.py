"""Recording a model's calls: the dispatch mode, the graph under construction, storages, constants and random state."""
