"""Pictures. Needs matplotlib, imported only where something is drawn."""
