"""Text for users: figures and Markdown."""
