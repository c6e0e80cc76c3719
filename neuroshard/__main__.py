"""`python -m neuroshard`, which is also how torchrun starts it."""

from neuroshard.entry import main

if __name__ == "__main__":
    main()
