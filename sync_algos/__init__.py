"""The synchronization algorithms, one file each; `catalog.registry` names them."""
