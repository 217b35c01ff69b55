"""The gRPC front: Triton's and KServe's `GRPCInferenceService` over the data plane. Imported only where it is served, as it is heavy."""
