"""Values that every other part of the compiler shares: graph, program, problem, plan, ring, cache key. No torch."""
