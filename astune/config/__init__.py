"""One typed tree of settings. `schema` says what there is, `load` reads it, `render` writes it."""
