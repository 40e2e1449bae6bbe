"""The relay of an emulated slow network: a process between nodes."""
