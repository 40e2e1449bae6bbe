"""Generated click logs with a planted teacher."""
