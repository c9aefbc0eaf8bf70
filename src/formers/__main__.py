"""python -m formers is the command formers."""

from .cli.start import main

if __name__ == "__main__":
    main()
