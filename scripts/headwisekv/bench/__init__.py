"""How fast our build is, how much memory it takes, and which context fits."""
