"""Machines that are rented by the hour, and may be taken away.

- ``sky``: managed jobs of SkyPilot.
- ``spot_notices``: notices of clouds that a spot machine ends soon.

Nothing is imported here.
"""
