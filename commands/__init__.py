"""Commands in files of their own. They import only click until one runs."""
