"""The command line: arguments, help, what is listed, and what happens when something goes wrong."""
