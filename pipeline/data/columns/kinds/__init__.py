"""The values of each kind of column: how they are parsed, and described where they are stored."""
