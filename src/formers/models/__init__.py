"""One file per ancestor: what is new in it, composed of the shared parts."""
