"""Reports for people: pure and offline, the same files give the same bytes."""
