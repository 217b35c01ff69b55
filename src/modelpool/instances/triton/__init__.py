"""Triton servers as instances: driven over gRPC, asked over HTTP."""
