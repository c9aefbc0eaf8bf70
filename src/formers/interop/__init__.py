"""Files: our own directories, other libraries' checkpoints, the hub. Untrusted input is read by safe_files.py."""
