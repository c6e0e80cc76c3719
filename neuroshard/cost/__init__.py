"""What plans ask of devices, loads and traffic, and what they cost."""
