"""The values that everything else meets in: graph, problem, plan; their files, their laws, and the judge."""
