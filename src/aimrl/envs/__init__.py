"""Simulators behind one face: vectorised goal environments with explicit resets, their goal tasks, and a doctor.

Nothing is imported here, so that naming a room stays cheap: take `make` from `aimrl.envs.vector`.
"""
