"""What every package uses and none owns: processes, signals, files, terminals, HTTP, and code of others."""
