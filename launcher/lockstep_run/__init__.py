"""The parts of launcher/lockstep-run."""
