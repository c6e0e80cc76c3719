"""`python -m neuroshard`, which is also how torchrun starts it."""

from neuroshard.app.entry import main

if __name__ == "__main__":
    main()
