"""The process of Trinity's trainer: which rows make a step, and what Trinity does with them."""
