"""The parts of the Python runtime: a model's files, configuration, slots, and the checks around its runs."""
