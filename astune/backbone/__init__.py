"""What runs a whole job: one folder or module for each backbone, `base` for what they have in common."""
