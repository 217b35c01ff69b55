"""Builders of small test models and repositories; for tests, the demo and benchmarks, never for the product itself."""
