"""The synchronization algorithms, one file each; `registry` names them."""
