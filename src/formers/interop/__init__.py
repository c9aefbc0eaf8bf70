"""Files: our own directories, other libraries' checkpoints, the hub. Untrusted input goes through `safe` alone."""
