"""Models of twelve packages, unmodified: planned bytes beside what an interceptor sees in a real run."""
