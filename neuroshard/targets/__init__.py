"""Other systems that train embedding tables: the plans that each can express, and exports of plans to their formats."""
