"""Other systems that train embedding tables: what each can express of a plan, and the files that it reads."""
