"""The command line: commands grouped by subject, each a typed function."""
