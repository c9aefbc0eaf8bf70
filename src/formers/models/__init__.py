"""One file per model family: what is new in it, composed of the parts in nn/."""
