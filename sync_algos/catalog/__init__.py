"""Which algorithms there are: built in, and of plug-ins."""
