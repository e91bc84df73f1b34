"""Everything that scripts/ runs: serving, testing, calibrating, measuring. scripts/README.md says what is where."""
