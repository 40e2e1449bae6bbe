"""The catalog of algorithms: built-in ones and plug-ins."""
