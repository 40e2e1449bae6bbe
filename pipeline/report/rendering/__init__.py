"""A report as a person sees it: report.md, the terminal, pictures, a notebook."""
