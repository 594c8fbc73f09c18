"""From a configuration of ASTune to one of Trinity. Nothing here imports Trinity or Ray, so `astune config convert` and
the doctor run without them."""
