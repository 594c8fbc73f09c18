"""The operator's page: what stands in the store of a service, to look at and not to change."""
