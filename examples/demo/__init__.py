"""The demo: 42 models, real ones among them, served with memory for a tenth of them, every answer checked. `make demo` runs it."""
