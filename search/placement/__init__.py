"""From layouts to devices."""
