"""Run the `neuroshard` command as `python -m neuroshard`. The processes of torchrun start in this way, too."""

from neuroshard.app.entry import main

if __name__ == "__main__":
    main()
