"""Images and who holds them: one file a data set, one door (``registry.open_dataset``), one partition."""
