"""ShadowSync: background synchronization for training recommendation models (arXiv 2003.03477)."""

__version__ = "0.1.0"
PROTOCOL_VERSION = 1

__all__ = ["PROTOCOL_VERSION", "__version__"]
