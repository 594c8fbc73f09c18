"""Ray as every backbone on it needs it: a cluster is joined or started, asked what each of its nodes lacks, and plays
episodes in actors."""
