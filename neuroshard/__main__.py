"""Run the `neuroshard` command as `python -m neuroshard`. torchrun can start its processes in this way."""

from neuroshard.app.entry import main

if __name__ == "__main__":
    main()
