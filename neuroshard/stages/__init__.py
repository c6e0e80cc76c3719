"""The three stages, through links to the folders at the top."""
