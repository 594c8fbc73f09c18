"""The checks of `astune doctor`, a module each; `astune.doctor.run_checks` runs them."""
