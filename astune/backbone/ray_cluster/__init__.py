"""Ray as every backbone on it needs it: a cluster is joined or started, and asked what each of its nodes lacks."""
