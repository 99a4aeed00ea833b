"""The version of the package, which is that of nvllm."""

__version__ = "0.1.0"
