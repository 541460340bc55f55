"""Finding plugins by their installed metadata, and loading the few that are wanted."""
