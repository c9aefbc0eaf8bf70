"""python -m formers is the command formers."""

from .cli.main import main

if __name__ == "__main__":
    main()
