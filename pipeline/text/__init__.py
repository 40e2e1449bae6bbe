"""Text for users: figures, Markdown and tables on a terminal."""
