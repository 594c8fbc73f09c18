"""What the driver and Trinity's processes both need."""
