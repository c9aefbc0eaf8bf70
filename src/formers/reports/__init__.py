"""Reports of training runs: HTML pages, charts and attention maps, in English and Korean."""
