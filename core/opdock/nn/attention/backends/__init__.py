"""The backends that the host carries; each is imported when it is chosen."""
