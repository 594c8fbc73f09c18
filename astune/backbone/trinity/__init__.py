"""The Trinity backbone: the same job on Trinity-RFT and Ray. Nothing is imported here, as Trinity's processes import
single modules by their dotted names."""
