"""verl on a machine without GPUs: what it lacks there, by its own plug-ins.

verl reads the variables below when it is imported, so they have to be set before, in every process.
"""

CPU_ENVIRONMENT = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "astune.backbone.verl.cpu.platform"}
